package serve

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// healthz says that the process answers.
func (h *Handler) healthz(w http.ResponseWriter, r *http.Request) { text(w, r, http.StatusOK, "ok\n") }

// readyz says whether requests should be sent here.
func (h *Handler) readyz(w http.ResponseWriter, r *http.Request) {
	switch err := h.ready.ask(r.Context(), h.client.StoreTTL); {
	case h.drain.Err() != nil:
		text(w, r, http.StatusServiceUnavailable, "this replica ends\n")
	case err != nil:
		text(w, r, http.StatusServiceUnavailable, "the store does not answer\n")
	default:
		text(w, r, http.StatusOK, "ready\n")
	}
}

// readiness is whether the store has answered within the last third of a TTL. The store is asked at
// most once in that time, and once a second while it does not answer, however often clients ask.
type readiness struct {
	mu    sync.Mutex
	good  time.Time // when an answer came
	ttl   time.Duration
	tried time.Time
	err   error
}

func (r *readiness) ask(ctx context.Context, load func(context.Context) (time.Duration, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.good.IsZero() && now.Sub(r.good) < r.ttl/3 {
		return nil
	}
	if !r.tried.IsZero() && now.Sub(r.tried) < time.Second {
		return r.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	ttl, err := load(ctx)
	r.tried, r.err = time.Now(), err
	if err == nil {
		r.good, r.ttl = r.tried, ttl
	}
	return err
}

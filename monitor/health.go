package monitor

import (
	"context"
	"net/http"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// Ready answers 200 while a client is healthy, and otherwise 503 with the reason.
func Ready(client *holdfast.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		if err := client.Healthy(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		answer(w, "ready\n")
	})
}

// Leader answers 200 while this process leads in an election, and 503 elsewhere, so that a load
// balancer sends its requests to the leader. It does no I/O.
func Leader(e *holdfast.Election) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, leads := e.HasLock(); !leads {
			http.Error(w, "not the leader", http.StatusServiceUnavailable)
			return
		}
		answer(w, "leader\n")
	})
}

func answer(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte(text)) // the client has gone
}

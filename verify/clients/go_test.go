package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/verify/overhttp"
)

// An action is a step of a case, with what runners do themselves.
type action struct {
	step
	Op      string            `json:"op"`
	As      string            `json:"as"`
	Names   []string          `json:"names"`
	Wait    *float64          `json:"wait"` // nil: for ever
	TTL     float64           `json:"ttl"`
	Shared  bool              `json:"shared"`
	Labels  map[string]string `json:"labels"`
	Fails   string            `json:"fails"`
	Seconds float64           `json:"seconds"`
	Within  float64           `json:"within"`
	Than    string            `json:"than"`
	Says    string            `json:"says"`
}

// The script of cases that clients of other languages run is run by the Go client of the tests, too.
func TestGo(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "/clients/cases/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name  string   `json:"name"`
		Steps []action `json:"steps"`
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			r := &runner{server: newBadServer(t), locks: map[string]*lock{}}
			for _, a := range c.Steps {
				if err := r.do(t.Context(), a); err != nil {
					t.Fatalf("%s %s: %v", a.Op, a.As, err)
				}
			}
		})
	}
}

// A runner runs one case.
type runner struct {
	server *badServer
	locks  map[string]*lock
}

// A lock is one that is held, or waited for.
type lock struct {
	acquired chan struct{}
	grant    overhttp.Grant // when acquired
	err      error
	end      chan struct{} // closed: give it back
	lost     chan struct{} // closed: nothing is believed any more
	kept     chan struct{} // closed: all has ended
	belief   overhttp.Belief

	mu       sync.Mutex
	deadline time.Time
}

func (r *runner) do(ctx context.Context, a action) error {
	l := r.locks[a.As]
	switch a.Op {
	case "test":
		return r.server.step(ctx, a.step)
	case "sleep":
		time.Sleep(time.Duration(a.Seconds * float64(time.Second)))
	case "acquire":
		l = r.acquire(ctx, a)
		<-l.acquired
		if got := failure(l.err); got != a.Fails {
			return fmt.Errorf("fails with %q (%v), want %q", got, l.err, a.Fails)
		}
	case "start":
		r.acquire(ctx, a)
	case "join":
		<-l.acquired
		return l.err
	case "held":
		return l.check()
	case "release":
		close(l.end)
		<-l.kept
	case "larger":
		if than := r.locks[a.Than]; l.grant.Token <= than.grant.Token {
			return fmt.Errorf("token %d after %d", l.grant.Token, than.grant.Token)
		}
	case "lost":
		select {
		case <-l.lost:
		case <-time.After(time.Duration(a.Within * float64(time.Second))):
			return errors.New("not lost in time")
		}
		if a.Says != "" {
			if <-l.kept; !strings.Contains(l.belief.Lost, a.Says) {
				return fmt.Errorf("lost with %q", l.belief.Lost)
			}
		}
		if l.check() == nil {
			return errors.New("it says that it is held")
		}
	default:
		return fmt.Errorf("unknown step %q", a.Op)
	}
	return nil
}

// failure is the word of the script for an error.
func failure(err error) string {
	var status *overhttp.StatusError
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &status):
		return "Unavailable"
	case status.Status == 409:
		return "Held"
	}
	return "Refused"
}

// acquire begins to take a lock, which is kept from then on.
func (r *runner) acquire(ctx context.Context, a action) *lock {
	l := &lock{acquired: make(chan struct{}), end: make(chan struct{}), lost: make(chan struct{}), kept: make(chan struct{})}
	r.locks[a.As] = l
	q := overhttp.Request{Names: a.Names, Wait: time.Hour, Fields: map[string]any{"shared": a.Shared, "reason": a.Why, "labels": maps.Clone(a.Labels)}}
	if a.Wait != nil {
		q.Wait = time.Duration(*a.Wait * float64(time.Second))
	}
	q.ByStream = q.Wait > 0
	if a.TTL == 0 {
		a.TTL = 4 // of the server
	}
	c := &overhttp.Client{Base: r.server.proxy.URL, Secret: "secret", TTL: time.Duration(a.TTL * float64(time.Second)), Believes: l.believes}
	go func() {
		defer close(l.kept)
		for {
			l.grant, l.err = c.Take(ctx, overhttp.NewID(), q)
			if !errors.Is(l.err, overhttp.ErrOver) || q.Wait == 0 {
				break
			}
		}
		if l.err == nil {
			l.believes(l.grant.Token, l.grant.Deadline)
		}
		close(l.acquired)
		if l.err == nil {
			l.belief, _ = c.Keep(ctx, l.grant, l.end)
		}
	}()
	return l
}

func (l *lock) believes(_ int64, deadline time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deadline = deadline; deadline.IsZero() {
		close(l.lost)
	}
}

// check says whether the lock may be believed in.
func (l *lock) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := time.Until(l.deadline); left <= 0 {
		return fmt.Errorf("it may not be believed in since %v", -left)
	}
	return nil
}

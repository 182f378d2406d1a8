package holdfast_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A guardedStore fails the test when something is written.
type guardedStore struct {
	driver.Store
	t *testing.T
}

func (s guardedStore) CompareAndSwap(_ context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	s.t.Errorf("a client that only looks writes %+v", writes)
	return nil, errors.New("not allowed")
}

func (s guardedStore) Sweep(context.Context, time.Duration) (int, error) {
	s.t.Error("a client that only looks sweeps")
	return 0, errors.New("not allowed")
}

// A client that only looks shows what others hold, and refuses all else before it does any I/O.
func TestReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := t.Context(), memory.New()
		worker, err := holdfast.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer worker.Close()
		lock, err := worker.Acquire(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		looker, err := holdfast.New(guardedStore{store, t}, &holdfast.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		const hold = "0123456789abcdef0123456789abcdef"
		looks := map[string]func() error{
			"Show":         func() error { _, err := looker.Show(ctx, "a"); return err },
			"Healthy":      func() error { return looker.Healthy(ctx) },
			"StoreTTL":     func() error { _, err := looker.StoreTTL(ctx); return err },
			"StoreHistory": func() error { _, err := looker.StoreHistory(ctx); return err },
			"History":      func() error { _, err := looker.History(ctx, "a"); return err },
			"Histories": func() error {
				for h, err := range looker.Histories(ctx, "") {
					t.Errorf("Histories: %+v, error %v", h, err)
				}
				return nil
			},
			"List": func() error {
				for info, err := range looker.List(ctx, "") {
					if err != nil || info.Name != "a" || len(info.Holders) != 1 {
						t.Errorf("List: %+v, error %v", info, err)
					}
				}
				return nil
			},
			"ListAfter": func() error {
				for info, err := range looker.ListAfter(ctx, "", "a") {
					t.Errorf("ListAfter: %+v, error %v", info, err)
				}
				return nil
			},
			"Watch": func() error {
				for _, err := range looker.Watch(ctx, "a") {
					return err
				}
				return errors.New("nothing")
			},
			"Sessions": func() error {
				for s, err := range looker.Sessions(ctx) {
					if err != nil || s.Owner.PID == 0 {
						t.Errorf("Sessions: %+v, error %v", s, err)
					}
				}
				return nil
			},
			"SessionsAfter": func() error {
				for s, err := range looker.SessionsAfter(ctx, strings.Repeat("f", 32)) {
					t.Errorf("SessionsAfter: %+v, error %v", s, err)
				}
				return nil
			},
			"Session": func() error {
				if s, ok, err := looker.Session(ctx, "unknown"); ok || err != nil {
					t.Errorf("Session: %+v, error %v", s, err)
				}
				return nil
			},
			"Hold": func() error {
				if _, err := looker.Hold(ctx, "", hold); !errors.Is(err, holdfast.ErrLost) {
					t.Errorf("Hold of one that is over: %v, want ErrLost", err)
				}
				return nil
			},
			"Election": func() error {
				e := looker.Election("a")
				c, err := e.Leader(ctx)
				if err != nil || c.Token != lock.Token() {
					t.Errorf("Leader: %+v, error %v", c, err)
				}
				if err := e.Run(ctx, nil); !errors.Is(err, holdfast.ErrReadOnly) {
					t.Errorf("Run: %v, want ErrReadOnly", err)
				}
				return nil
			},
		}
		refused := map[string]func() error{
			"Acquire":    func() error { _, err := looker.Acquire(ctx, "b"); return err },
			"TryAcquire": func() error { _, err := looker.TryAcquire(ctx, "b"); return err },
			"AcquireAll": func() error { _, err := looker.AcquireAll(ctx, []string{"b", "c"}); return err },
			"AcquireFor": func() error { _, err := looker.AcquireFor(ctx, "b", time.Minute); return err },
			"Do": func() error {
				return looker.Do(ctx, "b", func(context.Context, *holdfast.Lock) error { return errors.New("it runs") })
			},
			"Break":       func() error { return looker.Break(ctx, "a", lock.Token(), "why") },
			"BreakNow":    func() error { return looker.BreakNow(ctx, "a", lock.Token(), "why") },
			"BreakWaiter": func() error { return looker.BreakWaiter(ctx, holdfast.Claim{Name: "a"}, "why") },
			"BreakClaim": func() error {
				return looker.BreakClaim(ctx, holdfast.Claim{Name: "a", Token: lock.Token()}, holdfast.BreakOptions{Reason: "why"})
			},
			"ExtendToken":     func() error { _, err := looker.ExtendToken(ctx, "a", lock.Token(), time.Minute); return err },
			"ReleaseToken":    func() error { return looker.ReleaseToken(ctx, "a", lock.Token()) },
			"SetStoreTTL":     func() error { return looker.SetStoreTTL(ctx, time.Minute) },
			"SetStoreHistory": func() error { return looker.SetStoreHistory(ctx, 128) },
			"Enter": func() error {
				_, err := looker.Enter(ctx, holdfast.HoldRequest{ID: hold, Names: []string{"b"}})
				return err
			},
			"Beat":       func() error { _, err := looker.Beat(ctx, "", hold); return err },
			"Extend":     func() error { _, err := looker.Extend(ctx, "", hold, time.Minute); return err },
			"Leave":      func() error { return looker.Leave(ctx, "", hold) },
			"LeaveSole":  func() error { return looker.LeaveSole(ctx, "", hold) },
			"LeaveQueue": func() error { return looker.LeaveQueue(ctx, holdfast.Hold{ID: hold}) },
			"Follow": func() error {
				for _, err := range looker.Follow(ctx, "", hold) {
					return err
				}
				return errors.New("nothing")
			},
			"Sweep": func() error { _, err := looker.Sweep(ctx); return err },
		}
		ends := map[string]bool{"Close": true, "Shutdown": true}
		methods := reflect.TypeFor[*holdfast.Client]()
		for i := range methods.NumMethod() {
			name, began := methods.Method(i).Name, time.Now()
			switch look, refuse := looks[name], refused[name]; {
			case look != nil:
				if err := look(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			case refuse != nil:
				if err := refuse(); !errors.Is(err, holdfast.ErrReadOnly) {
					t.Errorf("%s: %v, want ErrReadOnly", name, err)
				}
			case !ends[name]:
				t.Errorf("%s: it is not said whether a client may do that which only looks", name)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("%s: it took %v, want it at once", name, took)
			}
		}
		if err := looker.Close(); err != nil {
			t.Error(err)
		}
	})
}

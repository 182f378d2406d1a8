package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A split store makes the writes of a batch one after the other, names first,
// and the others when it may.
type split struct {
	driver.Store
	may chan struct{}
}

func (s *split) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	outcomes := make([]driver.Outcome, len(writes))
	for _, names := range []bool{true, false} {
		for i, w := range writes {
			if (w.Key.Space == driver.Names) != names {
				continue
			}
			if !names {
				<-s.may
			}
			o, err := s.Store.CompareAndSwap(ctx, []driver.Write{w})
			if err != nil {
				return nil, err
			}
			outcomes[i] = o[0]
		}
	}
	return outcomes, nil
}

// A claim that is broken before its session can be seen is told as soon as it
// can: it does not go on believing while its lock goes to another.
func TestBreakBeforeTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		front := &split{store, make(chan struct{})}
		holder, err := holdfast.New(front, &holdfast.Options{TTL: 4 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		other, err := holdfast.New(store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		got := make(chan *holdfast.Lock, 1)
		go func() {
			l, err := holder.Acquire(t.Context(), "a")
			if err != nil && !errors.Is(err, holdfast.ErrLost) {
				t.Error(err)
			}
			got <- l
		}()
		synctest.Wait()
		info, err := other.Show(t.Context(), "a")
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("held by %v, %v", info.Holders, err)
		}
		broken := make(chan error, 1)
		go func() { broken <- other.Break(t.Context(), info.Holders[0].Name, info.Holders[0].Token, "ticket 815") }()
		synctest.Wait()
		close(front.may)
		lock := <-got
		if err := <-broken; err != nil {
			t.Fatal(err)
		}
		if lock != nil && lock.Err() == nil {
			t.Error("it was broken, and believes that it holds")
		}
	})
}

// When one lock of a set is broken the others stay held until the work has stopped:
// nobody may begin beside it.
func TestBreakOneOfASet(t *testing.T) {
	for _, releases := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			holder, other := newClient(t, store, &holdfast.Options{TTL: 10 * time.Second}), newClient(t, store, nil)
			defer holder.Close()
			defer other.Close()
			set, err := holder.AcquireAll(t.Context(), []string{"a", "b"})
			if err != nil {
				t.Fatal(err)
			}
			next := make(chan time.Time, 1)
			go func() {
				l, err := other.Acquire(t.Context(), "b")
				if err != nil {
					t.Error(err)
					return
				}
				next <- time.Now()
				l.Release(t.Context())
			}()
			synctest.Wait()
			info, err := other.Show(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			locks := set.Locks()
			over := locks[1].Deadline()
			go other.Break(t.Context(), info.Holders[0].Name, info.Holders[0].Token, "ticket 815")
			<-set.Context().Done()
			if !errors.Is(locks[1].Err(), holdfast.ErrLost) {
				t.Errorf("the other lock of the set: %v", locks[1].Err())
			}
			if releases { // the work takes a second to stop
				time.Sleep(time.Second)
				over = time.Now()
				set.Release(t.Context())
			}
			if at := <-next; at.Before(over) {
				t.Errorf("releases %v: the next holder of the other name begins %v before the work has stopped, or has to", releases, over.Sub(at))
			} else if at.After(over.Add(2 * time.Second)) {
				t.Errorf("releases %v: the next holder of the other name begins only %v later", releases, at.Sub(over))
			}
		})
	}
}

// Break ends with the client, and says so.
func TestBreakEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		holder, other := newClient(t, s, nil), newClient(t, s, nil)
		defer holder.Close()
		if _, err := holder.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		info, err := other.Show(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other.Close()
		if err := other.Break(t.Context(), info.Holders[0].Name, info.Holders[0].Token, "test"); !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}

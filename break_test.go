package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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

// A claim that is broken before its session can be seen ends as soon as its
// client sees that: it does not go on believing while its lock goes to another.
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
		// BreakClaim, and not Break, which waits for a moment for the session to be seen.
		go func() {
			broken <- other.BreakClaim(t.Context(), info.Holders[0], holdfast.BreakOptions{Reason: "ticket 815"})
		}()
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

// A revoking store has somebody break the claim of a session around the write that would leave
// its lock alone: before it, or after it, and then the answer to the write is lost.
type revoking struct {
	driver.Store
	after bool
	once  sync.Once
	by    func() // returns when the revocation is in the session's record
}

func (s *revoking) CompareAndSwap(ctx context.Context, writes []driver.Write) (outs []driver.Outcome, err error) {
	leaves := writes[0].Key.Space == driver.Sessions && bytes.Contains(writes[0].Value, []byte(`"detached":true`))
	if s.after || !leaves {
		outs, err = s.Store.CompareAndSwap(ctx, writes)
	}
	if leaves {
		s.once.Do(func() {
			if s.by(); s.after {
				outs, err = nil, errors.New("the answer is lost")
			}
		})
	}
	if outs != nil || err != nil {
		return outs, err
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

// A lock that is broken while AcquireFor leaves it alone was not acquired: the one who broke it
// takes for granted that whoever has read the revocation lets go.
func TestBreakOfWhatIsLeftAlone(t *testing.T) {
	for _, after := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			other := newClient(t, store, nil)
			defer other.Close()
			front := &revoking{Store: store, after: after}
			var broken sync.WaitGroup
			front.by = func() {
				info, err := other.Show(t.Context(), "a")
				if err != nil || len(info.Holders) != 1 {
					t.Errorf("held by %v, %v", info.Holders, err)
					return
				}
				broken.Go(func() {
					if err := other.Break(t.Context(), "a", info.Holders[0].Token, "ticket 815"); err != nil && !errors.Is(err, holdfast.ErrReleased) {
						t.Error(err)
					}
				})
				synctest.Wait() // it has written the revocation, and waits for the holder
				recs, err := store.Load(t.Context(), []driver.Key{driver.Sessions.Key(info.Holders[0].Owner.Session)}, driver.Fresh)
				if err != nil || !bytes.Contains(recs[0].Value, []byte(`"revoked"`)) {
					t.Errorf("the session is not told: %s, %v", recs[0].Value, err)
				}
			}
			holder := newClient(t, front, &holdfast.Options{TTL: 4 * time.Second})
			defer holder.Close()
			claim, err := holder.AcquireFor(t.Context(), "a", time.Minute)
			if !errors.Is(err, holdfast.ErrLost) || !strings.Contains(fmt.Sprint(err), "ticket 815") {
				t.Errorf("after %v: AcquireFor returned %+v, %v", after, claim, err)
			}
			broken.Wait()
			began := time.Now()
			next, err := other.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			defer next.Release(t.Context())
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("after %v: the next waited for %v", after, took)
			}
		})
	}
}

// A lock that no process keeps cannot be extended while somebody breaks it: the break waits for
// its end.
func TestBreakOfWhatIsExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		holder, other := newClient(t, store, nil), newClient(t, store, nil)
		defer holder.Close()
		defer other.Close()
		claim, err := holder.AcquireFor(t.Context(), "a", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		broken := make(chan error, 1)
		go func() { broken <- other.Break(t.Context(), "a", claim.Token, "ticket 815") }()
		for began := time.Now(); ; time.Sleep(time.Second) {
			if _, err = holder.ExtendToken(t.Context(), "a", claim.Token, 10*time.Second); err != nil || time.Since(began) > time.Minute {
				break
			}
		}
		if !errors.Is(err, holdfast.ErrLost) || !strings.Contains(fmt.Sprint(err), "ticket 815") {
			t.Errorf("it is extended, or: %v", err)
		}
		if err := <-broken; err != nil {
			t.Error(err)
		}
		if time.Now().Before(claim.Ends) {
			t.Errorf("it was broken %v before its end", time.Until(claim.Ends))
		}
	})
}

// A break does not prolong a lock that ends by itself.
func TestBreakKeepsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		holder, other := newClient(t, store, nil), newClient(t, store, nil)
		defer holder.Close()
		defer other.Close()
		claim, err := holder.AcquireFor(t.Context(), "a", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if err := other.Break(t.Context(), "a", claim.Token, "ticket 815"); err != nil {
			t.Error(err)
		}
		if late := time.Since(claim.Ends); late < 0 || late > 10*time.Second {
			t.Errorf("it was broken %v after its end", late)
		}
	})
}

// A break on somebody's behalf is recorded as theirs, also where only a name says who that is.
func TestBreakOnBehalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		holder, other := newClient(t, store, nil), newClient(t, store, nil)
		defer holder.Close()
		defer other.Close()
		for name, by := range map[string]holdfast.Owner{"a": {Name: "on-call"}, "b": {User: "ana"}, "c": {Host: "db1"}} {
			lock, err := holder.Acquire(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			before, err := other.Show(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := other.BreakClaim(t.Context(), before.Holders[0], holdfast.BreakOptions{Reason: "ticket 815", Now: true, By: by}); err != nil {
				t.Fatal(err)
			}
			after, err := other.Show(t.Context(), name)
			if err != nil || len(after.Breaks) != 1 || after.Breaks[0].By.String() != by.String() || after.Breaks[0].Token != lock.Token() {
				t.Errorf("on behalf of %v: %+v, %v", by, after.Breaks, err)
			}
		}
	})
}

package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/memory"
)

// A doubtful store leaves it open what became of writes of names, as often as
// it is told.
type doubtful struct {
	driver.Store
	times int   // under the test's control: no two calls are under way
	err   error // that it says so with
	// singly: in calls of several writes it answers the others.
	singly bool
}

func (s *doubtful) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	var known []driver.Write
	for _, w := range writes {
		if w.Key.Space != driver.Names {
			known = append(known, w)
		}
	}
	if s.times == 0 || len(known) == len(writes) {
		return s.Store.CompareAndSwap(ctx, writes)
	}
	s.times--
	if len(writes) == 1 || !s.singly {
		return nil, s.err
	}
	done, err := s.Store.CompareAndSwap(ctx, known)
	if err != nil {
		return nil, err
	}
	outs := make([]driver.Outcome, len(writes))
	for i, w := range writes {
		if w.Key.Space == driver.Names {
			outs[i].Err = s.err
		} else {
			outs[i], done = done[0], done[1:]
		}
	}
	return outs, nil
}

// A store that is busy is asked again, also by who does not want to wait and
// has never heard of the store before; one that fails otherwise is not.
func TestBusy(t *testing.T) {
	down := errors.New("down")
	for _, singly := range []bool{false, true} {
		for _, fails := range []error{&driver.BusyError{Err: errors.New("timeout")}, down} {
			synctest.Test(t, func(t *testing.T) {
				s := &doubtful{Store: memory.New(), times: 3, err: fails, singly: singly}
				c := newClient(t, s, &holdfast.Options{TTL: holdfast.DefaultTTL}) // which it need not ask the store for
				defer c.Close()
				began := time.Now()
				l, err := c.TryAcquire(t.Context(), "a")
				switch {
				case driver.Busy(fails) && err != nil:
					t.Errorf("singly %v: the store is busy three times: %v after %v", singly, err, time.Since(began))
				case driver.Busy(fails):
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				case !errors.Is(err, down):
					t.Errorf("singly %v: a store that is down: %v", singly, err)
				}
			})
		}
	}
}

// A store is busy for names while its answers say so.
type crowded struct {
	driver.Store
	busy atomic.Bool
}

func (s *crowded) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if s.busy.Load() && keys[0].Space == driver.Names {
		return nil, &driver.BusyError{Err: errors.New("timeout")}
	}
	return s.Store.Load(ctx, keys, how)
}

func (s *crowded) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if s.busy.Load() && writes[len(writes)-1].Key.Space == driver.Names {
		return nil, &driver.BusyError{Err: errors.New("timeout")}
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

// A waiter goes on waiting while the store is busy: that is no silence.
func TestBusyWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: memory.New()}
		s.busy.Store(true)
		c := newClient(t, s, nil)
		defer c.Close()
		time.AfterFunc(4*holdfast.DefaultTTL, func() { s.busy.Store(false) })
		if _, err := c.Acquire(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
}

// A try gives a store that is busy for ever 5 s, and asks it ever more slowly until
// then.
func TestBusyForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &doubtful{Store: memory.New(), times: 1 << 30, err: &driver.BusyError{Err: errors.New("timeout")}}
		c := newClient(t, s, nil)
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 5*holdfast.DefaultTTL)
		defer cancel()
		began := time.Now()
		_, err := c.TryAcquire(ctx, "a")
		if took := time.Since(began); !driver.Busy(err) || took < 4*time.Second || took > 6*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if n := 1<<30 - s.times; n > 100 {
			t.Errorf("a busy store was asked %d times", n)
		}
	})
}

// A tardy store answers reads of settings later than it was given time for, as a
// driver may that does not look at its context.
type tardy struct {
	driver.Store
	takes time.Duration // under the test's control
	beats atomic.Int64  // when the last heartbeat was sent, in nanoseconds since 1970
}

func (s *tardy) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if keys[0].Space == driver.Settings {
		time.Sleep(s.takes)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return s.Store.Load(ctx, keys, how)
}

func (s *tardy) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	for _, w := range writes {
		if w.Key.Space == driver.Sessions && len(w.Value) > 0 {
			s.beats.Store(time.Now().UnixNano())
		}
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

// No heartbeat is sent once the time is over that it shall prolong, however late
// the store answers what is asked before.
func TestNoBeatAfterTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tardy{Store: memory.New()}
		c := newClient(t, s, &holdfast.Options{})
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		s.takes = 2 * holdfast.DefaultTTL
		<-l.Context().Done()
		lost := time.Now()
		time.Sleep(4 * holdfast.DefaultTTL)
		if last := time.Unix(0, s.beats.Load()); last.After(lost) {
			t.Errorf("a heartbeat was sent %v after the lock was lost", last.Sub(lost))
		}
		if err := l.Err(); !strings.Contains(err.Error(), "no heartbeat answered for ") {
			t.Errorf("it was lost, since %v", err)
		}
	})
}

// A slow is a store of which each call takes so long.
type slow struct {
	*memory.Store
	by    time.Duration
	loads atomic.Int64
}

func (s *slow) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	s.loads.Add(1)
	time.Sleep(s.by / 2)
	defer time.Sleep(s.by / 2)
	return s.Store.Load(ctx, keys, how)
}

func (s *slow) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	time.Sleep(s.by / 2)
	defer time.Sleep(s.by / 2)
	return s.Store.CompareAndSwap(ctx, writes)
}

// Goroutines that each hold the lock for longer than a record is good for hand it on, also where
// to read the record takes longer than it is good for then: with a read each.
func TestHandOffOnASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{Store: memory.New(), by: 5 * core.Turn}
		c := newClient(t, s, &holdfast.Options{TTL: holdfast.DefaultTTL})
		defer c.Close()
		const n = 20
		began := time.Now()
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				l, err := c.Acquire(t.Context(), "a", holdfast.MaxWait(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(2 * core.Turn)
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took, loads := time.Since(began), s.loads.Load(); took > n*8*core.Turn+time.Second || loads > 3*n {
			t.Errorf("%d have held it after %v, with %d reads", n, took, loads)
		}
	})
}

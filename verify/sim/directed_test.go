package sim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// A stage is a store and processes for one directed test.
type stage struct {
	t     *testing.T
	store *memory.Store
	bus   *faultstore.Bus
	began time.Time
	all   []*holdfast.Client

	mu    sync.Mutex
	holds []*check.Hold
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, store: memory.New(), began: time.Now()}
	s.bus = faultstore.NewBus(s.store, 1, faultstore.Faults{Delay: time.Millisecond})
	t.Cleanup(s.bus.Close)
	return s
}

func (s *stage) now() time.Duration { return time.Since(s.began) }

// join adds a process with a client of its own.
func (s *stage) join(ttl time.Duration) (*holdfast.Client, *faultstore.Process) {
	s.t.Helper()
	n := len(s.all)
	p := s.bus.Process(fmt.Sprintf("p%d", n))
	c, err := holdfast.New(p, &holdfast.Options{TTL: ttl, RuntimeDir: os.DevNull, Owner: holdfast.Owner{Host: "h", PID: 1 + n, User: "u", Program: "p"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.all = append(s.all, c)
	s.t.Cleanup(func() { c.Close() })
	return c, p
}

// acquire takes a lock and notes until when it is believed in.
func (s *stage) acquire(ctx context.Context, c *holdfast.Client, name string, opts ...holdfast.Option) (*holdfast.Lock, error) {
	asked := s.now()
	l, err := c.Acquire(ctx, name, opts...)
	if err == nil {
		s.note(l, asked)
	}
	return l, err
}

func (s *stage) note(l *holdfast.Lock, asked time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &check.Hold{Name: l.Name(), Slots: l.Slots(), Token: l.Token(), Asked: asked, Granted: s.now(), Ended: 1 << 62}
	s.holds = append(s.holds, h)
	context.AfterFunc(l.Context(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		h.Ended = s.now()
	})
}

func (s *stage) must(c *holdfast.Client, name string, opts ...holdfast.Option) *holdfast.Lock {
	s.t.Helper()
	l, err := s.acquire(s.t.Context(), c, name, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// judge checks what was noted.
func (s *stage) judge() {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var holds []check.Hold
	for _, h := range s.holds {
		holds = append(holds, *h)
	}
	for _, v := range append(check.Windows(holds), check.Tokens(holds)...) {
		s.t.Error(v)
	}
}

// clean closes everyone, sweeps, and fails if anything is left.
func (s *stage) clean() {
	s.t.Helper()
	for _, c := range s.all {
		c.Close()
	}
	s.bus.Settle()
	c, _ := s.join(0)
	for range 7 {
		time.Sleep(holdfast.DefaultTTL)
		if _, err := c.Sweep(s.t.Context()); err != nil {
			s.t.Error(err)
		}
	}
	for _, space := range []driver.Space{driver.Names, driver.Sessions} {
		keys, err := s.store.Keys(s.t.Context(), space, "", 10)
		if err != nil || len(keys) > 0 {
			recs, _ := s.store.Load(s.t.Context(), []driver.Key{{Space: space, Name: keys[0]}}, driver.Fresh)
			s.t.Errorf("left over: %s %q: %s", space, keys, recs[0].Value)
		}
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestTTLIsLoweredWhileAnswersAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		a, pa := s.join(0)
		b, _ := s.join(0)
		if err := b.SetStoreTTL(t.Context(), 30*time.Second); err != nil {
			t.Fatal(err)
		}
		held := s.must(a, "a")
		time.Sleep(25 * time.Second) // two heartbeats; with the third it reads the setting
		if err := b.SetStoreTTL(t.Context(), 4*time.Second); err != nil {
			t.Fatal(err)
		}
		// The next heartbeat is applied, and nothing more is heard.
		for n := len(pa.Calls()) + 2; n < 200; n++ {
			pa.FailAt(n, faultstore.AfterApply)
		}
		s.must(b, "a")
		if held.Err() == nil {
			t.Error("two holders")
		}
		s.judge()
	})
}

func TestBreakOfALivingHolder(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut off %v", cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				a, pa := s.join(0)
				b, _ := s.join(0)
				next, _ := s.join(0)
				held := s.must(a, "a")
				if cut {
					pa.Partition(true)
				}
				info, err := b.Show(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan *holdfast.Lock)
				go func() { got <- s.must(next, "a") }()
				if !cut { // its work stops, then it gives the lock back
					context.AfterFunc(held.Context(), func() { held.Release(context.Background()) })
				}
				began := time.Now()
				err = b.Break(t.Context(), info.Holders[0].Name, info.Holders[0].Token, "test")
				if err != nil && !(cut && errors.Is(err, holdfast.ErrReleased)) { // a waiter may have declared it dead first
					t.Error(err)
				}
				if most := 17 * time.Second; time.Since(began) > most {
					t.Errorf("the break took %v", time.Since(began))
				}
				if !errors.Is(held.Err(), holdfast.ErrLost) {
					t.Errorf("the holder has %v", held.Err())
				}
				l := <-got
				l.Release(t.Context())
				s.judge()
			})
		})
	}
}

func TestBreakOfAWaiterThatIsGrantedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		a, _ := s.join(0)
		w, _ := s.join(0)
		next, _ := s.join(0)
		b, pb := s.join(0)
		held := s.must(a, "a")
		go s.acquire(t.Context(), w, "a")
		time.Sleep(time.Second)
		go s.acquire(t.Context(), next, "a")
		time.Sleep(time.Second)
		info, err := b.Show(t.Context(), "a")
		if err != nil || len(info.Waiters) != 2 {
			t.Fatal(info, err)
		}
		// It is seen waiting; the holder gives back before it is removed.
		n := len(pb.Calls())
		pb.At(n+2, faultstore.BeforeApply, func() {
			held.Release(context.Background())
			time.Sleep(time.Second)
		})
		if err := b.BreakWaiter(within(t, time.Minute), info.Waiters[0], "test"); err != nil && !errors.Is(err, holdfast.ErrReleased) {
			t.Log(err)
		}
		time.Sleep(20 * time.Second)
		s.judge()
	})
}

// A claim stands there, and its session is still on its way: the batch was
// done in part, or the first half of it is late.
func TestAClaimIsSeenBeforeItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		session := strings.Repeat("ab", 16)
		lock := fmt.Sprintf(`{"holders":[{"session":%q,"nr":1,"slots":1,"ttl":20000,"since":1}]}`, session)
		if _, err := s.store.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Space: driver.Names, Name: "a"}, Old: driver.IfEmpty, Value: []byte(lock)}}); err != nil {
			t.Fatal(err)
		}
		b, _ := s.join(0)
		began := time.Now()
		opened := time.AfterFunc(10*time.Second, func() {
			out, err := s.store.CompareAndSwap(context.Background(), []driver.Write{{Key: driver.Key{Space: driver.Sessions, Name: session}, Old: driver.IfEmpty, Value: []byte(`{"ttl":20000,"beat":1,"nonce":"x"}`)}})
			if err != nil || out[0].Won {
				t.Errorf("the session was opened while it was being judged: %v %v", out, err)
			}
		})
		defer opened.Stop()
		l := s.must(b, "a")
		if took := time.Since(began); took < 20*time.Second || took > 23*time.Second {
			t.Errorf("taken over after %v", took)
		}
		l.Release(t.Context())
		b.Close()
		s.clean()
	})
}

func TestSetsCrossSingles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		var all sync.WaitGroup
		for i := range 6 {
			c, _ := s.join(0)
			all.Go(func() {
				for n := range 6 {
					asked := s.now()
					var locks []*holdfast.Lock
					var release func(context.Context) error
					var err error
					names := []string{"a", "b", "c", "d"}
					if i%2 == 0 {
						var set *holdfast.LockSet
						if set, err = c.AcquireAll(within(t, 5*time.Minute), []string{names[(i+n)%4], names[(i+3*n+1)%4], names[(n+2)%4]}); err == nil {
							locks, release = set.Locks(), set.Release
						}
					} else {
						var l *holdfast.Lock
						if l, err = c.Acquire(within(t, 5*time.Minute), names[(i+n)%4]); err == nil {
							locks, release = []*holdfast.Lock{l}, l.Release
						}
					}
					if err != nil {
						t.Error(err)
						return
					}
					seen := map[*holdfast.Lock]bool{}
					for _, l := range locks {
						if !seen[l] {
							seen[l] = true
							s.note(l, asked)
						}
					}
					time.Sleep(20 * time.Millisecond)
					if err := release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if s.now() > time.Minute {
			t.Errorf("it took %v", s.now())
		}
		s.judge()
	})
}

func TestTenDeadAheadCostOneTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		var dead []*faultstore.Process
		for i := range 11 { // the holder, and ten in line
			c, p := s.join(10 * time.Second)
			dead = append(dead, p)
			if i == 0 {
				s.must(c, "a")
			} else {
				go c.Acquire(t.Context(), "a")
				time.Sleep(100 * time.Millisecond)
			}
		}
		next, _ := s.join(10 * time.Second)
		began := time.Now()
		for _, p := range dead {
			p.Crash()
		}
		s.must(next, "a")
		if took := time.Since(began); took > 13*time.Second {
			t.Errorf("it took %v", took)
		}
		s.judge()
	})
}

// intercepted is the way to the store of a process, with an eye on its writes.
type intercepted struct {
	*faultstore.Process
	before func(driver.Write)
}

func (i intercepted) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	for _, w := range writes {
		i.before(w)
	}
	return i.Process.CompareAndSwap(ctx, writes)
}

// A heartbeat that was long on its way arrives between the last look of an observer
// and its tombstone: the session lives, and is watched anew.
func TestLateHeartbeatBeatsDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		a, pa := s.join(0)
		s.must(a, "a")
		pa.Crash()
		var beat time.Time
		var arrive sync.Once
		way := intercepted{s.bus.Process("judge"), func(w driver.Write) {
			if w.Key.Space != driver.Sessions {
				return
			}
			if rec, err := check.ReadSession(string(w.Value)); err != nil || rec.Dead == 0 {
				return
			}
			arrive.Do(func() {
				beat = time.Now()
				late := []byte(`{"ttl":15000,"beat":2,"nonce":"late"}`)
				if out, err := s.store.CompareAndSwap(t.Context(), []driver.Write{{Key: w.Key, Old: w.Old, Value: late}}); err != nil || !out[0].Won {
					t.Error("the late heartbeat did not win", out, err)
				}
			})
		}}
		b, err := holdfast.New(way, &holdfast.Options{RuntimeDir: os.DevNull})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		l := s.must(b, "a")
		if beat.IsZero() || time.Since(beat) < holdfast.DefaultTTL {
			t.Errorf("taken over %v after a heartbeat", time.Since(beat))
		}
		l.Release(t.Context())
	})
}

// A process has tokens left in its shared claim, and another process waits to
// write: readers that come later wait behind it.
func TestReadersDoNotJoinPastAWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		first, _ := s.join(0)
		readers, _ := s.join(0)
		writer, _ := s.join(0)
		held := s.must(first, "a")
		gone, leave := context.WithCancel(t.Context())
		inside := make(chan *holdfast.Lock, 10)
		for i := range 4 {
			ctx := t.Context()
			if i > 1 {
				ctx = gone
			}
			go func() {
				if l, err := s.acquire(ctx, readers, "a", holdfast.Shared()); err == nil {
					inside <- l
				}
			}()
		}
		time.Sleep(time.Second)
		leave()
		held.Release(t.Context())
		a, b := <-inside, <-inside
		if a.Token() > b.Token() {
			a, b = b, a
		}
		b.Release(t.Context())
		order := make(chan string, 2)
		go func() {
			l := s.must(writer, "a")
			order <- "writer"
			l.Release(context.Background())
		}()
		time.Sleep(time.Second)
		go func() {
			l := s.must(readers, "a", holdfast.Shared())
			order <- "reader"
			l.Release(context.Background())
		}()
		time.Sleep(time.Second)
		a.Release(t.Context())
		if first := <-order; first != "writer" {
			t.Errorf("the %s went in first", first)
		}
		<-order
		s.judge()
	})
}

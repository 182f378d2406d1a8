package holdfast_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
)

// A clockless store has no clock that its users share.
type clockless struct{ *memory.Store }

func (s clockless) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	recs, err := s.Store.Load(ctx, keys, how)
	for i := range recs {
		recs[i].Age = -1
	}
	return recs, err
}

func (s clockless) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	outs, err := s.Store.CompareAndSwap(ctx, writes)
	for i := range outs {
		outs[i].Record.Age = -1
	}
	return outs, err
}

// stores are one with a clock and one without, both in memory.
func stores() map[string]driver.Store {
	m := memory.New()
	return map[string]driver.Store{"with a clock": m, "without a clock": clockless{memory.New()}}
}

// onBoth plays in a bubble with each of stores.
func onBoth(t *testing.T, play func(t *testing.T, s driver.Store)) {
	for _, kind := range []string{"with a clock", "without a clock"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(t, stores()[kind]) })
		})
	}
}

// tries asks every so often in a client of its own, as a cron job does, and returns how
// long it took to get the lock, which it must, or most.
func tries(t *testing.T, s driver.Store, o holdfast.Options, every, most time.Duration, must bool) time.Duration {
	t.Helper()
	began := time.Now()
	for time.Since(began) < most {
		c := newClient(t, s, &o)
		l, err := c.TryAcquire(t.Context(), "a")
		took := time.Since(began)
		if err == nil {
			l.Release(t.Context())
		} else if !errors.Is(err, holdfast.ErrHeld) {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if l != nil {
			return took
		}
		time.Sleep(every)
	}
	if must {
		t.Fatalf("no try got the lock within %v", most)
	}
	return most
}

// Processes that only ask once get in when the grace of a dead holder is over, each of
// them seeing its tombstone for the first time.
func TestGraceOfTries(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		const ttl, grace = 2 * time.Second, 5 * time.Second
		cut := &wire.Cut{Store: s}
		holder := newClient(t, cut, &holdfast.Options{TTL: ttl, Grace: grace})
		if _, err := holder.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		cut.Off.Store(true)
		took := tries(t, s, holdfast.Options{TTL: ttl}, 300*time.Millisecond, 2*time.Minute, true)
		most := 4 * (ttl + grace)
		if recs, err := s.Load(t.Context(), []driver.Key{driver.Names.Key("a")}, driver.Fresh); err != nil || recs[0].Age >= 0 {
			most = 2*ttl + grace + ttl/2 // each knows since when the tombstone stands
		}
		if took < ttl*2/3+grace || took > most {
			t.Errorf("a try got the lock %v after its holder was cut off (TTL %v, grace %v)", took, ttl, grace)
		}
		holder.Close()
	})
}

// Processes that only ask once get in when the time of a hold without a process is over.
func TestTriesOutlastDetached(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		const d = time.Minute
		o := holdfast.Options{RuntimeDir: filepath.Join(t.TempDir(), "run")}
		c := newClient(t, s, &o)
		defer c.Close()
		claim, err := c.AcquireFor(t.Context(), "a", d)
		if err != nil {
			t.Fatal(err)
		}
		if early := d - time.Until(claim.Ends); early < -10*time.Millisecond || early > time.Second {
			t.Errorf("it ends %v before it was to", early)
		}
		if took := tries(t, s, o, 10*time.Second, 10*time.Minute, true); took < d || took > d+30*time.Second {
			t.Errorf("a try got the lock after %v", took)
		}
	})
}

// No step of the store's clock ends a grace, or a hold without a process, before its time:
// neither for those who ask once nor for those who wait.
func TestNoStepEndsThem(t *testing.T) {
	for _, waits := range []bool{false, true} {
		for kind, take := range map[string]func(t *testing.T, s driver.Store) (ends time.Time){
			"a hold without a process": func(t *testing.T, s driver.Store) time.Time {
				c := newClient(t, s, nil)
				defer c.Close()
				claim, err := c.AcquireFor(t.Context(), "a", time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				return claim.Ends
			},
			"grace": func(t *testing.T, s driver.Store) time.Time {
				const ttl = 2 * time.Second
				cut := &wire.Cut{Store: s}
				holder := newClient(t, cut, &holdfast.Options{TTL: ttl, Grace: time.Hour})
				if _, err := holder.Acquire(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				cut.Off.Store(true)
				ends := time.Now().Add(ttl*2/3 + time.Hour)
				time.Sleep(2 * ttl)
				tries(t, s, holdfast.Options{TTL: ttl}, time.Second, 4*time.Second, false) // finds it dead
				holder.Close()
				return ends
			},
		} {
			t.Run(fmt.Sprint(kind, ", waited for: ", waits), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bus := faultstore.NewBus(memory.New(), 1, faultstore.Faults{})
					defer bus.Close()
					n := 0
					process := func() driver.Store { n++; return bus.Process(fmt.Sprint(n)).Plain() }
					began := time.Now()
					ends := take(t, process())
					time.Sleep(time.Second)
					bus.Jump(2 * time.Hour)
					if waits {
						c := newClient(t, process(), nil)
						defer c.Close()
						if _, err := c.Acquire(t.Context(), "a"); err != nil {
							t.Error(err)
						}
					} else {
						tries(t, process(), holdfast.Options{}, time.Minute, 3*time.Hour, true)
					}
					if early := time.Until(ends); early > 0 {
						t.Errorf("another has the lock %v after it was taken, %v early", time.Since(began), early)
					}
				})
			})
		}
	}
}

// The write that leaves a hold alone may be applied and its answer be lost or late: nobody
// has the lock before the time that AcquireFor gives, and that is not much less than was
// asked for.
func TestDetachedAnswerIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 20 * time.Second
		s := &lateBeats{Store: memory.New(), takes: 4 * time.Second, times: 2}
		c := newClient(t, s, nil)
		defer c.Close()
		claim, err := c.AcquireFor(t.Context(), "a", d)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(claim.Ends); left < d-time.Second || left > d+10*time.Millisecond {
			t.Errorf("it is left alone for %v, and ends in %v", d, left)
		}
		other := newClient(t, s, nil)
		defer other.Close()
		for { // a wait may take two seconds longer to notice
			_, err := other.TryAcquire(t.Context(), "a")
			if err == nil {
				break
			}
			if !errors.Is(err, holdfast.ErrHeld) {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if early := time.Until(claim.Ends); early > 0 {
			t.Errorf("another has the lock %v early", early)
		}
	})
}

// A hold that is extended ends d after the write that did so was sent, however late the answers
// are by which its caller learns of it; and a hold that is looked at ends no later by that.
func TestExtendedAnswersAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 20 * time.Second
		s := &lateLoads{Store: memory.New()}
		c := newClient(t, s, nil)
		defer c.Close()
		claim, err := c.AcquireFor(t.Context(), "a", d)
		if err != nil {
			t.Fatal(err)
		}
		s.takes = 2 * time.Second
		if claim, err = c.ExtendToken(t.Context(), "a", claim.Token, d); err != nil {
			t.Fatal(err)
		}
		if late := claim.Ends.Sub(s.wrote.Add(d)); late > 0 || late < -time.Second {
			t.Errorf("it ends %v after %v from the write", late, d)
		}
		s.takes = 0
		h, err := c.Enter(t.Context(), holdfast.HoldRequest{ID: strings.Repeat("1f", 16), Names: []string{"b"}, For: d})
		if err != nil || !h.Held {
			t.Fatalf("%+v, %v", h, err)
		}
		wrote := s.wrote
		s.takes = 2 * time.Second
		if h, err = c.Hold(t.Context(), "", h.ID); err != nil {
			t.Fatal(err)
		}
		if late := h.Ends.Sub(wrote.Add(d)); late > time.Second/10 {
			t.Errorf("a hold that was looked at ends %v after %v from its write", late, d)
		}
	})
}

// A lateLoads answers late what it has read, and remembers its last write.
type lateLoads struct {
	driver.Store
	takes time.Duration
	wrote time.Time
}

func (s *lateLoads) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	recs, err := s.Store.Load(ctx, keys, how)
	time.Sleep(s.takes)
	return recs, err
}

func (s *lateLoads) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	if w[0].Key.Space == driver.Sessions {
		s.wrote = time.Now()
	}
	return s.Store.CompareAndSwap(ctx, w)
}

// A lateBeats answers the first heartbeats that leave a hold alone late.
type lateBeats struct {
	driver.Store
	takes time.Duration
	times int
}

func (s *lateBeats) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	outs, err := s.Store.CompareAndSwap(ctx, w)
	if v := string(w[0].Value); s.times > 0 && strings.Contains(v, `"detached":true`) && !strings.Contains(v, `"dead":`) {
		s.times--
		time.Sleep(s.takes)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return outs, err
}

// A client that tries once, again and again, after the store's clock has leapt, takes nothing from a
// holder that sends its heartbeats.
func TestTriesAfterALeap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 14 * time.Second
		bus := faultstore.NewBus(memory.New(), 1, faultstore.Faults{})
		defer bus.Close()
		holder := newClient(t, bus.Process("holder").Plain(), &holdfast.Options{TTL: ttl})
		defer holder.Close()
		l, err := holder.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for n := range 20 * 7 {
			if n%7 == 3 {
				bus.Jump(2 * ttl)
			}
			c := newClient(t, bus.Process(fmt.Sprint(n)).Plain(), &holdfast.Options{TTL: ttl})
			if _, err := c.TryAcquire(t.Context(), "a"); !errors.Is(err, holdfast.ErrHeld) {
				t.Fatalf("try %d: %v, want ErrHeld", n, err)
			}
			c.Close()
			time.Sleep(ttl / 7)
		}
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A tombstone stays for two TTLs, since a write that knows nothing of it may be late.
func TestTombstoneStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		s := memory.New()
		cut := &wire.Cut{Store: s}
		holder, sweeper := newClient(t, cut, &holdfast.Options{TTL: ttl}), newClient(t, s, nil)
		defer sweeper.Close()
		if _, err := holder.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		cut.Off.Store(true)
		left := func() int {
			ids, err := s.Keys(t.Context(), driver.Sessions, "", 10)
			if err != nil {
				t.Fatal(err)
			}
			return len(ids)
		}
		sweeper.Sweep(t.Context())
		time.Sleep(ttl)
		for range 3 { // finds it dead, voids its claim, and has nothing to void
			sweeper.Sweep(t.Context())
			time.Sleep(ttl / 4)
			if left() != 1 {
				t.Fatal("the tombstone was removed within two TTLs")
			}
		}
		time.Sleep(2 * ttl)
		sweeper.Sweep(t.Context())
		if left() != 0 {
			t.Error("the tombstone is there after three TTLs")
		}
		holder.Close()
	})
}

// A waiting claim that was broken has done nothing, so no grace keeps it in the line: it
// leaves by itself, also if whoever broke it is gone.
func TestBrokenWaiterHasNoGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		holder, waiter := newClient(t, s, nil), newClient(t, s, &holdfast.Options{Grace: time.Hour})
		defer holder.Close()
		defer waiter.Close()
		if _, err := holder.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 1)
		go func() { _, err := waiter.Acquire(t.Context(), "a"); told <- err }()
		time.Sleep(time.Second)
		breaker := newClient(t, onlySessions{s}, nil)
		defer breaker.Close()
		info, err := breaker.Show(t.Context(), "a")
		if err != nil || len(info.Waiters) != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		go breaker.BreakWaiter(t.Context(), info.Waiters[0], "test")
		if err := <-told; !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the waiter is told %v, want ErrLost", err)
		}
		time.Sleep(time.Second)
		if info, err := holder.Show(t.Context(), "a"); err != nil || len(info.Waiters) != 0 {
			t.Errorf("in line are %+v, %v", info.Waiters, err)
		}
	})
}

// An onlySessions does not answer writes of names.
type onlySessions struct{ driver.Store }

func (s onlySessions) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	if w[0].Key.Space == driver.Names {
		return nil, errors.New("no answer")
	}
	return s.Store.CompareAndSwap(ctx, w)
}

// A hold is left alone for as long as was asked for also if a heartbeat is being prepared
// at that moment, with the TTL that sessions have.
func TestDetachedDuringABeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowSettings{Store: memory.New()}
		holder := newClient(t, s.Store, nil)
		c := newClient(t, s, &holdfast.Options{Trace: &holdfast.Trace{Heartbeat: func(context.Context, holdfast.Event) {
			time.Sleep(time.Millisecond) // whoever waits for the heartbeat goes on first
		}}})
		defer holder.Close()
		defer c.Close()
		l, err := holder.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		s.third = func() { l.Release(t.Context()) }
		claim, err := c.AcquireFor(t.Context(), "a", 3*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(claim.Ends); left < 2*time.Second || left > 3010*time.Millisecond {
			t.Errorf("a hold for 3s ends in %v", left)
		}
	})
}

// A slowSettings takes a while to read a setting, and calls third meanwhile, the third
// time: once to open a session, twice for heartbeats.
type slowSettings struct {
	*memory.Store
	reads int
	third func()
}

func (s *slowSettings) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if keys[0].Space == driver.Settings {
		if s.reads++; s.reads == 3 {
			go s.third()
		}
		time.Sleep(200 * time.Millisecond)
	}
	return s.Store.Load(ctx, keys, how)
}

// waits asks for "a" in a client of its own, and says how long after now it got it.
func waits(t *testing.T, s driver.Store) <-chan time.Duration {
	c := newClient(t, s, nil)
	began, got := time.Now(), make(chan time.Duration, 1)
	var waiting sync.WaitGroup
	t.Cleanup(waiting.Wait)
	waiting.Go(func() {
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Error(err)
		} else {
			defer l.Release(t.Context())
		}
		got <- time.Since(began)
	})
	return got
}

// To release a dead program by its token does not end its grace, nor does it take a claim
// whose session has no record yet; a hold without a process that is released has none.
func TestReleaseTokenLeavesGrace(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		const ttl, grace = 2 * time.Second, time.Minute
		cut := &wire.Cut{Store: s}
		holder := newClient(t, cut, &holdfast.Options{TTL: ttl, Grace: grace})
		defer holder.Close()
		l, err := holder.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		cut.Off.Store(true)
		next := waits(t, s)
		time.Sleep(10 * time.Second)
		other := newClient(t, s, &holdfast.Options{Grace: grace})
		defer other.Close()
		if err := other.ReleaseToken(t.Context(), "a", l.Token()); !errors.Is(err, holdfast.ErrReleased) {
			t.Errorf("release of a dead program: %v", err)
		}
		if took := <-next; took < grace {
			t.Errorf("the next holder was in after %v, want %v of grace at least", took, grace)
		}
		time.Sleep(time.Second)
		claim, err := other.AcquireFor(t.Context(), "a", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		next = waits(t, s)
		if err := other.ReleaseToken(t.Context(), "a", claim.Token); err != nil {
			t.Error(err)
		}
		if took := <-next; took > 10*time.Second {
			t.Errorf("after a release in order the next holder was in after %v", took)
		}
	})
}

// Close does not give back, before its grace, what a function holds that has not returned.
func TestGraceOfAFunction(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		const ttl, grace = 2 * time.Second, time.Minute
		holder := newClient(t, s, &holdfast.Options{TTL: ttl, Grace: grace})
		in, end := make(chan bool), make(chan bool)
		go holder.Do(t.Context(), "a", func(context.Context, *holdfast.Lock) error {
			close(in)
			<-end
			return nil
		})
		<-in
		next, began := waits(t, s), time.Now()
		if holder.Close() == nil {
			t.Error("Close says nothing of a function that has not returned")
		}
		if took := time.Since(began); took > ttl+time.Second {
			t.Errorf("Close took %v", took)
		}
		if took := <-next; took < grace || took > grace+10*time.Second {
			t.Errorf("the next holder was in after %v, want %v of grace", took, grace)
		}
		close(end)
	})
}

// Whoever only asks once gets in when a grace, or a hold without a process, is over, also
// where those who wrote that had a wall clock that was an hour ahead.
func TestTriesByAWrongWallClock(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		const ttl, grace, d = 2 * time.Second, 20 * time.Second, time.Minute
		o := holdfast.Options{TTL: ttl, Grace: grace, RuntimeDir: filepath.Join(t.TempDir(), "run")}
		ahead := &wire.Cut{Store: &aheadStore{s}}
		c := newClient(t, ahead, &o)
		defer c.Close()
		if _, err := c.AcquireFor(t.Context(), "a", d); err != nil {
			t.Fatal(err)
		}
		if took := tries(t, s, o, 5*time.Second, 2*time.Hour, false); took < d+grace || took > 2*(d+grace) {
			t.Errorf("after a hold for %v and a grace of %v a try got the lock after %v", d, grace, took)
		}
		if _, clock := s.(*memory.Store); !clock {
			return // no clock is right
		}
		if _, err := c.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		ahead.Off.Store(true)
		other := newClient(t, &aheadStore{s}, &o)
		began := time.Now()
		for time.Since(began) < 4*ttl { // it writes the tombstone
			if _, err := other.TryAcquire(t.Context(), "a"); err == nil {
				t.Fatal("without a grace")
			}
			time.Sleep(time.Second / 2)
		}
		other.Close() // else it sweeps
		tries(t, s, o, 5*time.Second, 2*time.Hour, false)
		if took := time.Since(began); took < grace || took > 5*grace {
			t.Errorf("with a grace of %v a try got the lock after %v", grace, took)
		}
	})
}

// What comes by an aheadStore is dated by a wall clock that is an hour ahead.
type aheadStore struct{ driver.Store }

func (s *aheadStore) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	for i, w := range writes {
		var rec map[string]any
		if w.Key.Space != driver.Sessions || json.Unmarshal(w.Value, &rec) != nil {
			continue
		}
		for _, at := range []string{"at", "dead"} {
			if _, ok := rec[at]; ok {
				rec[at] = time.Now().Add(time.Hour).UnixMicro()
			}
		}
		writes[i].Value, _ = json.Marshal(rec)
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

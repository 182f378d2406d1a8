package holdfast_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// What is wrong with two locks that stand on a database as these do: with that of
// Gerrit's global-refdb as it was first described, G1 to G14, and with spindle's,
// S1 to S14. Each hole has a test that fails when the rule that closes it is taken
// out. Those that have none of their name:
//
//	G4   read first, written then   no store reads first: "race to follow" and "race and go on" of drivertest.Run,
//	                                TestBatchComparesVersions (postgres, mysql); the fence: TestFenceIsolation
//	                                (postgres), TestFenceUnderSnapshotIsolation (mysql)
//	G12  a released row forgets     TestTokens, and TestHoleG6TokensOnlyGrow
//	     its token
//	G14  no queue, a herd           TestFIFOAcrossClients, TestHandOffCost
//	S4   a heartbeat that names     that of G3
//	     no token
//	S5   a prefix is cleaned up     that of G13
//	S8   a token without order      that of G6; of terms: TestElection
//	S10  names are pasted in SQL    that of G13, and "strange keys" of drivertest.Run
//	S11  a release frees nothing    TestPolling
//	S14  the published schema       TestSchema and TestVersions (postgres), TestSchema and TestOpenRefuses
//	     lacks a column             (sqlite), TestVerify (mysql, spanner), TestTableRefused (cassandra)
//
// There is no reclaim row that could be left over (G5, G13, S1): whoever takes a
// lock over writes a tombstone, under the random name of the session, in a space
// of its own, and it bars nobody. Clocks that step on real servers are in
// verify/chaos, processes that freeze in verify/process.

// A stage is a store and a client that looks at it.
type stage struct {
	*testing.T
	store *memory.Store
	look  *holdfast.Client
}

func play(t *testing.T, act func(t *testing.T, s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{T: t, store: memory.New()}
		s.look = s.told()
		act(t, s)
	})
}

// told is a process that nothing stands in the way of, and that is told of changes.
func (s *stage) told() *holdfast.Client {
	c := newClient(s.T, s.store, nil)
	s.Cleanup(func() { c.Close() })
	return c
}

// join is a process and its way to the store.
func (s *stage) join() (*holdfast.Client, *wire) {
	way := &wire{cutStore: cutStore{Store: s.store}}
	c := newClient(s.T, way, nil)
	s.Cleanup(func() { c.Close() })
	return c, way
}

// take has a client take "a", within some time.
func (s *stage) take(c *holdfast.Client, within time.Duration) *holdfast.Lock {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), within)
	defer cancel()
	l, err := c.Acquire(ctx, "a")
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// granted waits for who is in the queue to have the lock.
func (s *stage) granted(got <-chan *holdfast.Lock, within time.Duration) *holdfast.Lock {
	s.Helper()
	select {
	case l := <-got:
		s.holds(l)
		return l
	case <-time.After(within):
		s.Fatalf("who waits has nothing after %v", within)
	}
	return nil
}

// refused has a client try to take "a", which is held.
func (s *stage) refused(c *holdfast.Client) {
	s.Helper()
	if _, err := c.TryAcquire(s.Context(), "a"); !errors.Is(err, holdfast.ErrHeld) {
		s.Fatalf("a try to take what another holds: %v, want ErrHeld", err)
	}
}

// holds fails unless a lock is held, and the store shows it so.
func (s *stage) holds(l *holdfast.Lock) {
	s.Helper()
	info, err := s.look.Show(s.Context(), l.Name())
	if err != nil {
		s.Fatal(err)
	}
	if l.Err() != nil || len(info.Holders) != 1 || info.Holders[0].Token != l.Token() {
		s.Fatalf("token %d has to hold %q: its holder has %v, and in the store are %+v", l.Token(), l.Name(), l.Err(), info.Holders)
	}
}

// lost fails unless a lock has been lost.
func (s *stage) lost(l *holdfast.Lock) {
	s.Helper()
	if !errors.Is(l.Err(), holdfast.ErrLost) {
		s.Fatalf("token %d: %v, want ErrLost", l.Token(), l.Err())
	}
}

// record is what a key holds.
func (s *stage) record(k driver.Key) driver.Record {
	s.Helper()
	recs, err := s.store.Load(s.Context(), []driver.Key{k}, driver.Fresh)
	if err != nil {
		s.Fatal(err)
	}
	return recs[0]
}

// sweep has everything removed that is no more needed.
func (s *stage) sweep() {
	s.Helper()
	for range 6 {
		if _, err := s.look.Sweep(s.Context()); err != nil {
			s.Fatal(err)
		}
		time.Sleep(holdfast.DefaultTTL)
	}
	if _, err := s.store.Sweep(s.Context(), 0); err != nil {
		s.Fatal(err)
	}
}

// A wire is the way of a process to the store. What is on its way goes on,
// whatever becomes of the context of its call.
type wire struct {
	cutStore

	mu     sync.Mutex
	aged   func(age time.Duration) time.Duration // what a record's age looks like
	looked func(driver.Key)                      // the first key of a Load that was answered
	meet   meeting                               // writes, on their way
}

type (
	sending func() ([]driver.Outcome, error)
	meeting func(writes []driver.Write, send sending) ([]driver.Outcome, error)
)

func (w *wire) setMeet(f meeting)                           { w.mu.Lock(); w.meet = f; w.mu.Unlock() }
func (w *wire) setAged(f func(time.Duration) time.Duration) { w.mu.Lock(); w.aged = f; w.mu.Unlock() }
func (w *wire) setLooked(f func(driver.Key))                { w.mu.Lock(); w.looked = f; w.mu.Unlock() }

func (w *wire) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	recs, err := w.cutStore.Load(context.WithoutCancel(ctx), keys, how)
	w.mu.Lock()
	aged, looked := w.aged, w.looked
	w.mu.Unlock()
	for i := range recs {
		if aged != nil {
			recs[i].Age = aged(recs[i].Age)
		}
	}
	if looked != nil {
		looked(keys[0])
	}
	return recs, err
}

func (w *wire) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	send := func() ([]driver.Outcome, error) {
		return w.cutStore.CompareAndSwap(context.WithoutCancel(ctx), writes)
	}
	w.mu.Lock()
	meet := w.meet
	w.mu.Unlock()
	if meet == nil {
		return send()
	}
	return meet(writes, send)
}

// Kinds of writes.
func isClaim(w driver.Write) bool  { return w.Key.Space == driver.Names }
func isBurial(w driver.Write) bool { return strings.Contains(string(w.Value), `"dead":`) }
func isBeat(w driver.Write) bool   { return w.Key.Space == driver.Sessions && !isBurial(w) }

const always = 1 << 30

// keep keeps the next n writes of a kind back. Who sent them does not know what
// became of them.
func (w *wire) keep(kind func(driver.Write) bool, n int) *late {
	l := &late{}
	w.setMeet(func(writes []driver.Write, send sending) ([]driver.Outcome, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !kind(writes[0]) || len(l.writes) == n {
			return send()
		}
		l.writes = append(l.writes, writes...)
		return nil, errFails
	})
	return l
}

// count counts the writes of a kind.
func (w *wire) count(kind func(driver.Write) bool) *atomic.Int64 {
	n := &atomic.Int64{}
	w.setMeet(func(writes []driver.Write, send sending) ([]driver.Outcome, error) {
		if kind(writes[0]) {
			n.Add(1)
		}
		return send()
	})
	return n
}

// Late are writes that are still on their way.
type late struct {
	mu     sync.Mutex
	writes []driver.Write
}

// arrive has late writes arrive, and reports whether one of them wins.
func (l *late) arrive(s *stage) (won bool) {
	s.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.writes) == 0 {
		s.Fatal("nothing was kept back")
	}
	for _, w := range l.writes {
		out, err := s.store.CompareAndSwap(s.Context(), []driver.Write{w})
		if err != nil {
			s.Fatal(err)
		}
		won = won || out[0].Won
	}
	return won
}

// lose has late writes arrive, none of which may win.
func (l *late) lose(s *stage) {
	s.Helper()
	if l.arrive(s) {
		s.Fatalf("a late write has won: %+v", l.writes)
	}
}

const beat = holdfast.DefaultTTL / 3

// misjudged is a holder that beats, and one who takes it for dead at its next
// look, since the clock by which it is told of ages has leapt twice. looked is
// called between that look and what follows from it.
func (s *stage) misjudged(looked func()) (held *holdfast.Lock, judge *holdfast.Client, way *wire) {
	a, _ := s.join()
	judge, way = s.join()
	held = s.take(a, time.Second)
	way.setAged(func(age time.Duration) time.Duration { return age + time.Hour })
	s.refused(judge) // and has asked it for a heartbeat
	way.setLooked(func(k driver.Key) {
		if k.Space == driver.Sessions {
			way.setAged(nil)
			way.setLooked(nil)
			looked()
		}
	})
	return held, judge, way
}

// G1: a holder is judged by its last heartbeat, and the next one comes before it is
// buried. Gerrit's compares only the token then, which is the same.
func TestHoleG1LiveLockIsNotStolen(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		held, judge, way := s.misjudged(func() { time.Sleep(beat + time.Second) })
		burial := way.count(isBurial)
		s.refused(judge)
		if burial.Load() == 0 {
			t.Fatal("nobody was taken for dead")
		}
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(held)
	})
}

// S2: who takes a lock over stalls when it has begun, the holder goes on, and then
// the rest comes. Spindle's has deposed a healthy leader then.
func TestHoleS2StalledTakeover(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		held, judge, way := s.misjudged(func() {})
		burial := way.keep(isBurial, 1)
		s.refused(judge)
		time.Sleep(beat + time.Second)
		burial.lose(s)
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(held)
	})
}

// G2: a release that comes late does not remove who holds the lock now, whether its
// sender goes on, and has repeated it, or has died meanwhile.
func TestHoleG2ReleaseHarmsNoStranger(t *testing.T) {
	for _, dies := range []bool{false, true} {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			b, _ := s.join()
			l := s.take(a, time.Second)
			n := 1
			if dies {
				n = always
			}
			release := way.keep(isClaim, n)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := l.Release(ctx); (err != nil) != dies {
				t.Errorf("dies %v: Release: %v", dies, err)
			}
			way.off.Store(dies)
			next := s.take(b, time.Minute)
			release.lose(s)
			s.holds(next)
		})
	}
}

// G3, S4: a heartbeat that comes after its sender was found dead refreshes neither
// it nor anybody else, also when its tombstone has gone.
func TestHoleG3HeartbeatOfTheDead(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, _ := s.join()
		l := s.take(a, time.Second)
		beats := way.keep(isBeat, always)
		next := s.take(b, time.Minute)
		s.lost(l)
		beats.lose(s)
		s.sweep()
		if r := s.record(beats.writes[0].Key); r.Version != 0 {
			t.Fatalf("the tombstone is still there: %s", r.Value)
		}
		beats.lose(s)
		s.holds(next)
	})
}

// halfTaken is a lock whose holder has died, and so has the one who has buried it,
// with its claim still on its way.
func (s *stage) halfTaken() (claim *late) {
	a, wayA := s.join()
	s.take(a, time.Second)
	wayA.off.Store(true)
	time.Sleep(holdfast.DefaultTTL)
	b, wayB := s.join()
	wayB.setMeet(func(writes []driver.Write, send sending) ([]driver.Outcome, error) {
		if isBurial(writes[0]) {
			claim = wayB.keep(func(w driver.Write) bool { return isClaim(w) && w.Old != driver.IfEmpty }, always)
		}
		return send()
	})
	if _, err := b.TryAcquire(s.Context(), "a"); !errors.Is(err, errFails) || claim == nil {
		s.Fatalf("it was not half taken over: %v", err)
	}
	wayB.off.Store(true)
	return claim
}

// S1: who takes a lock over dies between its steps, and the next goes on from
// there, at once. With spindle's nobody could ever again.
func TestHoleS1TakeoverDiesHalfWay(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		s.halfTaken()
		c, _ := s.join()
		l, err := c.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		s.holds(l)
	})
}

// G5: what is left of a takeover that died between its steps goes. Gerrit's leaves a
// row, and it would be in the way of the next who has the same token.
func TestHoleG5NothingIsLeftOfATakeover(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		s.halfTaken()
		s.sweep()
		for _, space := range []driver.Space{driver.Names, driver.Sessions} {
			if names, err := s.store.Keys(t.Context(), space, "", 10); err != nil || len(names) > 0 {
				t.Errorf("left over: %s %q, error %v", space, names, err)
			}
		}
	})
}

// S3: the last step of a takeover comes when others have held the lock since. It
// does not take the token back.
func TestHoleS3TokenDoesNotGoBack(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		claim := s.halfTaken()
		c, d := s.told(), s.told()
		first := s.take(c, time.Second)
		claim.lose(s)
		s.holds(first)
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.sweep()
		claim.lose(s)
		if second := s.take(d, time.Second); second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
	})
}

// G6, G12, S8: tokens grow though the store's clock steps back, rows are removed,
// and tokens that were handed on inside a process run ahead of the clock.
func TestHoleG6TokensOnlyGrow(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		clients := []*holdfast.Client{s.told(), s.told()}
		var last int64
		grant := func(c *holdfast.Client, after string) {
			l, err := c.Acquire(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			if l.Token() <= last {
				t.Errorf("token %d after %s, and %d was given before", l.Token(), after, last)
			}
			last = l.Token()
			l.Release(t.Context())
		}
		removed := func() {
			if _, err := s.store.Sweep(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		back := func() { // the row was written when the clock was an hour ahead
			s.store.Restore(lockA, driver.Record{Version: s.record(lockA).Version + time.Hour.Microseconds()})
		}
		crowd := func() {
			l := s.take(clients[0], time.Second)
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() { grant(clients[0], "a hand-off") })
			}
			synctest.Wait()
			l.Release(t.Context())
			all.Wait()
		}
		for _, between := range []struct {
			what string
			do   func()
		}{
			{"a release", func() {}},
			{"a row was removed", removed},
			{"the clock has gone back", back},
			{"the clock has gone back and the row was removed", func() { back(); removed() }},
			{"a hand-off", crowd},
			{"a hand-off and a sweep", func() { crowd(); s.sweep() }},
		} {
			for _, c := range clients {
				grant(c, between.what)
				between.do()
				grant(c, between.what)
			}
		}
	})
}

// clocks has a holder beat for long, then die, under someone who waits, and
// something done to clocks before.
func clocks(t *testing.T, wrong func(s *stage, way *wire)) {
	play(t, func(t *testing.T, s *stage) {
		a, wayA := s.join()
		b, wayB := s.join()
		c, wayC := s.join()
		l := s.take(a, time.Second)
		got := queue(t, b)
		time.Sleep(2 * time.Second)
		wrong(s, wayB)
		wayC.setAged(wayB.aged)
		for range 8 {
			s.refused(c) // who only asks once is no better a judge
			time.Sleep(holdfast.DefaultTTL / 2)
			s.holds(l)
		}
		wayA.off.Store(true)
		s.granted(got, holdfast.DefaultTTL+2*time.Second)
		s.lost(l)
	})
}

// G7: whatever clock is wrong, who beats keeps its lock, and who is dead does not.
// Gerrit's compares the owner's clock with the observer's.
func TestHoleG7ClocksAreWrong(t *testing.T) {
	for _, leap := range []time.Duration{time.Hour, -time.Hour} {
		clocks(t, func(_ *stage, way *wire) { // the store's has leapt
			at := time.Now()
			way.setAged(func(age time.Duration) time.Duration {
				if age > time.Since(at) { // it was written before
					age = max(0, age+leap)
				}
				return age
			})
		})
		clocks(t, func(s *stage, _ *wire) { // the owner's is wrong
			before := s.record(lockA)
			var rec map[string]any
			if err := json.Unmarshal(before.Value, &rec); err != nil {
				s.Fatal(err)
			}
			rec["holders"].([]any)[0].(map[string]any)["since"] = time.Now().Add(leap).UnixMicro()
			value, err := json.Marshal(rec)
			if err != nil {
				s.Fatal(err)
			}
			if out, err := s.store.CompareAndSwap(s.Context(), []driver.Write{{Key: lockA, Old: before.Version, Value: value}}); err != nil || !out[0].Won {
				s.Fatal(out, err)
			}
		})
	}
}

// S13: a heartbeat that is nothing old, or less, is not one that is too old.
func TestHoleS13AgeOfNothing(t *testing.T) {
	for _, age := range []time.Duration{0, -1, -time.Hour} {
		clocks(t, func(_ *stage, way *wire) {
			way.setAged(func(time.Duration) time.Duration { return age })
		})
	}
}

// G8: the claim was made, and the answer lost. Who waits for it has the lock, and
// if nobody does, it is nobody's; its own process is not in its own way.
func TestHoleG8AnswerIsLost(t *testing.T) {
	for _, waits := range []bool{true, false} {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			b, _ := s.join()
			var lost atomic.Bool
			way.setMeet(func(writes []driver.Write, send sending) ([]driver.Outcome, error) {
				outs, err := send()
				if !lost.Swap(true) {
					return nil, errFails
				}
				return outs, err
			})
			if !waits {
				if _, err := a.TryAcquire(t.Context(), "a"); !errors.Is(err, errFails) {
					t.Errorf("a try without an answer: %v", err)
				}
			}
			for _, c := range []*holdfast.Client{a, b} {
				l := s.take(c, time.Second)
				s.holds(l)
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// G8: the claim is made when who has asked for it has given up. Nothing is held by
// it while its session lives, whether it was to take a free name or to queue.
func TestHoleG8ClaimIsLate(t *testing.T) {
	for _, queues := range []bool{false, true} {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			b := s.told()
			other, err := a.Acquire(t.Context(), "other")
			if err != nil {
				t.Fatal(err)
			}
			var held *holdfast.Lock
			if queues {
				held = s.take(b, time.Second)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			claim := way.keep(func(w driver.Write) bool {
				return isClaim(w) && (w.Old != driver.IfEmpty) == queues && ctx.Err() == nil
			}, always)
			if _, err := a.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the claim was kept back: %v", err)
			}
			time.Sleep(time.Second)
			if won := claim.arrive(s); won == queues {
				t.Errorf("queues %v: the late claim has won: %v", queues, won)
			}
			if queues {
				if err := held.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s.holds(s.take(b, beat+time.Second))
			s.holds(other)
		})
	}
}

// G9: commits are slow, or their answers are. A holder that goes on keeps its lock,
// and one that is cut off has lost it before another has it.
func TestHoleG9SlowCommit(t *testing.T) {
	const slow = beat / 2
	for _, commit := range []bool{true, false} {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			b, _ := s.join()
			cut := time.Now().Add(4 * holdfast.DefaultTTL)
			way.setMeet(func(writes []driver.Write, send sending) ([]driver.Outcome, error) {
				if commit {
					time.Sleep(slow)
				}
				outs, err := send()
				if time.Now().After(cut) {
					way.off.Store(true)
				}
				if !commit {
					time.Sleep(slow)
				}
				return outs, err
			})
			l := s.take(a, 2*slow)
			got := queue(t, b)
			for time.Now().Before(cut) {
				s.holds(l)
				time.Sleep(time.Second)
			}
			s.granted(got, time.Minute)
			s.lost(l)
		})
	}
}

// G10: the work hangs, and the heartbeat goes on. It is for people to say that this
// has lasted too long: a break needs no help of the work, nor more of the breaker
// than to have been told.
func TestHoleG10WorkHangs(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, b := s.told(), s.told()
		l := s.take(a, time.Second)
		got := queue(t, b)
		time.Sleep(time.Hour)
		s.holds(l)
		info, err := s.look.Show(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.look.Break(ctx, info.Holders[0].Name, info.Holders[0].Token, "hangs"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Break of a lock whose work does not end: %v", err)
		}
		s.lost(l)
		s.granted(got, holdfast.DefaultTTL-holdfast.Margin(holdfast.DefaultTTL))
	})
}

// G10: the heartbeat hangs, and nothing else does. The work is told before another
// has the lock.
func TestHoleG10HeartbeatHangs(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, _ := s.join()
		l := s.take(a, time.Second)
		ended := make(chan time.Time, 1)
		context.AfterFunc(l.Context(), func() { ended <- time.Now() })
		hang := make(chan bool)
		defer close(hang)
		way.setMeet(func(writes []driver.Write, send sending) ([]driver.Outcome, error) {
			if isBeat(writes[0]) {
				<-hang
			}
			return send()
		})
		next := s.take(b, time.Minute)
		select {
		case at := <-ended:
			if !at.Before(time.Now()) {
				t.Error("its context ended only when another had the lock")
			}
		default:
			t.Error("its context goes on, and another has the lock")
		}
		s.holds(next)
	})
}

// G11: a holder that froze goes on when another has its lock. It is told, and is
// refused by whoever checks its token; what it had sent comes to nothing.
func TestHoleG11FrozenHolderResumes(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, _ := s.join()
		l := s.take(a, time.Second)
		thaw := make(chan bool)
		way.setMeet(func(_ []driver.Write, send sending) ([]driver.Outcome, error) {
			<-thaw
			return send()
		})
		next := s.take(b, time.Minute)
		var resource holdfast.TokenGate
		if err := resource.Admit(next.Token(), false); err != nil {
			t.Fatal(err)
		}
		close(thaw)
		s.lost(l)
		if err := l.Release(t.Context()); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Release of what was lost: %v", err)
		}
		if _, err := s.record(lockA).Fence("a", l.Token(), 0); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the fence of the store lets the old token in: %v", err)
		}
		if err := resource.Admit(l.Token(), false); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the fence of a resource lets the old token in: %v", err)
		}
		time.Sleep(holdfast.DefaultTTL)
		s.holds(next)
		s.lost(l)
	})
}

// G13, S5, S10: no name is a pattern, a prefix, a row of ours or SQL. All are held
// beside each other, through a takeover, a sweep and a change of the settings.
func TestHoleG13HostileNames(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, c := s.told(), s.told()
		dead := s.take(a, time.Second)
		info, err := s.look.Show(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		names := []string{
			"a_", "a_b", "a%", "A", "a ", "ttl", "sweep", info.Holders[0].Owner.Session,
			fmt.Sprintf("a_%d", dead.Token()), fmt.Sprintf("RECLAIM_a_%d", dead.Token()), "RECLAIM_a",
			`'; delete from holdfast where "name" like 'a%' --`, `a") or 1=1 #`, "\\", "names/a", "../a",
		}
		var held []*holdfast.Lock
		for _, name := range names {
			l, err := b.TryAcquire(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, l)
		}
		s.holds(dead)
		way.off.Store(true)
		next := s.take(c, time.Minute)
		if err := s.look.SetStoreTTL(t.Context(), 2*holdfast.DefaultTTL); err != nil {
			t.Error(err)
		}
		s.sweep()
		time.Sleep(time.Hour) // and all sweep as they do, now and then
		for _, l := range append(held, next) {
			s.holds(l)
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if ttl, err := s.look.StoreTTL(t.Context()); err != nil || ttl != 2*holdfast.DefaultTTL {
			t.Errorf("the setting is %v, error %v", ttl, err)
		}
	})
}

// S6: a row vanishes. Who waits is not wedged by that, and who held it is refused
// by the fence.
func TestHoleS6RowVanishes(t *testing.T) {
	for _, space := range []driver.Space{driver.Names, driver.Sessions} {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			b, _ := s.join()
			l := s.take(a, time.Second)
			got := queue(t, b)
			time.Sleep(time.Second)
			key := lockA
			if space == driver.Sessions {
				info, err := s.look.Show(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				key = driver.Key{Space: space, Name: info.Holders[0].Owner.Session}
				way.off.Store(true) // it cannot tell
			}
			s.store.Restore(key, driver.Record{})
			s.granted(got, holdfast.DefaultTTL+3*time.Second)
			if space == driver.Sessions {
				s.lost(l)
			}
			if _, err := s.record(lockA).Fence("a", l.Token(), 0); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("the fence lets the old token in: %v", err)
			}
		})
	}
}

// S7: work ends with the deadline of its context as with its cancelling, and so does
// the hold. Spindle's heartbeat goes on after a deadline, for nobody.
func TestHoleS7DeadlineEndsTheHold(t *testing.T) {
	for _, deadline := range []bool{true, false} {
		for _, elects := range []bool{true, false} {
			play(t, func(t *testing.T, s *stage) {
				a, b := s.told(), s.told()
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Minute, cancel)
				if deadline {
					ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
				}
				defer cancel()
				began := time.Now()
				work := func(ctx context.Context, _ *holdfast.Lock) error {
					select {
					case <-ctx.Done():
					case <-time.After(time.Hour):
					}
					return nil
				}
				returned := make(chan error, 1)
				go func() {
					if elects {
						returned <- a.Election("a").Run(ctx, work)
					} else {
						returned <- a.Do(ctx, "a", work)
					}
				}()
				synctest.Wait()
				s.holds(s.take(b, 2*time.Hour))
				if took := time.Since(began); took != time.Minute {
					t.Errorf("deadline %v, election %v: the next has the lock after %v, want a minute", deadline, elects, took)
				}
				<-returned
			})
		}
	}
}

// S9: heartbeats may be lost for two thirds of the TTL, and then there is still a
// margin between the end of a holder and the next.
func TestHoleS9Margin(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, _ := s.join()
		l := s.take(a, time.Second)
		if trusted, most := time.Until(l.Deadline()), holdfast.DefaultTTL-holdfast.Margin(holdfast.DefaultTTL); trusted > most {
			t.Errorf("a lock is trusted for %v, want %v at most: who waits counts the whole TTL, by another clock", trusted, most)
		}
		ended := make(chan time.Time, 1)
		context.AfterFunc(l.Context(), func() { ended <- time.Now() })
		got := queue(t, b)
		way.keep(isBeat, always)
		time.Sleep(2 * holdfast.DefaultTTL / 3)
		way.setMeet(nil)
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(l)
		way.off.Store(true)
		s.granted(got, time.Minute)
		if margin := time.Since(<-ended); margin < holdfast.Margin(holdfast.DefaultTTL) {
			t.Errorf("another has the lock %v after its holder has let go, want %v at least", margin, holdfast.Margin(holdfast.DefaultTTL))
		}
	})
}

// S12: HasLock is of now, by the clock, though no timer has run yet that would say
// so: which of those of one instant comes first is chance.
func TestHoleS12HasLockIsOfNow(t *testing.T) {
	for range 20 {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			ctx, cancel := context.WithCancel(t.Context())
			e := a.Election("a")
			returned := make(chan error, 1)
			go func() { returned <- e.Run(ctx, nil) }()
			time.Sleep(time.Second)
			way.off.Store(true)
			l, leads := e.HasLock()
			if !leads {
				t.Fatal("it does not lead")
			}
			end := l.Deadline()
			time.Sleep(time.Until(end) - time.Nanosecond)
			if _, leads := e.HasLock(); !leads {
				t.Error("it does not lead before its time is over")
			}
			time.Sleep(time.Nanosecond)
			if _, leads := e.HasLock(); leads {
				t.Errorf("it leads by a lock that is trusted until %v, and it is %v", end, time.Now())
			}
			cancel()
			<-returned
		})
	}
}

package holdfast_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
)

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
		s.look = s.notified()
		act(t, s)
	})
}

// notified is a process with a direct way to the store, which notifies it of changes.
func (s *stage) notified() *holdfast.Client {
	c := newClient(s.T, s.store, nil)
	s.Cleanup(func() { c.Close() })
	return c
}

// join is a process and its way to the store.
func (s *stage) join() (*holdfast.Client, *wire.Wire) {
	way := wire.New(s.store)
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

const always = 1 << 30

// keep keeps the next n writes of a kind back. Their outcome is ambiguous to the client that sent
// them.
func keep(w *wire.Wire, kind func(driver.Write) bool, n int) *late {
	l := &late{}
	w.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
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
func count(w *wire.Wire, kind func(driver.Write) bool) *atomic.Int64 {
	n := &atomic.Int64{}
	w.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
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
// look, since the clock of the store, by which ages are measured, has leapt twice. looked is
// called between that look and what follows from it.
func (s *stage) misjudged(looked func()) (held *holdfast.Lock, judge *holdfast.Client, way *wire.Wire) {
	a, _ := s.join()
	judge, way = s.join()
	held = s.take(a, time.Second)
	way.SetAged(func(age time.Duration) time.Duration { return age + time.Hour })
	s.refused(judge) // and has asked it for a heartbeat
	way.SetLooked(func(k driver.Key) {
		if k.Space == driver.Sessions {
			way.SetAged(nil)
			way.SetLooked(nil)
			looked()
		}
	})
	return held, judge, way
}

// halfTaken is a lock whose holder has died. The process that declared it dead has died, too,
// while its claim was on the way to the store.
func (s *stage) halfTaken() (claim *late) {
	a, wayA := s.join()
	s.take(a, time.Second)
	wayA.Off.Store(true)
	time.Sleep(holdfast.DefaultTTL)
	b, wayB := s.join()
	wayB.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
		if wire.IsTombstone(writes[0]) {
			claim = keep(wayB, func(w driver.Write) bool { return wire.IsClaim(w) && w.Old != driver.IfEmpty }, always)
		}
		return send()
	})
	if _, err := b.TryAcquire(s.Context(), "a"); !errors.Is(err, errFails) || claim == nil {
		s.Fatalf("it was not half taken over: %v", err)
	}
	wayB.Off.Store(true)
	return claim
}

package holdfast_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/machine"
	"github.com/holdfast-lock/holdfast/memory"
)

// A sleeper is a machine whose first write is done and not answered.
type sleeper struct {
	driver.Store
	m     *machine.Machine
	wrote bool
}

func (s *sleeper) Machine() *machine.Machine { return s.m }

func (s *sleeper) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	outs, err := s.Store.CompareAndSwap(ctx, w)
	if !s.wrote {
		s.wrote = true
		return nil, errFails
	}
	return outs, err
}

// A session that was declared dead before it knew that it had opened does not open once
// its tombstone has been swept: those who read the tombstone hold it for dead for ever.
func TestNoOpeningAfterTheTombstone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		m := machine.New(machine.True, 1)
		a, b := newClient(t, &sleeper{Store: s, m: m}, nil), newClient(t, s, nil)
		defer a.Close()
		defer b.Close()
		gaveUp := make(chan error)
		go func() {
			_, err := a.Acquire(t.Context(), "before")
			gaveUp <- err
		}()
		time.Sleep(time.Millisecond)
		m.Sleep(10 * time.Minute) // as when the lid of a laptop is closed
		l, err := b.Acquire(t.Context(), "before")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if _, err := b.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-gaveUp; err == nil {
			t.Fatal("it holds a lock after ten minutes of sleep")
		}
		first, err := a.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		defer first.Release(t.Context())
		if second, err := b.TryAcquire(t.Context(), "a"); err == nil {
			if first.Err() == nil && second.Err() == nil {
				t.Error("two hold the lock: the session of the first was declared dead, and opened again")
			}
			second.Release(t.Context())
		}
	})
}

// onMachine is a store whose client runs on a machine of its own.
type onMachine struct {
	driver.Store
	m *machine.Machine
}

func (s onMachine) Machine() *machine.Machine { return s.m }

// A machine that wakes up before the trust window has ended sends the heartbeat at once that was due
// while it slept.
func TestBeatsAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine.New(machine.True, 1)
		c := newClient(t, onMachine{memory.New(), m}, &holdfast.Options{TTL: time.Hour})
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		m.Sleep(50 * time.Minute)
		time.Sleep(50*time.Minute + 2*time.Second)
		if left := time.Until(l.Deadline()); l.Err() != nil || left < 50*time.Minute {
			t.Errorf("two seconds after it woke up %v is left of the trust window (%v), want nearly an hour", left, l.Err())
		}
	})
}

// All first heartbeats of a session carry the TTL of its first claim, by which others judge
// it, whatever becomes of the store's setting meanwhile.
func TestOpensWithOneTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		other := newClient(t, s, nil)
		defer other.Close()
		set := func(ttl time.Duration) {
			if err := other.SetStoreTTL(t.Context(), ttl); err != nil {
				t.Fatal(err)
			}
		}
		set(time.Minute)
		sent := 0
		beats := &beatWatch{Store: s, beat: func(ttl time.Duration) error {
			if sent++; sent > 2 {
				return nil
			}
			if ttl != time.Minute {
				t.Errorf("heartbeat %d has a TTL of %v, want a minute", sent, ttl)
			}
			if set(time.Second); sent == 1 {
				return errFails
			}
			return nil
		}}
		c := newClient(t, beats, nil)
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if l.Err() != nil || l.TTL() != time.Second {
			t.Errorf("two minutes later the lock has a TTL of %v (%v), want 1s", l.TTL(), l.Err())
		}
	})
}

// A session without a record is declared dead by the TTL of its claim, also by a sweep of a
// client that has another.
func TestMissingIsJudgedByItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		c := newClient(t, s, &holdfast.Options{TTL: time.Hour})
		defer c.Close()
		if _, err := c.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		ids, err := s.Keys(t.Context(), driver.Sessions, "", 10)
		if err != nil || len(ids) != 1 {
			t.Fatalf("sessions %q: %v", ids, err)
		}
		session := driver.Key{Space: driver.Sessions, Name: ids[0]}
		s.Restore(session, driver.Record{})
		sweeper := newClient(t, s, nil)
		defer sweeper.Close()
		if _, err := sweeper.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		recs, err := s.Load(t.Context(), []driver.Key{session}, driver.Fresh)
		if err != nil || !strings.Contains(string(recs[0].Value), `"ttl":3600000,`) {
			t.Errorf("it was given the record %s (%v), want a TTL of an hour", recs[0].Value, err)
		}
	})
}

package holdfast_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// clocks has a holder beat for long, then die, under someone who waits, and
// something done to clocks before: wrong returns what ages look like to the others.
func clocks(t *testing.T, wrong func(s *stage) func(age time.Duration) time.Duration) {
	play(t, func(t *testing.T, s *stage) {
		a, wayA := s.join()
		b, wayB := s.join()
		c, wayC := s.join()
		l := s.take(a, time.Second)
		got := queue(t, b)
		time.Sleep(2 * time.Second)
		aged := wrong(s)
		wayB.SetAged(aged)
		wayC.SetAged(aged)
		for range 8 {
			s.refused(c) // who only asks once is no better a judge
			time.Sleep(holdfast.DefaultTTL / 2)
			s.holds(l)
		}
		wayA.Off.Store(true)
		s.granted(got, holdfast.DefaultTTL+2*time.Second)
		s.lost(l)
	})
}

// G7: whatever clock is wrong, who beats keeps its lock, and who is dead does not.
// Gerrit's compares the owner's clock with the observer's.
func TestHoleG7ClocksAreWrong(t *testing.T) {
	for _, leap := range []time.Duration{time.Hour, -time.Hour} {
		clocks(t, func(*stage) func(time.Duration) time.Duration { // the store's has leapt
			at := time.Now()
			return func(age time.Duration) time.Duration {
				if age > time.Since(at) { // it was written before
					age = max(0, age+leap)
				}
				return age
			}
		})
		clocks(t, func(s *stage) func(time.Duration) time.Duration { // the owner's is wrong
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
			return nil
		})
	}
}

// S13: a heartbeat that is nothing old, or less, is not one that is too old.
func TestHoleS13AgeOfNothing(t *testing.T) {
	for _, age := range []time.Duration{0, -1, -time.Hour} {
		clocks(t, func(*stage) func(time.Duration) time.Duration {
			return func(time.Duration) time.Duration { return age }
		})
	}
}

// G10: the work hangs, and the heartbeat goes on. It is for people to say that this
// has lasted too long: a break needs no help of the work, nor more of the breaker
// than to have been told.
func TestHoleG10WorkHangs(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, b := s.notified(), s.notified()
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

// G10: the heartbeat hangs, and nothing else does. The context of the work ends
// before another process has the lock.
func TestHoleG10HeartbeatHangs(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, _ := s.join()
		l := s.take(a, time.Second)
		ended := make(chan time.Time, 1)
		context.AfterFunc(l.Context(), func() { ended <- time.Now() })
		hang := make(chan bool)
		defer close(hang)
		way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			if wire.IsBeat(writes[0]) {
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

// G11: a holder that froze goes on when another has its lock. It learns so, and is
// refused by whoever checks its token; what it had sent comes to nothing.
func TestHoleG11FrozenHolderResumes(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, _ := s.join()
		l := s.take(a, time.Second)
		thaw := make(chan bool)
		way.SetMeet(func(_ []driver.Write, send wire.Send) ([]driver.Outcome, error) {
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

// S7: work ends with the deadline of its context as with its cancelling, and so does
// the hold. Spindle's heartbeat goes on after a deadline, for nobody.
func TestHoleS7DeadlineEndsTheHold(t *testing.T) {
	for _, deadline := range []bool{true, false} {
		for _, elects := range []bool{true, false} {
			play(t, func(t *testing.T, s *stage) {
				a, b := s.notified(), s.notified()
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
		keep(way, wire.IsBeat, always)
		time.Sleep(2 * holdfast.DefaultTTL / 3)
		way.SetMeet(nil)
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(l)
		way.Off.Store(true)
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
			way.Off.Store(true)
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

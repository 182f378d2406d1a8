package holdfast_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// G8: the claim was made, and the answer lost. If the process still waits, it has the lock. If it
// does not, nobody has, and the process is not in its own way.
func TestHoleG8AnswerIsLost(t *testing.T) {
	for _, waits := range []bool{true, false} {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			b, _ := s.join()
			var lost atomic.Bool
			way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
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
			b := s.notified()
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
			claim := keep(way, func(w driver.Write) bool {
				return wire.IsClaim(w) && (w.Old != driver.IfEmpty) == queues && ctx.Err() == nil
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
			way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
				if commit {
					time.Sleep(slow)
				}
				outs, err := send()
				if time.Now().After(cut) {
					way.Off.Store(true)
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

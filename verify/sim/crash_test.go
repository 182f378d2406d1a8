package sim_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/faultstore"
)

// crashes is a table of what a process is at when it dies. before sets the
// stage; what the victim does is repeated for each of its calls to the store.
var crashes = []struct {
	name   string
	before func(s *stage)
	victim func(ctx context.Context, s *stage, c *holdfast.Client)
}{
	{"acquire", nil, func(ctx context.Context, s *stage, c *holdfast.Client) {
		c.Acquire(ctx, "a")
	}},
	{"renew", nil, func(ctx context.Context, s *stage, c *holdfast.Client) {
		c.Acquire(ctx, "a")
		time.Sleep(11 * time.Second)
	}},
	{"release", nil, func(ctx context.Context, s *stage, c *holdfast.Client) {
		if l, err := c.Acquire(ctx, "a"); err == nil {
			l.Release(ctx)
		}
	}},
	{"close", nil, func(ctx context.Context, s *stage, c *holdfast.Client) {
		c.Acquire(ctx, "a")
		c.Close()
	}},
	{"declare dead", func(s *stage) {
		c, p := s.join(0)
		s.must(c, "a")
		p.Crash()
	}, func(ctx context.Context, s *stage, c *holdfast.Client) {
		if l, err := c.Acquire(ctx, "a"); err == nil {
			l.Release(ctx)
		}
	}},
	{"break", func(s *stage) {
		c, _ := s.join(0)
		l := s.must(c, "a")
		context.AfterFunc(l.Context(), func() { l.Release(context.Background()) })
		time.AfterFunc(10*time.Second, func() { l.Release(context.Background()) })
	}, func(ctx context.Context, s *stage, c *holdfast.Client) {
		if info, err := c.Show(ctx, "a"); err == nil && len(info.Holders) > 0 {
			c.Break(ctx, info.Holders[0].Name, info.Holders[0].Token, "test")
		}
	}},
	{"set", nil, func(ctx context.Context, s *stage, c *holdfast.Client) {
		if locks, err := c.AcquireAll(ctx, []string{"a", "b"}); err == nil {
			locks.Release(ctx)
		}
	}},
	{"sweep", func(s *stage) {
		c, p := s.join(0)
		s.must(c, "a")
		p.Crash()
	}, func(ctx context.Context, s *stage, c *holdfast.Client) {
		for range 4 {
			c.Sweep(ctx)
			time.Sleep(5 * time.Second)
		}
	}},
}

// TestCrashPoints kills a process at each of its calls, before the store has
// done it and after: who waits has the lock within a TTL, who only tries within
// two, and a sweep leaves nothing.
func TestCrashPoints(t *testing.T) {
	for _, c := range crashes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				if c.before != nil {
					c.before(s)
				}
				victim, p := s.join(0)
				c.victim(within(t, 40*time.Second), s, victim)
				calls = len(p.Calls())
			})
			for n := 1; n <= min(calls, 20); n++ { // the later ones are polls
				for _, point := range []faultstore.Point{faultstore.BeforeApply, faultstore.AfterApply} {
					for _, waits := range []bool{true, false} {
						t.Run(fmt.Sprintf("call %d %v, waits %v", n, point, waits), func(t *testing.T) {
							synctest.Test(t, func(t *testing.T) {
								s := newStage(t)
								if c.before != nil {
									c.before(s)
								}
								victim, p := s.join(0)
								died := make(chan struct{})
								p.At(n, point, func() { p.Crash(); close(died) })
								ctx, cancel := context.WithCancel(t.Context())
								defer cancel()
								go c.victim(ctx, s, victim)
								select {
								case <-died:
								case <-time.After(time.Minute): // it took another way this time
									p.Crash()
								}
								cancel()
								s.takeOver(waits)
								s.clean()
							})
						})
					}
				}
			}
		})
	}
}

// takeOver has a new process obtain the lock.
func (s *stage) takeOver(waits bool) {
	s.t.Helper()
	c, _ := s.join(0)
	began := time.Now()
	most := holdfast.DefaultTTL + 3*time.Second
	if !waits {
		most = 2*holdfast.DefaultTTL + time.Second
	}
	for {
		var l *holdfast.Lock
		var err error
		if waits {
			l, err = c.Acquire(within(s.t, time.Minute), "a")
		} else {
			l, err = c.TryAcquire(s.t.Context(), "a")
		}
		if err == nil {
			l.Release(s.t.Context())
			break
		}
		if waits || time.Since(began) > 2*most {
			s.t.Fatalf("not obtained after %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Second)
	}
	if took := time.Since(began); took > most {
		s.t.Errorf("obtained after %v", took)
	}
	c.Close()
}

package holdfast_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// S3: the last step of a takeover comes when others have held the lock since. It
// does not take the token back.
func TestHoleS3TokenDoesNotGoBack(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		claim := s.halfTaken()
		c, d := s.notified(), s.notified()
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
		clients := []*holdfast.Client{s.notified(), s.notified()}
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

// G13, S5, S10: no name is a pattern, a prefix, a row of ours or SQL. All are held
// beside each other, through a takeover, a sweep and a change of the settings.
func TestHoleG13HostileNames(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, c := s.notified(), s.notified()
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
		way.Off.Store(true)
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
				way.Off.Store(true) // it cannot tell
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

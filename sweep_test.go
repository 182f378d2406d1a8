package holdfast_test

import (
	"context"
	"fmt"
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

// A swept store counts sweeps.
type swept struct {
	*memory.Store
	sweeps atomic.Int64
}

func (s *swept) Sweep(ctx context.Context, idle time.Duration) (int, error) {
	s.sweeps.Add(1)
	return s.Store.Sweep(ctx, idle)
}

// Clients take turns to sweep: many do not sweep more often than one.
func TestTurnsToSweep(t *testing.T) {
	hours := 5
	if testing.Short() {
		hours = 2
	}
	for _, clients := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			s := &swept{Store: memory.New()}
			for i := range clients {
				c := newClient(t, s, nil)
				defer c.Close()
				if _, err := c.Acquire(t.Context(), time.Duration(i).String()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Duration(hours) * time.Hour)
			// Every 5 minutes it is somebody's turn.
			if n := int(s.sweeps.Load()); n < 3*hours || n > 12*hours {
				t.Errorf("%d clients swept %d times in %d hours, want %d to %d", clients, n, hours, 3*hours, 12*hours)
			}
		})
	}
}

// A lossy store carries out a write and does not tell, once it is told so.
type lossy struct {
	driver.Store
	lose atomic.Bool
}

func (s *lossy) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	outs, err := s.Store.CompareAndSwap(ctx, writes)
	if writes[0].Key == lockA && s.lose.Swap(false) {
		return nil, errFails
	}
	return outs, err
}

// What was given back without waiting for the disk, with an answer that was lost, is
// given back again when a crash has undone it.
func TestUndoneReleaseWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		s := &lossy{Store: inner}
		c := newClient(t, s, nil)
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		stands := func() driver.Record {
			recs, err := inner.Load(t.Context(), []driver.Key{lockA}, driver.Fresh)
			if err != nil {
				t.Fatal(err)
			}
			return recs[0]
		}
		held := stands()
		s.lose.Store(true)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		inner.Restore(lockA, held)
		time.Sleep(15 * time.Second) // three heartbeats
		if r := stands(); len(r.Value) > 0 {
			t.Errorf("the lock is still held: %s", r.Value)
		}
	})
}

// A sweep in the background has the time until another's turn would come, so where
// there are many names it comes to its end as well.
func TestSweepOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowList{Store: memory.New()}
		c := newClient(t, s, nil)
		defer c.Close()
		names := make([]string, 2000)
		for i := range names {
			names[i] = fmt.Sprint("n", i)
		}
		if _, err := c.AcquireAll(t.Context(), names); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if s.swept.Load() == 0 {
			t.Error("in an hour no sweep has come to its end, which takes a minute and a half")
		}
	})
}

// slowList takes eight seconds for each page of names.
type slowList struct {
	*memory.Store
	swept atomic.Int64 // how often all names were listed
}

func (s *slowList) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	if space == driver.Names {
		time.Sleep(8 * time.Second)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	names, err := s.Store.Keys(ctx, space, after, n)
	if space == driver.Names && err == nil && len(names) == 0 {
		s.swept.Add(1)
	}
	return names, err
}

// A crash of the database may take back the end of a claim whose session has then
// ended in order: nobody is left who would remove it. Sweeps do, also where nobody
// wants the name.
func TestSweepOfAnOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		c := newClient(t, s, nil)
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		held, err := s.Load(t.Context(), []driver.Key{lockA}, driver.Fresh)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Restore(lockA, held[0])
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		sweeper := newClient(t, s, nil)
		defer sweeper.Close()
		for range 4 {
			if _, err := sweeper.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * holdfast.DefaultTTL)
		}
		for _, space := range []driver.Space{driver.Names, driver.Sessions} {
			if left, err := s.Keys(t.Context(), space, "", 10); err != nil || len(left) > 0 {
				t.Errorf("%s: %q is left (%v)", space, left, err)
			}
		}
	})
}

// A job that is run each minute for a month, one time in ten killed in the middle, leaves
// a bounded number of records and rows, and a lock that is free within minutes.
func TestMonthOfShortRuns(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		count := &rowCount{Store: s, rows: make(map[driver.Key]bool)}
		most, days := 0, 30
		if testing.Short() {
			days = 2
		}
		for n := range days * 24 * 60 {
			began := time.Now()
			cut := &countedCut{wire.Cut{Store: count}, count}
			c := newClient(t, cut, nil)
			l, err := c.Acquire(t.Context(), "nightly", holdfast.MaxWait(50*time.Second))
			if err != nil {
				t.Fatalf("run %d: %v", n, err)
			}
			if n%10 == 7 {
				cut.Off.Store(true)
			} else if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.Close()
			most = max(most, len(count.rows))
			time.Sleep(time.Minute - time.Since(began))
		}
		if most > 150 {
			t.Errorf("there were %d records and rows at a time", most)
		}
		t.Logf("%d records and rows at most, %d in the end", most, len(count.rows))
	})
}

// Locks that no process keeps leave a bounded number of records and rows, too, where nobody has a
// session: those of programs that take and give them back, each minute, and those that a server takes
// for others.
func TestHalfDayWithoutSessions(t *testing.T) {
	for how, once := range map[string]func(t *testing.T, s driver.Store, server *holdfast.Client, n int) error{
		"AcquireFor and ReleaseToken": func(t *testing.T, s driver.Store, _ *holdfast.Client, n int) error {
			c := newClient(t, s, nil)
			defer c.Close()
			claim, err := c.AcquireFor(t.Context(), "nightly", 30*time.Second)
			if err != nil || n%10 == 7 { // it ends by itself
				return err
			}
			other := newClient(t, s, nil)
			defer other.Close()
			return other.ReleaseToken(t.Context(), "nightly", claim.Token)
		},
		"Enter and Leave": func(t *testing.T, _ driver.Store, server *holdfast.Client, n int) error {
			id := fmt.Sprintf("%032x", n+1)
			_, err := server.Enter(t.Context(), holdfast.HoldRequest{ID: id, Names: []string{"nightly"}})
			if err != nil || n%10 == 7 { // its owner has died
				return err
			}
			return server.Leave(t.Context(), "", id)
		},
	} {
		t.Run(how, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s driver.Store) {
				count := &rowCount{Store: s, rows: make(map[driver.Key]bool)}
				server := newClient(t, count, nil)
				defer server.Close()
				most := 0
				for n := range 12 * 60 {
					began := time.Now()
					if err := once(t, count, server, n); err != nil {
						t.Fatalf("at minute %d: %v", n, err)
					}
					most = max(most, count.count())
					time.Sleep(time.Minute - time.Since(began))
				}
				if most > 150 {
					t.Errorf("there were %d records and rows at a time", most)
				}
				t.Logf("%d records and rows at most, %d in the end", most, count.count())
			})
		})
	}
}

// Claims of the dead go within a stated time although nobody wants their names, and others
// wait now and then for other names; also where the store has no clock.
func TestDeadClaimsGo(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		cut := &wire.Cut{Store: s}
		dead := newClient(t, cut, nil)
		if _, err := dead.Acquire(t.Context(), "abandoned"); err != nil {
			t.Fatal(err)
		}
		cut.Off.Store(true)
		ids, err := s.Keys(t.Context(), driver.Sessions, "", 10)
		if err != nil || len(ids) != 1 {
			t.Fatalf("sessions %q, %v", ids, err)
		}
		deadSession := ids[0]
		alone := newClient(t, s, nil)
		if _, err := alone.AcquireFor(t.Context(), "alone", 10*time.Minute); err != nil {
			t.Fatal(err)
		}
		alone.Close()
		began := time.Now()
		stands := func(k driver.Key) bool {
			recs, err := s.Load(t.Context(), []driver.Key{k}, driver.Fresh)
			if err != nil {
				t.Fatal(err)
			}
			return len(recs[0].Value) > 0
		}
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		for range 2 {
			c := newClient(t, s, nil)
			defer c.Close()
			both.Go(func() {
				for n := 1; ctx.Err() == nil; n++ { // both at the same time, so one waits
					if l, err := c.Acquire(ctx, "other"); err == nil {
						time.Sleep(3 * time.Second)
						l.Release(ctx)
					}
					time.Sleep(time.Until(began.Add(time.Duration(n) * 2 * time.Minute)))
				}
			})
		}
		// A sweep comes 6:15 minutes after the last at the latest. The client that closed may have swept.
		for _, left := range []struct {
			key    driver.Key
			within time.Duration
		}{
			{driver.Key{Space: driver.Names, Name: "abandoned"}, 8 * time.Minute},
			{driver.Key{Space: driver.Sessions, Name: deadSession}, 16 * time.Minute},
			{driver.Key{Space: driver.Names, Name: "alone"}, 45 * time.Minute},
		} {
			for stands(left.key) && time.Since(began) < time.Hour {
				time.Sleep(time.Second)
			}
			if took := time.Since(began); took > left.within {
				t.Errorf("%s %q went after %v, want %v at most", left.key.Space, left.key.Name, took, left.within)
			}
		}
		cancel()
		both.Wait()
		dead.Close()
	})
}

// A rowCount knows which keys a store keeps a row for.
type rowCount struct {
	driver.Store
	mu   sync.Mutex
	rows map[driver.Key]bool
}

func (s *rowCount) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows)
}

func (s *rowCount) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	s.mu.Lock()
	for _, w := range w {
		s.rows[w.Key] = true
	}
	s.mu.Unlock()
	return s.Store.CompareAndSwap(ctx, w)
}

// A countedCut is a way there that can be cut.
type countedCut struct {
	wire.Cut
	*rowCount
}

func (s *countedCut) Traits() driver.Traits { return s.Cut.Traits() }

func (s *countedCut) Load(ctx context.Context, k []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	return s.Cut.Load(ctx, k, how)
}

func (s *countedCut) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	return s.Cut.CompareAndSwap(ctx, w)
}

func (s *countedCut) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	return s.Cut.Keys(ctx, space, after, n)
}

func (s *rowCount) Sweep(ctx context.Context, idle time.Duration) (int, error) {
	n, err := s.Store.Sweep(ctx, idle)
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.rows {
		recs, err := s.Store.Load(ctx, []driver.Key{k}, driver.Fresh)
		if err == nil && recs[0].Version == 0 {
			delete(s.rows, k)
		}
	}
	return n, err
}

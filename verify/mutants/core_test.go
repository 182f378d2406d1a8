package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// Rules of the library that concern what a lock costs and not whether it holds,
// so that neither the simulation nor drivertest would miss them.

// A way is a store as one client sees it.
type way struct {
	driver.Store
	swap  func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error)
	loads atomic.Int64
}

func (w *way) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	w.loads.Add(1)
	return w.Store.Load(ctx, keys, how)
}

func (w *way) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if w.swap != nil && writes[0].Key.Space == driver.Names {
		return w.swap(ctx, writes)
	}
	return w.Store.CompareAndSwap(ctx, writes)
}

// A loud way tells everyone of everything, as a Watcher may.
type loud struct{ *way }

func (w loud) Watch(ctx context.Context, _ []string, changed func(driver.Notification)) error {
	watcher, _ := driver.Find[driver.Watcher](w.Store)
	return watcher.Watch(ctx, nil, changed)
}

func join(t *testing.T, s driver.Store) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(s, &holdfast.Options{RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ask(t *testing.T, c *holdfast.Client, name string) chan *holdfast.Lock {
	got := make(chan *holdfast.Lock, 1)
	go func() {
		l, err := c.Acquire(t.Context(), name)
		if err != nil && !errors.Is(err, holdfast.ErrClosed) && t.Context().Err() == nil {
			t.Error(err)
		}
		got <- l
	}()
	return got
}

// crowd has clients queue for "a", each after the one before, hands the lock
// on, every so often, and returns how many loads each hand-off has cost.
func crowd(t *testing.T, ways []*way, stores []driver.Store, held time.Duration) float64 {
	t.Helper()
	var clients []*holdfast.Client
	var queue []chan *holdfast.Lock
	for _, s := range stores {
		c := join(t, s)
		defer c.Close()
		clients, queue = append(clients, c), append(queue, ask(t, c, "a"))
		time.Sleep(50 * time.Millisecond)
	}
	l := <-queue[0]
	for _, w := range ways {
		w.loads.Store(0)
	}
	rounds := 10 * len(clients)
	for i := range rounds {
		time.Sleep(held)
		l.Release(t.Context())
		queue[i%len(clients)] = ask(t, clients[i%len(clients)], "a")
		l = <-queue[(i+1)%len(clients)]
	}
	loads := int64(0)
	for _, w := range ways {
		loads += w.loads.Load()
	}
	for i := range clients {
		l.Release(t.Context())
		if i+1 < len(clients) {
			l = <-queue[(rounds+i+1)%len(clients)]
		}
	}
	return float64(loads) / float64(rounds)
}

// A client that hears of a notification for another does not look.
func TestNotificationsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		var ways []*way
		var stores []driver.Store
		for range 20 {
			w := &way{Store: inner}
			ways, stores = append(ways, w), append(stores, loud{w})
		}
		loads := crowd(t, ways, stores, 20*time.Millisecond)
		t.Logf("%.1f loads", loads)
		if loads > 3 {
			t.Errorf("a hand-off in a crowd of %d costs %.1f loads", len(ways), loads)
		}
	})
}

// Where nothing tells, the farther back the less often one looks.
func TestPollsByPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		var ways []*way
		var stores []driver.Store
		for range 20 {
			w := &way{Store: inner}
			ways, stores = append(ways, w), append(stores, struct{ driver.Store }{w})
		}
		loads := crowd(t, ways, stores, 100*time.Millisecond)
		t.Logf("%.1f loads", loads)
		if loads > 30 {
			t.Errorf("a hand-off in a crowd of %d costs %.1f loads", len(ways), loads)
		}
	})
}

// What gathers while a call is on its way goes in the next; a second call joins
// the first for a crowd, or if the first is slow, and never a third.
func TestSecondCall(t *testing.T) {
	for _, test := range []struct {
		takes  time.Duration // each call
		come   int           // while the first is on its way
		after  time.Duration // the first began
		calls  int           // want, under way then
		writes int           // in them, at least
	}{
		{100 * time.Millisecond, 20, time.Millisecond, 2, 1 + 16},
		{100 * time.Millisecond, 4, time.Millisecond, 1, 1},
		{100 * time.Millisecond, 4, 20 * time.Millisecond, 2, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			inner := memory.New()
			var mu sync.Mutex
			calls, writing, most := 0, 0, 0
			slow := false
			w := &way{Store: inner}
			w.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
				mu.Lock()
				calls++
				writing += len(writes)
				most = max(most, calls)
				takes := time.Duration(0)
				if slow {
					takes = test.takes
				}
				mu.Unlock()
				time.Sleep(takes)
				mu.Lock()
				calls--
				writing -= len(writes)
				mu.Unlock()
				return inner.CompareAndSwap(ctx, writes)
			}
			c := join(t, w)
			defer c.Close()
			l := <-ask(t, c, "open")
			l.Release(t.Context())
			mu.Lock()
			slow, most = true, 0
			mu.Unlock()
			locks := []chan *holdfast.Lock{ask(t, c, "first")}
			synctest.Wait()
			for i := range test.come {
				locks = append(locks, ask(t, c, fmt.Sprint(i)))
			}
			synctest.Wait()
			time.Sleep(test.after)
			mu.Lock()
			if calls != test.calls || writing < test.writes {
				t.Errorf("%d come while a call takes %v: %d calls with %d writes after %v, want %d with %d at least",
					test.come, test.takes, calls, writing, test.after, test.calls, test.writes)
			}
			mu.Unlock()
			for i := range test.come {
				locks = append(locks, ask(t, c, fmt.Sprint("more ", i)))
			}
			for _, got := range locks {
				if l := <-got; l != nil {
					l.Release(t.Context())
				}
			}
			if most > 2 {
				t.Errorf("%d calls at once", most)
			}
		})
	}
}

// A client that loses again and again on a slow store tries again before long.
func TestPauseOfTheLoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		const rounds, takes = 12, 400 * time.Millisecond
		lost := 0
		w := &way{Store: inner}
		w.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			time.Sleep(takes)
			if writes[0].Key.Name != "a" || lost == rounds {
				return inner.CompareAndSwap(ctx, writes)
			}
			lost++
			recs, err := inner.Load(ctx, []driver.Key{writes[0].Key}, driver.Fresh)
			return []driver.Outcome{{Record: recs[0]}}, err
		}
		c := join(t, w)
		defer c.Close()
		(<-ask(t, c, "open")).Release(t.Context())
		began := time.Now()
		l := <-ask(t, c, "a")
		if took := time.Since(began); took > rounds*(takes+300*time.Millisecond) {
			t.Errorf("%d writes that take %v have lost, and the lock came after %v", rounds, takes, took)
		}
		l.Release(t.Context())
	})
}

// A waiter that left the queue in order is not taken for one whose session is missing,
// though a waiter who is not woken has an old look at the queue.
func TestLeftWaiterIsNotMissing(t *testing.T) {
	for range 8 { // an old look is a matter of luck
		synctest.Test(t, whoLeft)
	}
}

func whoLeft(t *testing.T) {
	inner := memory.New()
	holder, waiter := join(t, inner), join(t, inner)
	defer holder.Close()
	defer waiter.Close()
	l := <-ask(t, holder, "a")
	const n = 50
	var guests [n]*holdfast.Client
	for i := range guests {
		guests[i] = join(t, inner)
		ask(t, guests[i], "a")
		time.Sleep(10 * time.Millisecond)
	}
	got := ask(t, waiter, "a")
	time.Sleep(time.Second)
	for i := range guests {
		go guests[n-1-i].Close()
		time.Sleep(311 * time.Millisecond)
		ids, err := inner.Keys(t.Context(), driver.Sessions, "", 2*n)
		if err != nil || len(ids) > n+2-(i+1) {
			t.Fatalf("there are %d sessions, error %v, when %d have left and %d are there", len(ids), err, i+1, n+2-(i+1))
		}
	}
	l.Release(t.Context())
	(<-got).Release(t.Context())
}

// A client that comes late to the dead has them marked, and waits for half a TTL whether
// they answer.
func TestMarkStandsHalfATTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		var cut atomic.Bool
		w := &way{Store: inner}
		holder := join(t, struct{ driver.Store }{mute{w, &cut}})
		<-ask(t, holder, "a")
		cut.Store(true)
		time.Sleep(10 * holdfast.DefaultTTL)
		late := join(t, inner)
		defer late.Close()
		came := time.Now()
		l := <-ask(t, late, "a")
		if took := time.Since(came); took < holdfast.DefaultTTL/2 || took >= holdfast.DefaultTTL {
			t.Errorf("taken over after %v, want %v or a little more", took, holdfast.DefaultTTL/2)
		}
		l.Release(t.Context())
		cut.Store(false)
		holder.Close()
	})
}

// A mute store does not answer once it is cut off.
type mute struct {
	*way
	cut *atomic.Bool
}

func (m mute) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if m.cut.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return m.way.CompareAndSwap(ctx, writes)
}

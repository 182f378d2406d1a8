package drivertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// Fenced is a store with registers of an application, one for each lock name, which are
// empty at first and change only under the store's fence.
type Fenced struct {
	Store driver.Store
	Other driver.Store // the same store, as another process has it; nil: there is none

	// Put writes a value to the register of the first lock, in a transaction that is fenced
	// by all of them. It calls fenced, if that is not nil, after the fence has passed and before
	// the transaction is committed; where there is no such moment it does not. An error
	// means that nothing was written.
	Put func(ctx context.Context, value string, fenced func(), locks ...*holdfast.Lock) error
	// Get reads the register of a name.
	Get func(ctx context.Context, name string) (string, error)

	// ByTokens: the fence compares tokens with those it has seen, and does not read the lock: it
	// refuses an earlier holder once a later one has written.
	ByTokens bool
	// Exclusive: the fence is for one exclusive lock only.
	Exclusive bool
}

// RunFence tests the fence of a store (P4), one subtest for each sentence. open is as for Run.
func RunFence(t *testing.T, open func(t *testing.T) Fenced) {
	for _, c := range fenceCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := open(t)
			if c.need != nil && !c.need(f) {
				t.Skip("the fence does not promise this")
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience())
			defer cancel()
			defer func() {
				if t.Failed() {
					t.Logf("the contract says: %s", c.rule)
				}
			}()
			c.run(&fenceHarness{T: t, ctx: ctx, Fenced: f})
		})
	}
}

// Gated is a Fenced for a store that has no fence of its own: the registers are the test's, and
// a holdfast.TokenGate is kept with each.
func Gated(s, other driver.Store) Fenced {
	var mu sync.Mutex
	type register struct {
		value string
		gate  holdfast.TokenGate
	}
	registers := make(map[string]*register)
	return Fenced{Store: s, Other: other, ByTokens: true,
		Put: func(_ context.Context, value string, _ func(), locks ...*holdfast.Lock) error {
			mu.Lock()
			defer mu.Unlock()
			for _, l := range locks {
				r := registers[l.Name()]
				if r == nil {
					r = new(register)
					registers[l.Name()] = r
				}
				if err := r.gate.Admit(l.Token(), l.Slots() != 1); err != nil {
					return err
				}
			}
			registers[locks[0].Name()].value = value
			return nil
		},
		Get: func(_ context.Context, name string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if r := registers[name]; r != nil {
				return r.value, nil
			}
			return "", nil
		}}
}

// InSQL sets Put and Get of a Fenced to a table of registers in db. put is the statement that
// writes a register and takes its name and value; get selects a name's value, "" if there is none.
func (f Fenced) InSQL(db *sql.DB, put, get string, fence func(context.Context, *sql.Tx, ...*holdfast.Lock) error) Fenced {
	f.Put = func(ctx context.Context, value string, fenced func(), locks ...*holdfast.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, put, locks[0].Name(), value); err != nil {
			return err
		}
		if err := fence(ctx, tx, locks...); err != nil {
			return err
		}
		if fenced != nil {
			fenced()
		}
		return tx.Commit()
	}
	f.Get = func(ctx context.Context, name string) (value string, err error) {
		err = db.QueryRowContext(ctx, get, name).Scan(&value)
		return value, err
	}
	return f
}

// A fenceHarness is what a case works with.
type fenceHarness struct {
	*testing.T
	ctx context.Context
	Fenced
}

// client is a client on the store, or on another handle of it, that proves no deaths.
func (h *fenceHarness) client(other bool) *holdfast.Client {
	h.Helper()
	s := h.Store
	if other && h.Other != nil {
		s = h.Other
	}
	c, err := holdfast.New(s, &holdfast.Options{TTL: time.Minute, RuntimeDir: os.DevNull})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { c.Close() })
	return c
}

func (h *fenceHarness) acquire(c *holdfast.Client, name string, opts ...holdfast.Option) *holdfast.Lock {
	h.Helper()
	l, err := c.Acquire(h.ctx, name, opts...)
	if err != nil {
		h.Fatal(err)
	}
	return l
}

func (h *fenceHarness) release(l *holdfast.Lock) {
	h.Helper()
	if err := l.Release(h.ctx); err != nil {
		h.Fatal(err)
	}
}

func (h *fenceHarness) taken(value string, locks ...*holdfast.Lock) {
	h.Helper()
	if err := h.Put(h.ctx, value, nil, locks...); err != nil {
		h.Fatalf("the holder's write of %q: %v", value, err)
	}
	h.has(locks[0].Name(), value)
}

func (h *fenceHarness) refused(value string, locks ...*holdfast.Lock) {
	h.Helper()
	err := h.Put(h.ctx, value, nil, locks...)
	if !errors.Is(err, holdfast.ErrLost) && !errors.Is(err, holdfast.ErrReleased) {
		h.Errorf("the write of %q by one that has lost its lock: %v", value, err)
	}
}

func (h *fenceHarness) has(name, want string) {
	h.Helper()
	if got, err := h.Get(h.ctx, name); err != nil || got != want {
		h.Fatalf("the register of %q has %q, error %v; want %q", name, got, err, want)
	}
}

const odd = `orders/é'"\ 42`

var fenceCases = []struct {
	name string
	rule string
	need func(Fenced) bool // nil: every fence
	run  func(h *fenceHarness)
}{
	{
		name: "holder",
		rule: "the fence lets the holder write, as often as it likes, whatever others do with the lock meanwhile",
		run: func(h *fenceHarness) {
			a, b := h.client(false), h.client(true)
			l := h.acquire(a, odd)
			h.taken("1", l)
			waits := make(chan *holdfast.Lock, 1)
			go func() {
				l, _ := b.Acquire(h.ctx, odd)
				waits <- l
			}()
			for info, err := range a.Watch(h.ctx, odd) {
				if err != nil || len(info.Waiters) == 1 {
					break
				}
			}
			h.taken("2", l)
			h.taken("3", l)
			h.release(l)
			if next := <-waits; next != nil {
				h.taken("4", next)
				h.release(next)
			}
		},
	},
	{
		name: "released",
		rule: "a former holder that released the lock cannot write once the next holder has written",
		run: func(h *fenceHarness) {
			l := h.acquire(h.client(false), odd)
			h.taken("first", l)
			h.release(l)
			if !h.ByTokens {
				h.refused("late", l)
				h.has(odd, "first")
			}
			next := h.acquire(h.client(true), odd)
			h.taken("next", next)
			h.refused("late", l)
			h.has(odd, "next")
			h.release(next)
			if !h.ByTokens {
				h.refused("later", next)
				h.has(odd, "next")
			}
		},
	},
	{
		name: "taken over",
		rule: "a former holder that lost the lock cannot write once the next holder has written, even if it has not noticed; a fence that reads the lock refuses it at once",
		run: func(h *fenceHarness) {
			a, b := h.client(false), h.client(true)
			for round := range 5 {
				old := h.acquire(a, odd)
				h.taken(fmt.Sprint("old ", round), old)
				if err := b.BreakNow(h.ctx, odd, old.Token(), "test"); err != nil {
					h.Fatal(err)
				}
				next := h.acquire(b, odd)
				if !h.ByTokens {
					h.refused("late", old)
					h.has(odd, fmt.Sprint("old ", round))
				}
				h.taken("next", next)
				h.refused("late", old)
				h.has(odd, "next")
				old.Release(h.ctx)
				h.release(next)
			}
		},
	},
	{
		name: "handed on",
		rule: "inside a process, too, an earlier holder cannot write after a later one",
		run: func(h *fenceHarness) {
			queued := make(chan bool, 3)
			c, err := holdfast.New(h.Store, &holdfast.Options{TTL: time.Minute, RuntimeDir: os.DevNull, Trace: &holdfast.Trace{
				Queued: func(context.Context, holdfast.Event) { queued <- true }}})
			if err != nil {
				h.Fatal(err)
			}
			h.Cleanup(func() { c.Close() })
			old := h.acquire(c, odd)
			var last *holdfast.Lock
			for range 3 {
				waits := make(chan *holdfast.Lock, 1)
				var failed error
				go func() {
					l, err := c.Acquire(h.ctx, odd)
					failed = err
					waits <- l
				}()
				<-queued // in this process: it is handed the claim
				h.release(old)
				if last = <-waits; last == nil {
					info, err := c.Show(context.WithoutCancel(h.ctx), odd)
					h.Fatalf("it does not get the lock: %v; the store has %+v, %v", failed, info, err)
				}
				h.taken(fmt.Sprint(last.Token()), last)
				h.refused("late", old)
				h.has(odd, fmt.Sprint(last.Token()))
				old = last
			}
			h.release(last)
		},
	},
	{
		name: "between fence and commit",
		rule: "a transaction that passed the fence commits before the next holder's first write, or not at all",
		run: func(h *fenceHarness) {
			a, b := h.client(false), h.client(true)
			for round := range 5 {
				old := h.acquire(a, odd)
				over := make(chan error, 1)
				takeover := func() {
					go func() {
						over <- func() error {
							if err := b.BreakNow(h.ctx, odd, old.Token(), "test"); err != nil {
								return err
							}
							next, err := b.Acquire(h.ctx, odd)
							if err != nil {
								return err
							}
							if err := h.Put(h.ctx, "next", nil, next); err != nil {
								return err
							}
							return next.Release(h.ctx)
						}()
					}()
					select {
					case err := <-over:
						over <- err
					case <-time.After(time.Duration(50*round) * time.Millisecond): // it waits for us
					}
				}
				called := false
				err := h.Put(h.ctx, "old", func() { called = true; takeover() }, old)
				if !called {
					takeover()
				}
				if err := <-over; err != nil {
					h.Fatal(err)
				}
				h.has(odd, "next")
				h.Logf("the transaction of the earlier holder: %v", err)
				old.Release(h.ctx)
			}
		},
	},
	{
		name: "shared",
		rule: "all holders of a shared lock can write; a former one cannot",
		need: func(f Fenced) bool { return !f.Exclusive },
		run: func(h *fenceHarness) {
			one, two := h.acquire(h.client(false), odd, holdfast.Shared()), h.acquire(h.client(true), odd, holdfast.Slots(3))
			h.taken("1", one)
			h.taken("2", two)
			h.taken("3", one)
			h.release(one)
			if !h.ByTokens {
				h.refused("late", one)
			}
			h.taken("4", two)
			h.release(two)
			next := h.acquire(h.client(false), odd)
			h.taken("5", next)
			h.refused("late", one)
			h.refused("late", two)
			h.has(odd, "5")
			h.release(next)
		},
	},
	{
		name: "several",
		rule: "a transaction that is fenced by several locks needs them all",
		need: func(f Fenced) bool { return !f.Exclusive },
		run: func(h *fenceHarness) {
			a, b := h.client(false), h.client(true)
			one, two := h.acquire(a, "one"), h.acquire(a, "two")
			h.taken("both", one, two)
			if err := b.BreakNow(h.ctx, "two", two.Token(), "test"); err != nil {
				h.Fatal(err)
			}
			next := h.acquire(b, "two")
			h.taken("next", next)
			h.refused("late", one, two)
			h.has("one", "both")
			h.taken("alone", one)
			two.Release(h.ctx)
			h.release(one)
			h.release(next)
		},
	},
	{
		name: "counter",
		rule: "a counter that fenced holders read and increment is exact while the lock changes hands",
		run: func(h *fenceHarness) {
			const clients, rounds = 4, 10
			var all sync.WaitGroup
			for i := range clients {
				c := h.client(i%2 == 1)
				all.Go(func() {
					for range rounds {
						err := c.Do(h.ctx, "counter", func(ctx context.Context, l *holdfast.Lock) error {
							text, err := h.Get(ctx, "counter")
							if err != nil {
								return err
							}
							n, _ := strconv.Atoi(text)
							return h.Put(ctx, strconv.Itoa(n+1), nil, l)
						})
						if err != nil {
							h.Error(err)
						}
					}
				})
			}
			all.Wait()
			h.has("counter", strconv.Itoa(clients*rounds))
		},
	},
}

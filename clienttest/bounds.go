package clienttest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// An Obstacle is something that keeps a store from doing what it is asked: a transaction
// that keeps a row locked, a server that is stopped, a pool that is exhausted.
type Obstacle struct {
	Name string
	// Begin puts it in the way of the lock record of a name, and returns what ends it.
	Begin func(t *testing.T, s driver.Store, name string) (end func())
	// Silent: until then the store does not answer; Server: nor does any store on its server.
	Silent, Server bool
}

// RunBounds tests over a store that no call of a client takes more than two seconds longer than it
// promises (up to four on a busy machine), whatever stands in the way: with a name that is free,
// held, held by the dead, or held by the same client. open is as for Run. An obstacle of the whole
// server is tested alone; all others are tested at the same time, each in the way of a store of its
// own.
func RunBounds(t *testing.T, open func(t *testing.T) driver.Store, obstacles ...Obstacle) {
	for _, o := range obstacles {
		t.Run(o.Name, func(t *testing.T) {
			if !o.Server {
				t.Parallel()
			}
			kinds := []string{"free", "held", "held by the dead", "held by itself"}
			if o.Silent {
				kinds = []string{"free", "held by itself"} // such a store does not tell who holds what
			}
			for _, kind := range kinds {
				t.Run(kind, func(t *testing.T) {
					if !o.Server {
						t.Parallel()
					}
					b := &bounds{T: t, store: open(t), obstacle: o, kind: kind}
					b.run()
				})
			}
		})
	}
}

// A bounds is one case of RunBounds.
type bounds struct {
	*testing.T
	store    driver.Store
	obstacle Obstacle
	kind     string
}

// within calls do and fails if it takes more than a second longer than promised.
func (b *bounds) within(what string, promised time.Duration, do func() error) error {
	b.Helper()
	began := time.Now()
	err := do()
	slack := busy.Times(time.Second) // for a machine that is busy
	if took := time.Since(began); took > promised+time.Second+slack {
		b.Errorf("%s took %v, and promises %v: %v", what, took.Round(time.Millisecond), promised, err)
	}
	return err
}

func (b *bounds) client(ttl time.Duration) *holdfast.Client {
	c, err := holdfast.New(b.store, &holdfast.Options{TTL: ttl, RuntimeDir: os.DevNull})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func (b *bounds) run() {
	const ttl, wait = 6 * time.Second, 2 * time.Second
	ctx := b.Context()
	c := b.client(ttl)
	warm, err := c.Acquire(ctx, "warm") // opens its session
	if err != nil {
		b.Fatal(err)
	}
	if err := warm.Release(ctx); err != nil {
		b.Fatal(err)
	}
	var ours *holdfast.Lock
	switch b.kind {
	case "held":
		other := b.client(ttl)
		defer other.Close()
		if _, err := other.Acquire(ctx, "a"); err != nil {
			b.Fatal(err)
		}
	case "held by the dead":
		bus := faultstore.NewBus(b.store, 1, faultstore.Faults{})
		dead := bus.Process("dead")
		other, err := holdfast.New(dead.Plain(), &holdfast.Options{TTL: holdfast.MinTTL, RuntimeDir: os.DevNull})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := other.Acquire(ctx, "a"); err != nil {
			b.Fatal(err)
		}
		dead.Crash()
		bus.Close()
		other.Close()
		time.Sleep(holdfast.MinTTL)
	case "held by itself":
		if ours, err = c.Acquire(ctx, "a"); err != nil {
			b.Fatal(err)
		}
	}
	end := b.obstacle.Begin(b.T, b.store, "a")
	ended := false
	defer func() {
		if !ended {
			end()
		}
	}()
	if ours == nil {
		b.asks(c, wait)
	} else {
		short, cancel := context.WithTimeout(ctx, wait)
		b.within("Release", wait, func() error { return ours.Release(short) })
		cancel()
	}
	promised := time.Second
	switch {
	case ours != nil && b.obstacle.Silent:
		promised = ttl
	case b.obstacle.Silent:
		promised = 5 * time.Second
	}
	err = b.within("Close", promised, c.Close)
	if err != nil && !b.obstacle.Silent {
		b.Errorf("Close: %v", err)
	}
	end()
	ended = true
	if b.kind == "held" {
		return
	}
	last := b.client(ttl)
	defer last.Close()
	again, cancel := context.WithTimeout(ctx, ttl+20*time.Second)
	defer cancel()
	l, err := last.Acquire(again, "a")
	if err != nil {
		b.Fatalf("when nothing stands in the way any more: %v", err)
	}
	if err := l.Release(ctx); err != nil {
		b.Error(err)
	}
}

// asks asks for the lock in every way that is bounded.
func (b *bounds) asks(c *holdfast.Client, wait time.Duration) {
	ctx := b.Context()
	patience := time.Duration(0)
	if b.obstacle.Silent {
		patience = 5 * time.Second
	}
	took := func(l *holdfast.Lock, err error) error {
		if err == nil {
			err = l.Release(ctx)
			if b.kind == "held" {
				b.Error("it was given what another holds")
			}
		}
		return err
	}
	fresh := b.client(0) // as a program that has just started
	var started sync.WaitGroup
	started.Go(func() {
		b.within("TryAcquire in a new process", patience, func() error { return took(fresh.TryAcquire(ctx, "a")) })
		b.within("Close of a new process", time.Second, func() error { fresh.Close(); return nil })
	})
	defer started.Wait()
	b.within("TryAcquire", patience, func() error { return took(c.TryAcquire(ctx, "a")) })
	b.within("MaxWait", wait, func() error { return took(c.Acquire(ctx, "a", holdfast.MaxWait(wait))) })
	b.within("a context", wait, func() error {
		short, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		return took(c.Acquire(short, "a"))
	})
	b.within("AcquireAll", wait, func() error {
		locks, err := c.AcquireAll(ctx, []string{"0", "a"}, holdfast.MaxWait(wait))
		if err == nil {
			err = locks.Release(ctx)
		}
		return err
	})
}

package clienttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// closeCases are about the end of a client.
var closeCases = []clientCase{
	{
		name: "a store that is closed",
		rule: "a store that its user closes ends Acquire at once, and one line says that it is closed",
		run: func(h *clients) {
			held := h.acquire(h.client(longTTL), "a")
			s := h.handle()
			closer, ok := driver.Find[io.Closer](s)
			if s == h.store || !ok {
				h.release(held)
				h.Skip("this store has no Close, or cannot be opened twice")
			}
			c := h.open(s, &holdfast.Options{TTL: longTTL})
			defer c.Close()
			waits := h.queue(1, c, "a")
			if err := closer.Close(); err != nil {
				h.Errorf("close: %v", err)
			}
			for what, ended := range map[string]<-chan answer{"a waiter": waits, "Acquire": h.ask(c, "b")} {
				err := h.answered(ended, h.soon).err
				h.is(what, err, driver.ErrClosed)
				if strings.Contains(err.Error(), "\n") {
					h.Errorf("%s: the error has more than one line: %q", what, err)
				}
			}
			h.release(held)
		},
	},
	{
		name: "close",
		rule: "Close: waiters get ErrClosed at once, contexts end, everything is given back, and the store stays open (P9)",
		run: func(h *clients) {
			s := h.handle()
			c := h.open(s, &holdfast.Options{TTL: longTTL})
			l := h.acquire(c, "a")
			reader := h.acquire(c, "b", holdfast.Shared())
			locks, err := c.AcquireAll(h.ctx, []string{"c", "d"})
			if err != nil {
				h.Fatal(err)
			}
			other := h.client(longTTL)
			held := h.acquire(other, "e")
			waits, waitsHere := h.queue(1, c, "e"), h.ask(c, "a")
			next := h.queue(1, other, "a")
			work := []context.Context{l.Context(), reader.Context(), locks.Context()}
			began := time.Now()
			if err := c.Close(); err != nil {
				h.Errorf("Close: %v", err)
			}
			if took := time.Since(began); took > h.soon {
				h.Errorf("Close took %v", took)
			}
			for _, ch := range []<-chan answer{waits, waitsHere} {
				err := h.answered(ch, h.soon).err
				h.is("a waiter", err, holdfast.ErrClosed)
				if got := err.Error(); !strings.HasPrefix(got, `acquire "`) || !strings.HasSuffix(got, `": the client is closed`) {
					h.Errorf("a waiter is told %q", got)
				}
			}
			for _, ctx := range work {
				h.is("the cause", context.Cause(ctx), holdfast.ErrClosed)
			}
			h.is("Err", l.Err(), holdfast.ErrClosed)
			if err := l.Release(h.ctx); err != nil {
				h.Errorf("Release after Close: %v", err)
			}
			h.release(h.granted(next, h.soon), held)
			h.empty("b", "c", "d", "e")
			h.free("a")
			for _, again := range []func() error{
				func() error { _, err := c.Acquire(h.ctx, "f"); return err },
				func() error { _, err := c.TryAcquire(h.ctx, "f"); return err },
				func() error { _, err := c.AcquireAll(h.ctx, []string{"f", "g"}); return err },
				func() error { _, err := c.AcquireFor(h.ctx, "f", time.Minute); return err },
				func() error {
					return c.Do(h.ctx, "f", func(context.Context, *holdfast.Lock) error { return nil })
				},
				func() error { return c.Election("f").Run(h.ctx, nil) },
			} {
				h.is("after Close", again(), holdfast.ErrClosed)
			}
			if err := c.Close(); err != nil {
				h.Errorf("Close again: %v", err)
			}
			if n := len(h.keys(driver.Sessions)); n != 1 {
				h.Errorf("%d sessions in the store, want that of the other client%s", n, h.dump())
			}
			after := h.clientOf(s, &holdfast.Options{TTL: longTTL})
			h.release(h.acquire(after, "f"))
		},
	},
	{
		name: "shutdown",
		rule: "Shutdown refuses who waits and who asks, and what is held goes on, with its heartbeats, until it is given back; leaders stop; then it is Close",
		run: func(h *clients) {
			c := h.open(h.handle(), &holdfast.Options{TTL: shortTTL})
			l := h.acquire(c, "a")
			started, finish := make(chan *holdfast.Lock, 2), make(chan bool)
			returned, led := make(chan error, 1), make(chan error, 1)
			go func() {
				returned <- c.Do(h.ctx, "b", func(ctx context.Context, l *holdfast.Lock) error {
					started <- l
					<-finish
					return ctx.Err()
				})
			}()
			go func() {
				led <- c.Election("seat").Run(h.ctx, func(ctx context.Context, l *holdfast.Lock) error {
					started <- l
					<-ctx.Done()
					h.is("the cause of the leader's end", context.Cause(ctx), holdfast.ErrClosed)
					return ctx.Err()
				})
			}()
			<-started
			<-started
			other := h.client(longTTL)
			held := h.acquire(other, "e")
			waiter, waitsHere := h.queue(1, c, "e"), h.ask(c, "a")
			down := make(chan error, 1)
			go func() { down <- c.Shutdown(h.ctx) }()
			for _, ch := range []<-chan answer{waiter, waitsHere} {
				h.is("a waiter", h.answered(ch, h.soon).err, holdfast.ErrClosed)
			}
			h.is("the leader", <-led, holdfast.ErrClosed)
			h.waiting("e", 0)
			h.free("seat")
			_, err := c.TryAcquire(h.ctx, "f")
			h.is("TryAcquire", err, holdfast.ErrClosed)
			time.Sleep(2 * shortTTL) // only heartbeats keep what is held
			if err := l.Err(); err != nil {
				h.Errorf("what is held: %v", err)
			}
			waits := func(forWhat string) {
				time.Sleep(100 * time.Millisecond)
				select {
				case err := <-down:
					h.Fatalf("Shutdown did not wait for %s: %v", forWhat, err)
				default:
				}
			}
			waits("a function and a lock")
			close(finish)
			if err := <-returned; err != nil {
				h.Errorf("Do: %v", err)
			}
			waits("a lock")
			h.release(l)
			if err := <-down; err != nil {
				h.Errorf("Shutdown: %v", err)
			}
			h.release(held)
			h.empty("a", "b", "e", "seat")
		},
	},
	{
		name: "shutdown without patience",
		rule: "when its context ends, Shutdown is Close, and says that something was held",
		run: func(h *clients) {
			c := h.open(h.handle(), &holdfast.Options{TTL: longTTL})
			l := h.acquire(c, "a")
			ctx, cancel := context.WithTimeout(h.ctx, 100*time.Millisecond)
			defer cancel()
			h.is("Shutdown", c.Shutdown(ctx), context.DeadlineExceeded)
			h.is("what was held", l.Err(), holdfast.ErrClosed)
			h.free("a")
			if err := c.Shutdown(h.ctx); err != nil {
				h.Errorf("Shutdown again: %v", err)
			}
		},
	},
	{
		name: "close and work",
		rule: "Close ends the contexts of Do and Run and gives nothing back before their functions have returned (P1)",
		run: func(h *clients) {
			c := h.open(h.handle(), &holdfast.Options{TTL: longTTL})
			started, stopped := make(chan bool, 2), make(chan time.Time, 2)
			returned := make(chan error, 2)
			work := func(ctx context.Context, l *holdfast.Lock) error {
				started <- true
				<-ctx.Done()
				h.is("the cause", context.Cause(ctx), holdfast.ErrClosed)
				time.Sleep(100 * time.Millisecond) // the work takes a moment to stop
				stopped <- time.Now()
				return errWork
			}
			go func() { returned <- c.Do(h.ctx, "a", work) }()
			go func() { returned <- c.Election("seat").Run(h.ctx, work) }()
			<-started
			<-started
			other := h.client(longTTL)
			first, second := h.queue(1, other, "a"), h.queue(1, other, "seat")
			if err := c.Close(); err != nil {
				h.Errorf("Close: %v", err)
			}
			closed := time.Now()
			a, b := h.answered(first, h.soon), h.answered(second, h.soon)
			if err := errors.Join(a.err, b.err); err != nil {
				h.Fatal(err)
			}
			for range 2 {
				if at := <-stopped; a.at.Before(at) && b.at.Before(at) || closed.Before(at) {
					h.Error("given back before the work had stopped")
				}
				if err := <-returned; !errors.Is(err, errWork) && !errors.Is(err, holdfast.ErrClosed) {
					h.Errorf("Do or Run returned %v", err)
				}
			}
			h.release(a.lock, b.lock)
		},
	},
	{
		name: "close without a store",
		rule: "Close never takes longer than the trust window, and says what is not confirmed",
		run: func(h *clients) {
			c, p := h.process(&holdfast.Options{TTL: shortTTL})
			l := h.acquire(c, "a")
			p.Crash()
			began := time.Now()
			if err := c.Close(); err == nil {
				h.Error("Close says that all is given back, and the store has not heard of it")
			}
			if took := time.Since(began); took > shortTTL+h.soon {
				h.Errorf("Close took %v with a TTL of %v", took, shortTTL)
			}
			if l.Err() == nil {
				h.Error("the lock is still believed in")
			}
			h.release(h.granted(h.ask(h.client(longTTL), "a"), shortTTL+shortTTL/2+h.soon))
		},
	},
	{
		name: "goroutines",
		rule: "after Close no goroutine of the client is left (P9)",
		run: func(h *clients) {
			label := fmt.Sprintf("%p", h)
			s, other := h.handle(), h.client(longTTL)
			held := h.acquire(other, "held")
			pprof.Do(h.ctx, pprof.Labels("clients", label), func(ctx context.Context) {
				c := h.open(s, &holdfast.Options{TTL: shortTTL})
				l := h.acquire(c, "a")
				h.queue(1, c, "held")
				go func() {
					for range c.Watch(ctx, "held") {
					}
				}()
				if _, err := c.AcquireFor(ctx, "for", time.Hour); err != nil {
					h.Fatal(err)
				}
				time.Sleep(shortTTL / 2)
				h.is("a try", func() error { _, err := c.TryAcquire(ctx, "a"); return err }(), holdfast.ErrHeld)
				go l.Release(ctx)
				if err := c.Close(); err != nil {
					h.Errorf("Close: %v", err)
				}
			})
			h.release(held)
			h.eventually(h.soon, "its goroutines have ended", func() bool {
				var all bytes.Buffer
				pprof.Lookup("goroutine").WriteTo(&all, 1)
				for _, stack := range strings.Split(all.String(), "\n\n") {
					if strings.Contains(stack, label) && strings.Contains(stack, "holdfast.(*") {
						return false
					}
				}
				return true
			})
		},
	},
}

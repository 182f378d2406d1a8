package sqlstore

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// The error of a call that waited for a connection in vain says that there are too few, and only
// then.
func TestNoneFree(t *testing.T) {
	late, other := context.DeadlineExceeded, errors.New("refused")
	want := "all 4 connections of the pool are in use: raise MaxConns, or give Holdfast a pool of its own: context deadline exceeded"
	if err := NoneFree(late, 4, 4, "MaxConns"); err.Error() != want || !errors.Is(err, late) {
		t.Errorf("got %v", err)
	}
	if err := NoneFree(late, 3, 4, "MaxConns"); err != late {
		t.Errorf("one is free: %v", err)
	}
	if err := NoneFree(late, 4, 0, "MaxConns"); err != late {
		t.Errorf("there is no limit: %v", err)
	}
	if err := NoneFree(other, 4, 4, "MaxConns"); err != other {
		t.Errorf("another error: %v", err)
	}
}

// fakeConns are numbers, of which some work and are sound.
type fakeConns struct {
	opened, closed atomic.Int32
	broken         bool // what is idle
	fails          error
}

func (f *fakeConns) Open(context.Context) (int, error) {
	return int(f.opened.Add(1)), nil
}

func (f *fakeConns) Works(context.Context, int, time.Duration) (bool, error) {
	return !f.broken, f.fails
}
func (f *fakeConns) Sound(_ int, err error) bool { return err == nil }

func (f *fakeConns) Close(int) error {
	f.closed.Add(1)
	return nil
}

func TestPool(t *testing.T) {
	nothing := func(int) error { return nil }
	run := func(name string, test func(t *testing.T, f *fakeConns)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, &fakeConns{}) })
		})
	}
	want := func(t *testing.T, f *fakeConns, opened, closed int32) {
		t.Helper()
		if f.opened.Load() != opened || f.closed.Load() != closed {
			t.Errorf("%d were opened and %d closed, want %d and %d", f.opened.Load(), f.closed.Load(), opened, closed)
		}
	}
	run("turns", func(t *testing.T, f *fakeConns) {
		p := NewPool(f, 2, 2)
		p.Use(t.Context(), nothing) // one is idle from now on
		err := p.Use(t.Context(), func(one int) error {
			return p.Use(t.Context(), func(other int) error {
				if one == other {
					t.Errorf("two calls have connection %d", one)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := p.Use(ctx, nothing); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a third call: %v", err)
				}
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
		want(t, f, 2, 0)
	})
	run("errors", func(t *testing.T, f *fakeConns) {
		p := NewPool(f, 1, 1)
		failed := errors.New("failed")
		if err := p.Use(t.Context(), func(int) error { return failed }); err != failed {
			t.Errorf("got %v", err)
		}
		want(t, f, 1, 1)
		func() {
			defer func() { recover() }()
			p.Use(t.Context(), func(int) error { panic("in a call") })
		}()
		want(t, f, 2, 2)
		p.Use(t.Context(), nothing)
		f.broken = true
		p.Use(t.Context(), nothing)
		want(t, f, 4, 3)
		f.fails = failed
		if err := p.Use(t.Context(), nothing); err != failed {
			t.Errorf("got %v of what cannot be seen to work", err)
		}
		f.broken, f.fails = false, nil
		p.Use(t.Context(), nothing)
		want(t, f, 4, 3)
	})
	run("borrow", func(t *testing.T, f *fakeConns) {
		lender := NewPool(f, 1, 1)
		p := NewPool(f, 1, 1)
		p.Borrow(lender, 3)
		lender.Use(t.Context(), func(int) error { return p.UseIdle(t.Context(), nothing) }) // it is in use
		want(t, f, 2, 0)
		p.UseIdle(t.Context(), func(conn int) error {
			if conn == 1 {
				t.Error("it was borrowed where there is one of its own")
			}
			return nil
		})
		p.Trim(0) // which keeps it
		q := NewPool(f, 1, 1)
		q.Borrow(lender, 1)
		for range 2 { // the second time it is too often
			q.UseIdle(t.Context(), nothing)
		}
		want(t, f, 3, 0)
	})
	run("unused", func(t *testing.T, f *fakeConns) {
		p := NewPool(f, 2, 1)
		both := func() {
			p.Use(t.Context(), func(int) error { return p.Use(t.Context(), nothing) })
		}
		both()
		time.Sleep(maxUnused - time.Second)
		both()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want(t, f, 2, 0)
		time.Sleep(10 * maxUnused)
		synctest.Wait()
		want(t, f, 2, 1)
	})
	run("close", func(t *testing.T, f *fakeConns) {
		p := NewPool(f, 2, 0)
		busy, done := make(chan struct{}), make(chan struct{})
		go p.Use(t.Context(), func(int) error { <-busy; return nil })
		synctest.Wait()
		go func() {
			p.Close()
			want(t, f, 1, 1)
			close(done)
		}()
		synctest.Wait()
		late := make(chan error, 1)
		go func() { late <- p.Use(t.Context(), nothing) }()
		synctest.Wait()
		select {
		case <-done:
			t.Error("it was closed under a call")
		default:
		}
		close(busy)
		<-done
		if err := <-late; err != driver.ErrClosed {
			t.Errorf("a call that came during Close: %v", err)
		}
		if err := p.Use(t.Context(), nothing); err != driver.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

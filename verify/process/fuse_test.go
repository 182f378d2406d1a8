//go:build linux

package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/stores"
	"golang.org/x/sys/unix"
)

// A fuse is a store that kills its process with -9 before or after the n-th call
// of a kind from when it was lit.
type fuse struct {
	driver.Store
	kind  string
	at    int
	after bool

	mu    sync.Mutex
	lit   bool
	calls []string
}

func (f *fuse) light(lit bool) { f.mu.Lock(); f.lit = lit; f.mu.Unlock() }

// call makes a call, unless this process does not live to see it.
func (f *fuse) call(what string, do func()) {
	f.mu.Lock()
	this := false
	if f.lit {
		f.calls = append(f.calls, what)
		if what == f.kind {
			f.at--
			this = f.at == 0
		}
	}
	f.mu.Unlock()
	if this && !f.after {
		die()
	}
	do()
	if this && f.after {
		die()
	}
}

// die ends this process before this function returns.
func die() {
	runtime.LockOSThread()
	unix.Tgkill(os.Getpid(), unix.Gettid(), syscall.SIGKILL)
	select {}
}

func (f *fuse) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) (recs []driver.Record, err error) {
	f.call(fmt.Sprintf("read %d", len(keys)), func() { recs, err = f.Store.Load(ctx, keys, how) })
	return recs, err
}

func (f *fuse) CompareAndSwap(ctx context.Context, writes []driver.Write) (outs []driver.Outcome, err error) {
	what := "write"
	for _, w := range writes {
		what += " " + w.Key.Space.String()
	}
	f.call(what, func() { outs, err = f.Store.CompareAndSwap(ctx, writes) })
	return outs, err
}

func (f *fuse) Keys(ctx context.Context, space driver.Space, after string, n int) (names []string, err error) {
	f.call("list", func() { names, err = f.Store.Keys(ctx, space, after, n) })
	return names, err
}

// crash does one thing with a store that is a fuse. If it lives to tell it
// prints the calls that it took.
func crash(args []string) error {
	p := newPart()
	what := p.String("do", "", "")
	f := &fuse{}
	p.StringVar(&f.kind, "kind", "", "")
	p.IntVar(&f.at, "at", 0, "")
	p.BoolVar(&f.after, "after", false, "")
	beats := make(chan bool, 100)
	trace := &holdfast.Trace{Heartbeat: func(context.Context, holdfast.Event) { beats <- true }}
	if err := p.begin(args, func(s driver.Store) driver.Store { f.Store = s; return stores.Behind(f, s) }, trace); err != nil {
		return err
	}
	var lock *holdfast.Lock
	var err error
	acquire := func() {
		if err == nil {
			lock, err = p.client.Acquire(p.ctx, p.name)
		}
	}
	switch *what {
	case "acquire", "queue", "declare dead":
		f.light(true)
		acquire()
	case "renew":
		acquire()
		<-beats
		f.light(true)
		for range 3 {
			<-beats
		}
	case "release", "hand on":
		acquire()
		for *what == "hand on" && err == nil {
			var info holdfast.Info
			if info, err = p.client.Show(p.ctx, p.name); len(info.Waiters) > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		f.light(true)
		if err == nil {
			err = errors.Join(lock.Release(p.ctx), p.client.Close())
		}
	case "break", "break now":
		f.light(true)
		var info holdfast.Info
		if info, err = p.client.Show(p.ctx, p.name); err == nil && *what == "break" {
			err = p.client.Break(p.ctx, info.Holders[0].Name, info.Holders[0].Token, "a test")
		} else if err == nil {
			err = p.client.BreakNow(p.ctx, info.Holders[0].Name, info.Holders[0].Token, "a test")
		}
	default:
		err = fmt.Errorf("unknown: %s", *what)
	}
	f.light(false)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(f.calls); err != nil {
		return err
	}
	if lock != nil {
		lock.Release(p.ctx)
	}
	return p.end()
}

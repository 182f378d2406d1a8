//go:build linux

package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"golang.org/x/sys/unix"
)

// A paused is what a holder that was stopped has to tell.
type paused struct {
	Token   int64
	Acts    int
	LastAct int64 // when it last asked whether it still holds, and heard yes
	Lost    int64 // when it heard no
	Context string
	Before  string // of a fenced write while it held the lock
	After   string // and of one after it had lost it
	Loss    string
}

// pause holds a lock, asks before each act whether it still does, and tells what
// happened when it heard that it does not. With -between it stops itself between
// the question and the act.
func pause(args []string) error {
	p := newPart()
	between := p.Bool("between", false, "")
	if err := p.begin(args, nil, nil); err != nil {
		return err
	}
	lock, err := p.client.Acquire(p.ctx, p.name)
	if err != nil {
		return err
	}
	ctx := lock.Context()
	write := func(what string) string {
		err := fenced(p, lock, what)
		switch {
		case err == nil:
			return "written"
		case errors.Is(err, holdfast.ErrLost):
			return "lost"
		}
		return err.Error()
	}
	told := paused{Token: lock.Token(), Before: write("before")}
	l, err := life.Begin(p.lives, "", lock.Token())
	if err != nil {
		return err
	}
	for {
		asked := life.Now()
		if lock.Err() != nil {
			told.Lost = asked
			break
		}
		told.Acts++
		told.LastAct = asked
		if *between && told.Acts == 50 {
			l.Tick()
			runtime.LockOSThread()
			if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
				return err
			}
			break // in the belief that it holds the lock
		}
		l.Tick()
	}
	told.After = write("after")
	told.Loss = fmt.Sprint(lock.Err())
	switch {
	case ctx.Err() == nil:
		told.Context = "goes on"
	case errors.Is(context.Cause(ctx), holdfast.ErrLost):
		told.Context = "lost"
	default:
		told.Context = fmt.Sprint(context.Cause(ctx))
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		return err
	}
	lock.Release(p.ctx)
	return p.end()
}

// fenced writes to a table of the application's in a transaction with the fence,
// where there are transactions.
func fenced(p *part, lock *holdfast.Lock, what string) error {
	if p.store.DB == nil {
		return lock.Err()
	}
	tx, err := p.store.DB.BeginTx(p.ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.Exec(p.store.SQL(`insert into effects (token, what) values (?, ?)`), lock.Token(), what); err != nil {
		return err
	}
	if err := p.store.Fence(p.ctx, tx, lock, false); err != nil {
		return err
	}
	return tx.Commit()
}

// A holder that stood still for longer than its lease does nothing in the belief
// that it holds the lock; what slips between its question and its act is refused
// by the fence.
func TestHolderStopped(t *testing.T) { onStores(t, stopped) }

func stopped(t *testing.T, fresh func(*testing.T) *world) {
	t.Run("fence", func(t *testing.T) {
		if fresh(t).tables == nil {
			t.Skip("SKIPPED: there are no transactions here, so the fence is not tested")
		}
	})
	for _, between := range []bool{false, true} {
		for round := range number(4, 25) {
			stop := time.Duration(stretch) * time.Duration(1100+round*300%2000) * time.Millisecond // of a TTL of 1s, or longer
			t.Run(fmt.Sprintf("between=%v/%v/%d", between, stop, round), func(t *testing.T) {
				t.Parallel()
				holderStopped(t, fresh(t), between, stop)
			})
		}
	}
}

func holderStopped(t *testing.T, w *world, between bool, stop time.Duration) {
	if w.tables != nil {
		_, err := w.tables.Exec(`create table effects (token bigint, what text)`)
		must(t, err)
	}
	ttl, text := lease(time.Second)
	holder := w.program("pause", "-ttl", text, fmt.Sprintf("-between=%v", between))
	w.after(0, 1)
	next := w.program("hold", "-ttl", text)
	w.queued("x", 1)
	if between {
		await(t, "the holder stops itself", func() bool { return state(holder.Process.Pid) == 'T' })
	} else {
		holder.signal(syscall.SIGSTOP)
		await(t, "the holder stands still", func() bool { return state(holder.Process.Pid) == 'T' })
	}
	session := w.show("x").Holders[0].Owner.Session
	began, beat := life.Now(), w.lastBeat(session)
	for life.Now() < began+int64(stop) || len(w.spans()) < 2 {
		if alive := w.alive(); alive < 2 && len(w.spans()) < 2 {
			t.Fatal("the next has ended, and never held the lock")
		}
		time.Sleep(5 * time.Millisecond)
	}
	resumed := life.Now()
	holder.signal(syscall.SIGCONT)
	holder.wantStatus(0)
	next.end()
	next.wantStatus(0)

	var told paused
	must(t, json.Unmarshal(holder.stdout.Bytes(), &told))
	second := w.spans()[1]
	if second.Token <= told.Token {
		t.Errorf("token %d after %d", second.Token, told.Token)
	}
	if waited := time.Duration(second.Begin - beat); waited < ttl {
		t.Errorf("the next held the lock %v after the last heartbeat, before the TTL of %v", waited, ttl)
	}
	if told.LastAct >= resumed {
		t.Errorf("it acted %v after it was continued (%d acts)", time.Duration(told.LastAct-resumed), told.Acts)
	}
	if told.LastAct >= second.Begin {
		t.Errorf("it acted %v after the next had begun", time.Duration(told.LastAct-second.Begin))
	}
	if told.Before != "written" || told.After != "lost" {
		t.Errorf("fenced writes: while it held %q, after that %q", told.Before, told.After)
	}
	if told.Context != "lost" {
		t.Errorf("its context: %s", told.Context)
	}
	if w.tables != nil {
		var effects int
		must(t, w.tables.QueryRow(`select count(*) from effects`).Scan(&effects))
		if effects != 1 {
			t.Errorf("%d fenced writes are there, want 1", effects)
		}
	}
	t.Logf("figure: stopped for %v of a TTL of %v: 0 acts after, fenced write refused where there is a fence, the next held the lock %v after the last heartbeat; %s",
		stop, ttl, time.Duration(second.Begin-beat).Round(time.Millisecond), told.Loss)
}

package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/filesystem"
)

// A dirWriter is an entry of ours in state/pending, which is its lease. The lease is
// trusted for its length less the margin, counted from before its last renewal was
// sent. Nobody removes the entry earlier.
type dirWriter struct {
	d      *dir
	name   string
	ctx    context.Context
	cancel context.CancelCauseFunc
	file   *os.File // locked: this host's proof that someone writes; nil: there is none
	done   chan struct{}
	loops  sync.WaitGroup

	ending sync.Mutex // one End at a time
	gone   bool       // it has left
	ended  error      // what End returned then

	mu     sync.Mutex
	window lease.Window
	lost   error
	late   error // why the last renewal failed
	over   bool  // End has been called
	began  lease.Instant
}

// now reads a clock that does not step and runs while the machine sleeps.
func (d *dir) now() lease.Instant { return lease.Instant(d.machine.Now()) }

// emit calls a function of the trace if it is set. w.mu is not held.
func (w *dirWriter) emit(f func(context.Context, holdfast.Event), e holdfast.Event) {
	if f != nil {
		e.Name = w.d.path
		f(w.ctx, e)
	}
}

// traceLost emits Lost; nil: nothing.
func (w *dirWriter) traceLost(lost *holdfast.LostError) {
	if lost != nil {
		w.emit(w.d.Trace.Lost, holdfast.Event{Held: w.d.now().Sub(w.began), Reason: lost.Reason, Err: lost})
	}
}

func (d *dir) begin(ctx context.Context) (*Writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("begin to write %q: %w", d.path, err)
	}
	w := &dirWriter{d: d, name: nameOf(d.Lease), done: make(chan struct{})}
	if err := w.enter(); err != nil {
		return nil, fmt.Errorf("begin to write %q: %w; nothing may be written", d.path, err)
	}
	w.ctx, w.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	w.began = d.now()
	w.emit(w.d.Trace.Acquired, holdfast.Event{})
	w.loops.Go(w.guard)
	go w.renew() // may hang with its file server: nobody waits for it
	return &Writer{w}, nil
}

// enter makes the entry: complete, locked and on disk before it is where readers
// see it.
func (w *dirWriter) enter() error {
	d := w.d
	st, err := d.open()
	if err != nil {
		return err
	}
	defer st.close()
	if err := st.mkdir(pending); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	pend, err := st.open(pending)
	if err != nil {
		return err
	}
	defer pend.close()

	return w.publish(st, pend)
}

// publish writes the entry, and moves it to the pending ones.
func (w *dirWriter) publish(st, pend folder) (err error) {
	d := w.d
	if err := d.at("write entry"); err != nil {
		return err
	}
	sent := d.now()
	temp := temporary + w.name
	file, err := st.create(temp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			st.remove(temp)
			pend.remove(w.name)
		}
		if err != nil || w.file == nil {
			file.Close()
		}
	}()
	text := d.describe()
	if filesystem.Local(pend.path) == nil && lock(file) == nil {
		if text.Proof, err = identity(file); err != nil {
			return err
		}
		w.file = file
	}
	if err := d.fill(file, text.encode()); err != nil {
		return err
	}
	if err := st.touch(temp); err != nil {
		return err
	}
	if err := d.at("rename entry"); err != nil {
		return err
	}
	if err := st.rename(temp, pend, w.name); err != nil {
		if _, look := pend.stat(w.name); look != nil { // else only the answer was lost
			return err
		}
	}
	if err := d.at("sync entry"); err != nil {
		return err
	}
	if err := pend.sync(); err != nil {
		return err
	}
	if err := st.sync(); err != nil { // pending itself may be new
		return err
	}
	w.window.Extend(sent, d.Lease, d.now())
	if !w.window.Open(d.now()) {
		return errors.New("this took as long as a lease")
	}
	return nil
}

// describe is what an entry of ours says.
func (d *dir) describe() entry {
	e := entry{PID: os.Getpid()}
	e.Host, _ = os.Hostname()
	for _, v := range []string{"LOGNAME", "USER", "USERNAME"} {
		if e.User == "" {
			e.User = os.Getenv(v)
		}
	}
	if len(os.Args) > 0 {
		e.Program = filepath.Base(os.Args[0])
	}
	return e
}

func (w *dirWriter) Context() context.Context { return leaseContext{w.ctx, w} }

// A leaseContext is right about its end even when a timer is late, as after the
// process was stopped.
type leaseContext struct {
	context.Context
	w *dirWriter
}

func (c leaseContext) Err() error {
	c.w.left()
	return c.Context.Err()
}

func (w *dirWriter) TTL() time.Duration { return w.d.Lease }

func (w *dirWriter) Proof() *os.File { return w.file }

func (w *dirWriter) Deadline() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deadline()
}

// deadline needs w.mu.
func (w *dirWriter) deadline() time.Time { return time.Now().Add(w.window.Left(w.d.now())) }

// renew keeps the lease until the end. It looks at least once a second whether a renewal is due,
// since a timer does not run while the machine sleeps.
func (w *dirWriter) renew() {
	wait := w.d.Lease / 3
	due := w.d.now().Add(wait)
	t := w.d.machine.NewTimer(0)
	defer t.Stop()
	for {
		t.Reset(min(due.Sub(w.d.now()), time.Second))
		select {
		case <-t.C:
		case <-w.done:
			return
		}
		if w.d.now() < due {
			continue
		}
		next := wait
		if err := w.beat(); err != nil {
			next = max(wait/10, 50*time.Millisecond)
		}
		if w.ctx.Err() != nil {
			return
		}
		due = w.d.now().Add(next)
	}
}

// beat renews the lease once, and finds out whether the entry is still there.
func (w *dirWriter) beat() error {
	sent := w.d.now()
	err := w.touch()
	w.mu.Lock()
	select {
	case <-w.done:
		w.mu.Unlock()
		return nil
	default:
	}
	var lost *holdfast.LostError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		lost = w.lose("its entry was removed", nil)
	case err == nil && w.window.Open(w.d.now()):
		w.window.Extend(sent, w.d.Lease, w.d.now())
		w.late = nil
	default:
		w.late = err
	}
	until := w.deadline()
	w.mu.Unlock()
	w.traceLost(lost)
	w.emit(w.d.Trace.Heartbeat, holdfast.Event{Took: w.d.now().Sub(sent), Until: until, Err: err})
	return err
}

// touch gives the entry the current time, if it still has its name.
func (w *dirWriter) touch() error {
	if err := w.d.at("renew"); err != nil {
		return err
	}
	return w.inPending(func(pend folder) error { return pend.touch(w.name) })
}

// inPending opens the directory anew, so that a replaced directory is noticed.
func (w *dirWriter) inPending(fn func(folder) error) error {
	st, err := openBelow(w.d.path, "state")
	if err != nil {
		return err
	}
	defer st.close()
	pend, err := st.open(pending)
	if err != nil {
		return err
	}
	defer pend.close()
	return fn(pend)
}

// guard ends belief in the lease when the window ends, without waiting for any I/O. It looks
// at least once a second, since a timer does not run while the machine sleeps.
func (w *dirWriter) guard() {
	t := w.d.machine.NewTimer(0)
	defer t.Stop()
	for {
		left := w.left()
		if left <= 0 {
			return
		}
		t.Reset(min(left, time.Second))
		select {
		case <-t.C:
		case <-w.done:
			return
		}
	}
}

// left is how much of the window is left; when nothing is left, the lease is lost.
func (w *dirWriter) left() time.Duration {
	var lost *holdfast.LostError
	defer func() { w.traceLost(lost) }()
	w.mu.Lock()
	defer w.mu.Unlock()
	left := w.window.Left(w.d.now())
	if left <= 0 && !w.over {
		lost = w.lose(fmt.Sprintf("not renewed for %v", (w.d.Lease-holdfast.Margin(w.d.Lease)-left).Round(100*time.Millisecond)), w.late)
	}
	return left
}

// lose ends belief in the lease, for ever; w.mu is held. It returns the loss for traceLost;
// nil: the lease had been lost before.
func (w *dirWriter) lose(why string, err error) *holdfast.LostError {
	if w.lost != nil || w.over {
		return nil
	}
	lost := &holdfast.LostError{Name: w.d.path, Reason: why, Err: err}
	w.lost = lost
	w.window.Close()
	w.cancel(lost)
	return lost
}

// End changes the key before it leaves, whatever has happened to the lease: a
// reader that took this writer for dead has changed it too early.
func (w *dirWriter) End(ctx context.Context) error {
	w.ending.Lock()
	defer w.ending.Unlock()
	if w.gone {
		return w.ended
	}
	w.left()
	w.mu.Lock()
	first := !w.over
	w.over = true
	w.mu.Unlock()
	if first {
		close(w.done)
		w.cancel(holdfast.ErrReleased)
		w.loops.Wait()
		// Could readers know of the write until its end?
		err := w.inPending(func(pend folder) error { _, err := pend.stat(w.name); return err })
		switch {
		case w.lost != nil:
		case errors.Is(err, fs.ErrNotExist):
			lost := &holdfast.LostError{Name: w.d.path, Reason: "its entry was removed"}
			w.mu.Lock() // a renewal may still be under way
			w.lost = lost
			w.mu.Unlock()
			w.traceLost(lost)
		default:
			w.emit(w.d.Trace.Released, holdfast.Event{Held: w.d.now().Sub(w.began)})
		}
	}
	err := w.leave()
	for try := 0; stale(err) && try < 3; try++ {
		err = w.leave()
	}
	if first && w.file != nil {
		w.file.Close() // nobody writes any more, whatever has become of the entry
	}
	if err != nil {
		err = fmt.Errorf("end of writing %q: the key was not changed: %w; until a reader can change it nothing is cached", w.d.path, err)
		if w.lost != nil {
			err = errors.Join(w.lost, err)
		}
		return err
	}
	w.gone, w.ended = true, w.lost
	return w.ended
}

// leave changes the key and then removes the entry.
func (w *dirWriter) leave() error {
	st, err := w.d.open()
	if err != nil {
		return err
	}
	defer st.close()
	if err := w.d.rotate(st); err != nil {
		return err
	}
	// An entry that stays counts as a dead writer's: the next reader sees to it.
	w.inPending(func(pend folder) error {
		if err := w.d.at("remove entry"); err != nil {
			return err
		}
		return pend.remove(w.name)
	})
	return nil
}

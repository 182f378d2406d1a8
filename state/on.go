package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// On is the state that goes by a name in a store: its key is the version of the
// name's lock record, which changes with every grant and release, and a writer
// is a shared holder of the lock. Whoever holds the name in another way, such as
// exclusively to be the only writer, is a writer as well.
//
// A store that was restored from a backup has the backup's versions until a name
// is written again: Clear the state, if what it stands for did not come from the same
// backup. States of one name in a store and in a copy of that store cannot be
// distinguished: give each a cache of its own.
func On(c *holdfast.Client, name string) *State { return &State{&byName{c, name}} }

type byName struct {
	c    *holdfast.Client
	name string
}

func (n *byName) id() string { return "name:" + n.name }

func (n *byName) key(ctx context.Context) (Key, error) {
	for try := 0; ; try++ {
		info, err := n.c.Show(ctx, n.name)
		if err != nil {
			return Key{}, fmt.Errorf("key of %q: %w", n.name, err)
		}
		k := Key{ID: strconv.FormatInt(info.Version, 10), Writing: len(info.Holders) > 0}
		if info.Version == 0 {
			k = Key{Writing: true}
		}
		switch {
		case try == 3: // others come and go
			return k, nil
		case info.Version == 0: // never written, or swept: now it gets a version
			err = n.pass(ctx, holdfast.Shared())
		case suspect(info.Holders):
			err = n.pass(ctx, holdfast.MaxWait(0)) // observes them on its way in
			if errors.Is(err, holdfast.ErrHeld) {
				return k, nil
			}
		default:
			return k, nil
		}
		if err != nil {
			return Key{}, fmt.Errorf("key of %q: %w", n.name, err)
		}
	}
}

// suspect says whether one of the holders may be dead.
func suspect(holders []holdfast.Claim) bool {
	for _, h := range holders {
		if !h.Own && (h.Dead || h.BeatAge < 0 || h.BeatAge >= h.TTL) {
			return true
		}
	}
	return false
}

// pass takes the lock and gives it back, which changes the key.
func (n *byName) pass(ctx context.Context, opts ...holdfast.Option) error {
	l, err := n.c.Acquire(ctx, n.name, append(opts, holdfast.Reason("changes the key"))...)
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

func (n *byName) begin(ctx context.Context) (*Writer, error) {
	l, err := n.c.Acquire(ctx, n.name, holdfast.Shared(), holdfast.Reason("writes"))
	if err != nil {
		return nil, fmt.Errorf("begin to write: %w; nothing may be written", err)
	}
	return &Writer{&nameWriter{n: n, l: l}}, nil
}

func (n *byName) clear(ctx context.Context) error {
	err := n.pass(ctx, holdfast.MaxWait(0)) // observes its holders
	if errors.Is(err, holdfast.ErrHeld) {
		err = n.pass(ctx, holdfast.Shared())
	}
	if err != nil {
		return fmt.Errorf("clear %q: %w", n.name, err)
	}
	return nil
}

// A nameWriter is a shared hold.
type nameWriter struct {
	n *byName
	l *holdfast.Lock

	mu   sync.Mutex // one End at a time
	gone bool
	err  error // what that End returned
}

func (w *nameWriter) Context() context.Context { return holdContext{w.l.Context(), w.l} }

// A holdContext is right about its end even when a timer is late.
type holdContext struct {
	context.Context
	l *holdfast.Lock
}

func (c holdContext) Err() error {
	c.l.Err()
	return c.Context.Err()
}

func (w *nameWriter) Deadline() time.Time { return w.l.Deadline() }

func (w *nameWriter) TTL() time.Duration { return w.l.TTL() }

func (w *nameWriter) Proof() *os.File { return w.l.Proof() }

// End changes the key once more if the lease was lost: the key changed when the
// lock went to another holder, and the write may have gone on after that.
func (w *nameWriter) End(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return w.err
	}
	err := w.l.Release(ctx)
	if errors.Is(err, holdfast.ErrLost) {
		if again := w.n.pass(ctx, holdfast.Shared()); again != nil {
			return errors.Join(err, fmt.Errorf("end of writing %q: the key was not changed: %w", w.n.name, again))
		}
	} else if err != nil {
		return fmt.Errorf("end of writing: %w", err)
	}
	w.gone, w.err = true, err
	return err
}

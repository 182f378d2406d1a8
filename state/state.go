package state

import (
	"context"
	"errors"
	"os"
	"time"
)

// A State is what the key stands for. Its methods may be called from any number
// of goroutines.
type State struct {
	keeper
}

// A keeper keeps the key.
type keeper interface {
	id() string // what tells this state from others, for the cache
	key(ctx context.Context) (Key, error)
	begin(ctx context.Context) (*Writer, error)
	clear(ctx context.Context) error
}

// A Key is what a state was when it was asked for.
type Key struct {
	ID      string // of the state; "" if it cannot be known, then Writing is true
	Writing bool   // someone writes: what is read now must not be cached by this key
	stamp   string // tells a key that came back, with a backup, from what it was
}

// Key returns the current key. What is read after that call may be cached under
// the key only if a second call, made after everything was read, returns an Equal key,
// and Writing is false in both. An error means that the key cannot be known: then
// nothing may be taken from a cache, nor cached. Key makes up for writers that have
// died, and makes the first key.
func (s *State) Key(ctx context.Context) (Key, error) { return s.key(ctx) }

// Equal says whether two keys stand for the same state.
func (k Key) Equal(other Key) bool { return k.ID == other.ID && k.stamp == other.stamp }

// Begin begins a write. Readers see it before Begin returns, and go on
// without the cache until End. Any number may write at the same time. An error
// means that nothing may be written. ctx does not bound the write.
func (s *State) Begin(ctx context.Context) (*Writer, error) { return s.begin(ctx) }

// Write runs fn between Begin and End. fn's context ends with ctx, and when the
// lease is lost: then it must stop writing. Whatever fn returns, the key
// changes. It returns what kept it from running fn, or fn's error joined with
// that of End.
func (s *State) Write(ctx context.Context, fn func(context.Context) error) (err error) {
	w, err := s.begin(ctx)
	if err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(w.Context())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer func() {
		stop()
		cancel(nil)
		end, done := context.WithTimeout(context.WithoutCancel(ctx), w.TTL())
		defer done()
		if e := w.End(end); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return fn(work)
}

// Clear changes the key, and removes writers whose lease has ended. Writers at
// work stay. It is for people, and for use after a restore from a backup.
func (s *State) Clear(ctx context.Context) error { return s.clear(ctx) }

// A Writer is a write that is under way. Its lease is renewed until End.
type Writer struct {
	leased
}

type leased interface {
	// Context has the values of Begin's ctx, but not its end: it ends when the
	// lease is lost, or with End, and context.Cause says why (ErrLost,
	// ErrReleased of package holdfast). Its Err reads the clock itself: it is the
	// check to make before each change.
	Context() context.Context
	// Deadline is when the lease ends unless it is renewed.
	Deadline() time.Time
	// TTL is how long each renewal is good for.
	TTL() time.Duration
	// Proof is an open file by which this host knows that someone writes, also
	// after this process's death if a command has inherited it. nil: there is
	// none. It must not be closed.
	Proof() *os.File
	// End changes the key, durably, and then leaves. ErrLost: the lease was lost
	// before, so readers may have taken half a write for the whole; they no longer
	// will, since the key has changed. Any other error: the key may not have changed
	// yet, and readers will see to it; End may be called again.
	End(ctx context.Context) error
}

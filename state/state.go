// Package state keeps a key for something that changes, such as a repository:
// readers look a cached answer up by the key, and whoever changes the thing
// changes the key. The key is random, or a version, so that the cache can be a
// dumb store of immutable blobs.
//
// There are two kinds with one type: a name in any store of Holdfast (On), and
// plain files that any program can follow (Dir).
package state

import (
	"context"
	"os"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A State is what the key stands for.
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
	ID      string // of the state; "" if it cannot be told, then Writing is true
	Writing bool   // someone writes: what is read now must not be cached by this key
	stamp   string // tells a key that came back, with a backup, from what it was
}

// Key returns the key of now. What is read after that call may be cached under
// the key only if Writing is false in it and in the answer of a second call, made after all was
// read, and both are Equal.
func (s *State) Key(ctx context.Context) (Key, error) { return s.key(ctx) }

// Equal says whether two keys stand for the same state.
func (k Key) Equal(other Key) bool { return k.ID == other.ID && k.stamp == other.stamp }

// Begin begins a write. Readers are told of it before Begin returns, and go on
// without the cache until End. Any number may write at the same time. An error means that
// nothing may be written.
func (s *State) Begin(ctx context.Context) (*Writer, error) { return s.begin(ctx) }

// Write runs fn between Begin and End. fn's context ends when the lease is lost: then it
// must stop writing.
func (s *State) Write(ctx context.Context, fn func(context.Context) error) error {
	panic("to be written")
}

// Clear changes the key, and removes writers whose lease has ended. Writers at work stay. It is for people.
func (s *State) Clear(ctx context.Context) error { return s.clear(ctx) }

// A Writer is a write that is under way. Its lease is renewed until End.
type Writer struct {
	lease
}

type lease interface {
	Context() context.Context      // ends when the lease is lost, with that cause, or by End
	Deadline() time.Time           // when the lease ends unless it is renewed
	TTL() time.Duration            // how long each renewal is good for
	Proof() *os.File               // what a command inherits so that this host knows that it still writes; may be nil
	End(ctx context.Context) error // changes the key, durably, and then leaves
}

// On is the state that goes by a name in a store: its key is the version of the
// name's lock record, and a writer is a shared holder of the lock.
func On(c *holdfast.Client, name string) *State { panic("to be written") }

// DirOptions are settings of plain files.
type DirOptions struct {
	Lease time.Duration                    // of a writer, renewed each third of it; 0: 30 s
	Limit time.Duration                    // when a pending entry that nobody renews and that tells no lease of its own is that of a dead writer; 0: an hour
	Beat  func(until time.Time, err error) // told of each renewal; may be nil
}

// Dir is the state in the files state/key and state/pending/* of a directory.
func Dir(path string, opts *DirOptions) (*State, error) { panic("to be written") }

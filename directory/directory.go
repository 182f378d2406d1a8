// Package directory is a store in a plain directory that several hosts may share.
package directory

import (
	"context"

	"github.com/holdfast-lock/holdfast"
)

// A Store keeps records as files.
type Store struct{}

// New opens the store in the directory at path. Migrate has prepared it.
func New(path string) (*Store, error) { panic("to be written") }

// Migrate prepares an existing directory; it may be repeated.
func Migrate(path string) error { panic("to be written") }

// Close ends what the store has opened.
func (s *Store) Close() error { return nil }

// Load implements holdfast.Store.
func (s *Store) Load(ctx context.Context, keys []holdfast.Key) ([]holdfast.Record, error) {
	panic("to be written")
}

// CompareAndSwap implements holdfast.Store.
func (s *Store) CompareAndSwap(ctx context.Context, writes []holdfast.Write) ([]holdfast.Outcome, error) {
	panic("to be written")
}

// Keys implements holdfast.Store.
func (s *Store) Keys(ctx context.Context, space holdfast.Space, after string, n int) ([]string, error) {
	panic("to be written")
}

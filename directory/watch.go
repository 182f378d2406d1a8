package directory

import (
	"context"
	"errors"

	"github.com/holdfast-lock/holdfast"
)

func (s *Store) tell(writes []holdfast.Write, outcomes []holdfast.Outcome) {}

// Watch implements holdfast.Watcher.
func (s *Store) Watch(ctx context.Context, who []string, changed func(holdfast.Hint)) error {
	return errors.New("to be written")
}

// Diagnose implements holdfast.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) ([]holdfast.Finding, error) { return nil, nil }

package directory

import (
	"context"

	"github.com/holdfast-lock/holdfast"
)

// Diagnose implements holdfast.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) ([]holdfast.Finding, error) { return nil, nil }

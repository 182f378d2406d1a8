package cassandra

import (
	"context"

	"github.com/holdfast-lock/holdfast"
)

func (s *Store) Diagnose(ctx context.Context) ([]holdfast.Finding, error) { return nil, nil }

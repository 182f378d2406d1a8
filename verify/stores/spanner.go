package stores

import (
	"context"
	"io"
	"log"
	"strings"

	"cloud.google.com/go/spanner"

	hfspanner "github.com/holdfast-lock/holdfast/spanner"
)

// databaseOf connects to spanner://projects/P/instances/I/databases/D, in the emulator
// that SPANNER_EMULATOR_HOST says.
func databaseOf(ctx context.Context, target string) (*spanner.Client, error) {
	return spanner.NewClientWithConfig(ctx, strings.TrimPrefix(target, "spanner://"),
		spanner.ClientConfig{DisableNativeMetrics: true, Logger: log.New(io.Discard, "", 0)})
}

func openSpanner(ctx context.Context, target string) (*Store, error) {
	c, err := databaseOf(ctx, target)
	if err != nil {
		return nil, err
	}
	s, err := hfspanner.New(ctx, c, nil)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &Store{Store: s, Registers: inSpanner{s, c}, close: func() error { c.Close(); return nil }}, nil
}

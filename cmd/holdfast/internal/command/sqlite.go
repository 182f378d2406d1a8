package command

import (
	"context"
	"os"
	"path/filepath"

	"github.com/holdfast-lock/holdfast/sqlite"
)

var sqliteKind = kind{
	example:   "sqlite:/var/lib/locks.db",
	needsPath: true,
	settings:  []string{"allow"},
	open: func(ctx context.Context, t target) (handle, error) {
		if err := t.ownDir(); err != nil {
			return handle{}, err
		}
		s, err := sqlite.Open(ctx, t.path, &sqlite.Options{Create: t.own, Allow: t.allow})
		if err != nil {
			return handle{}, err
		}
		return handle{s, s.Close}, nil
	},
	schemaText: func(target) (string, error) { return sqlite.Schema(), nil },
	migrate: func(ctx context.Context, t target) error {
		if err := t.ownDir(); err != nil {
			return err
		}
		return sqlite.Migrate(ctx, t.path)
	},
	verify: func(ctx context.Context, t target) error { return sqlite.Verify(ctx, t.path) },
}

// ownDir makes the directory of the file of one's own. No other is made unasked.
func (t target) ownDir() error {
	if !t.own {
		return nil
	}
	return os.MkdirAll(filepath.Dir(t.path), 0o700)
}

package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/holdfast-lock/holdfast/driver"
)

// Kind is a SQLite store by its URL: sqlite:/var/lib/locks.db.
var Kind = &driver.Kind{
	Name: "sqlite", Schemes: []string{"sqlite"}, Form: "sqlite:PATH", Example: "sqlite:/var/lib/locks.db",
	NeedsPath: true, Settings: []string{"allow"},
	Open: func(ctx context.Context, at *driver.Location) (driver.Store, func() error, error) {
		if err := makeDirectory(at); err != nil {
			return nil, nil, err
		}
		if _, err := os.Stat(at.Path); at.Create && at.ReadOnly && errors.Is(err, fs.ErrNotExist) {
			if err := Migrate(ctx, at.Path); err != nil { // the program's own, in which nothing is held
				return nil, nil, err
			}
		}
		// A file that the user names is made by the first lock; existing contents are left alone.
		s, err := Open(ctx, at.Path, &Options{Create: at.Create, Allow: at.Allow, ReadOnly: at.ReadOnly, ifEmpty: true})
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	},
	Schema: func(*driver.Location) (string, error) { return Schema(), nil },
	Migrate: func(ctx context.Context, at *driver.Location) error {
		if err := makeDirectory(at); err != nil {
			return err
		}
		return Migrate(ctx, at.Path)
	},
	Verify: func(ctx context.Context, at *driver.Location) error { return Verify(ctx, at.Path) },
	FenceSQL: func(*driver.Location) string {
		return "insert into holdfast_fence (name, token) values (:name, :token)"
	},
}

// makeDirectory makes the directory of the program's own file. No other is made unasked.
func makeDirectory(at *driver.Location) error {
	if !at.Create {
		return nil
	}
	return os.MkdirAll(filepath.Dir(at.Path), 0o700)
}

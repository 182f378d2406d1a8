package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
)

// reopener is a store whose file a test can open once more.
type reopener struct{ *Store }

func (r reopener) Reopen(t *testing.T) driver.Store { return open(t, r.path, nil) }

func (r reopener) Restart(t *testing.T) driver.Store {
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return reopener{open(t, r.path, nil)}
}

func open(t testing.TB, path string, opts *Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// fresh is a store in a new file.
func fresh(t testing.TB) *Store {
	t.Helper()
	return open(t, filepath.Join(t.TempDir(), "locks.db"), &Options{Create: true})
}

func TestStore(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) driver.Store { return reopener{fresh(t)} })
}

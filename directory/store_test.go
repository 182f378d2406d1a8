package directory

import (
	"os"
	"testing"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
)

// A reopener opens its directory again as another process would.
type reopener struct{ *Store }

func (r reopener) Reopen(t *testing.T) driver.Store { return reopen(t, r.Store) }

func (r reopener) Restart(t *testing.T) driver.Store {
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return reopener{reopen(t, r.Store)}
}

// A sharedReopener does not sweep: where other hosts may change the files a write
// that meets the sweep of its key may not learn what became of it.
type sharedReopener struct {
	driver.Store
	s *Store
}

func (r sharedReopener) Reopen(t *testing.T) driver.Store {
	s := reopen(t, r.s)
	return sharedReopener{s, s}
}

func reopen(t *testing.T, s *Store) *Store {
	t.Helper()
	again, err := New(s.path)
	if err != nil {
		t.Fatal(err)
	}
	again.local, again.timed = s.local, s.timed
	t.Cleanup(func() { again.Close() })
	return again
}

// fresh is a store in a new directory.
func fresh(t *testing.T) *Store {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(dir); err != nil {
		t.Fatal(err)
	}
	s, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		drivertest.Run(t, func(t *testing.T) driver.Store { return reopener{fresh(t)} })
	})
	// As where other hosts may change the files.
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		drivertest.Run(t, func(t *testing.T) driver.Store {
			s := fresh(t)
			s.local = false
			return sharedReopener{s, s}
		})
	})
}

func TestFence(t *testing.T) {
	t.Parallel()
	drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced {
		s := reopener{fresh(t)}
		return drivertest.Gated(s, s.Reopen(t))
	})
}

func TestClients(t *testing.T) {
	t.Parallel()
	clienttest.Run(t, func(t *testing.T) driver.Store { return reopener{fresh(t)} })
}

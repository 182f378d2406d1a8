package sqlite

import (
	sqldriver "database/sql/driver"
	"path/filepath"
	"testing"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
)

func Benchmark(b *testing.B) {
	drivertest.Bench(b, func(b *testing.B) driver.Store { return fresh(b) })
}

// BenchmarkFloor is what a lock costs that is a row: inserted, then deleted,
// each waiting for the disk.
func BenchmarkFloor(b *testing.B) {
	c, err := fresh(b).connect(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer c.close()
	if err := c.script(`pragma synchronous = full; create table floor (name text primary key, value blob)`); err != nil {
		b.Fatal(err)
	}
	args := []sqldriver.Value{"a", make([]byte, 100)}
	for b.Loop() {
		if _, err := c.exec(`insert into floor (name, value) values (?, ?)`, args...); err != nil {
			b.Fatal(err)
		}
		if _, err := c.exec(`delete from floor where name = ?`, args[:1]...); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is what a program pays that takes one lock and ends.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "locks.db")
	open(b, path, &Options{Create: true})
	for b.Loop() {
		s, err := Open(b.Context(), path, nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkList is what `holdfast list` waits for.
func BenchmarkList(b *testing.B) {
	clienttest.BenchList(b, func(b *testing.B) driver.Store { return fresh(b) })
}

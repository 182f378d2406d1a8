package postgres

import (
	"testing"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

func Benchmark(b *testing.B) {
	drivertest.Bench(b, func(b *testing.B) driver.Store { return fresh(b, nil) })
}

// BenchmarkFloor is what a lock costs that is a row: inserted, then deleted,
// each waiting for the disk.
func BenchmarkFloor(b *testing.B) {
	pool := connect(b, servers.Postgres(b, nil).Database(b))
	ctx := b.Context()
	if _, err := pool.Exec(ctx, `create table floor (name text primary key, value bytea)`); err != nil {
		b.Fatal(err)
	}
	value := make([]byte, 100)
	for b.Loop() {
		if _, err := pool.Exec(ctx, `insert into floor (name, value) values ($1, $2)`, "a", value); err != nil {
			b.Fatal(err)
		}
		if _, err := pool.Exec(ctx, `delete from floor where name = $1`, "a"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is what a program pays that takes one lock and ends.
func BenchmarkOpen(b *testing.B) {
	r := fresh(b, nil)
	for b.Loop() {
		s, err := New(b.Context(), r.pool, nil)
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
	clienttest.BenchList(b, func(b *testing.B) driver.Store { return fresh(b, nil) })
}

package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
)

func Benchmark(b *testing.B) {
	drivertest.Bench(b, func(b *testing.B) driver.Store { return fresh(b, way{}) })
}

// A floor is what a lock costs that is a row: inserted, then deleted, each
// waiting for the disk.
func floor(b *testing.B, conns int) (insert, remove *sql.Stmt) {
	db := connect(b, fresh(b, way{}).url, way{conns: conns})
	db.SetMaxIdleConns(conns)
	if _, err := db.Exec(`create table floor (name varbinary(255) primary key, value blob)`); err != nil {
		b.Fatal(err)
	}
	insert, err := db.Prepare(`insert into floor (name, value) values (?, ?)`)
	if err != nil {
		b.Fatal(err)
	}
	remove, err = db.Prepare(`delete from floor where name = ?`)
	if err != nil {
		b.Fatal(err)
	}
	return insert, remove
}

// BenchmarkLocks takes and gives back locks, each goroutine its own, through one
// client, and beside it inserts and deletes rows.
func BenchmarkLocks(b *testing.B) {
	for _, n := range []int{1, 8, 64, 256} {
		each := func(b *testing.B, f func(name string) error) {
			var next atomic.Int64
			b.SetParallelism(n)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				name := fmt.Sprint("name ", i)
				for pb.Next() {
					if err := f(name); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		b.Run(fmt.Sprintf("holdfast/%d", n), func(b *testing.B) {
			c, err := holdfast.New(fresh(b, way{}), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			each(b, func(name string) error {
				l, err := c.Acquire(context.Background(), name)
				if err != nil {
					return err
				}
				return l.Release(context.Background())
			})
		})
		b.Run(fmt.Sprintf("floor/%d", n), func(b *testing.B) {
			insert, remove := floor(b, 16)
			each(b, func(name string) error {
				if _, err := insert.Exec(name, make([]byte, 100)); err != nil {
					return err
				}
				_, err := remove.Exec(name)
				return err
			})
		})
	}
}

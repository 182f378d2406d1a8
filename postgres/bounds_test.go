package postgres

import (
	"context"
	"testing"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
)

// Nothing that a client bounds takes longer because a transaction of somebody else keeps
// the row, open or prepared, because all connections are taken, or because the server
// stands still.
func TestBounds(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t, &servers.Options{Settings: []string{"max_prepared_transactions=20", "max_connections=200"}})
	locked := func(t *testing.T, r reopener, name string) *pgx.Conn {
		id := sqlstore.ID(driver.Key{Name: name})
		c, err := pgx.Connect(context.Background(), r.url)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, c, `begin`)
		exec(t, c, `insert into holdfast_records (id, version, value) values ($1, 1, '') on conflict (id) do update set fence = holdfast_records.fence`, id)
		return c
	}
	obstacles := []clienttest.Obstacle{
		{Name: "a row that stays locked", Begin: func(t *testing.T, s driver.Store, name string) func() {
			c := locked(t, s.(reopener), name)
			return func() { c.Close(context.Background()) }
		}},
		{Name: "a transaction that was prepared", Begin: func(t *testing.T, s driver.Store, name string) func() {
			c := locked(t, s.(reopener), name)
			exec(t, c, `prepare transaction '`+t.Name()+`'`)
			return func() {
				if _, err := c.Exec(context.Background(), `rollback prepared '`+t.Name()+`'`); err != nil {
					t.Error(err)
				}
				c.Close(context.Background())
			}
		}},
		{Name: "a pool that is exhausted", Silent: true, Begin: func(t *testing.T, s driver.Store, name string) (end func()) {
			pool := s.(reopener).pool
			for range pool.Config().MaxConns {
				c, err := pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				last := end
				end = func() {
					c.Release()
					if last != nil {
						last()
					}
				}
			}
			return end
		}},
		{Name: "a server that stands still", Silent: true, Server: true, Begin: func(t *testing.T, s driver.Store, name string) func() {
			if err := server.Freeze(); err != nil {
				t.Skip("SKIPPED:", err)
			}
			return func() {
				if err := server.Thaw(); err != nil {
					t.Error(err)
				}
			}
		}},
	}
	clienttest.RunBounds(t, func(t *testing.T) driver.Store { return migrated(t, server.Database(t), nil) }, obstacles...)
}

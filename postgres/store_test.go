package postgres

import (
	"testing"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/jackc/pgx/v5/pgxpool"
)

// reopener is a store whose database a test can open once more.
type reopener struct {
	*Store
	url string
}

func (r reopener) Reopen(t *testing.T) driver.Store { return open(t, connect(t, r.url), &r.opts) }

// connect makes a pool that is closed at the end.
func connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func open(t testing.TB, pool *pgxpool.Pool, opts *Options) *Store {
	t.Helper()
	s, err := New(t.Context(), pool, opts)
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

// migrated opens a store after having made the schema.
func migrated(t testing.TB, url string, opts *Options) reopener {
	t.Helper()
	pool := connect(t, url)
	if err := Migrate(t.Context(), pool, opts); err != nil {
		t.Fatal(err)
	}
	return reopener{open(t, pool, opts), url}
}

// fresh is a store in a new database.
func fresh(t testing.TB, opts *Options) reopener {
	t.Helper()
	return migrated(t, servers.Postgres(t, nil).Database(t), opts)
}

// hostile is a schema and a prefix that are valid and need quotes.
var hostile = &Options{Schema: "Select", Prefix: "Table_9_Where_"}

func TestStore(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) driver.Store { return fresh(t, nil) })
}

func TestStoreElsewhere(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) driver.Store { return fresh(t, hostile) })
}

// hidden is a store without notifications, as it is behind a pooler that shares
// connections.
type hidden struct {
	driver.Store
	reopener reopener
}

func hide(r reopener) hidden { return hidden{r.Store, r} }

func (h hidden) Reopen(t *testing.T) driver.Store {
	return hide(reopener{open(t, connect(t, h.reopener.url), &h.reopener.opts), h.reopener.url})
}

// bouncer is a PgBouncer in transaction mode before the tests' server.
func bouncer(t *testing.T) *servers.Server {
	t.Helper()
	return servers.PgBouncer(t, servers.Postgres(t, nil))
}

func TestStorePooled(t *testing.T) {
	t.Parallel()
	b := bouncer(t)
	drivertest.Run(t, func(t *testing.T) driver.Store { return hide(migrated(t, b.Database(t), nil)) })
}

func TestClients(t *testing.T) {
	t.Parallel()
	clienttest.Run(t, func(t *testing.T) driver.Store { return fresh(t, nil) })
}

// Clients write no SQL, so names that need quotes matter to TestStoreElsewhere; whether they
// do to clients is asked in the full size.
func TestClientsElsewhere(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: -short: clients of a store in another schema; TestStoreElsewhere has the store itself")
	}
	clienttest.Run(t, func(t *testing.T) driver.Store { return fresh(t, hostile) })
}

func TestClientsPooled(t *testing.T) {
	t.Parallel()
	b := bouncer(t)
	clienttest.Run(t, func(t *testing.T) driver.Store { return migrated(t, b.Database(t), nil) })
}

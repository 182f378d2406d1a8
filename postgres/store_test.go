package postgres

import (
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/storetest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// reopener is a store whose database a test can open once more.
type reopener struct {
	*Store
	url string
}

func (r reopener) Reopen(t *testing.T) holdfast.Store { return open(t, connect(t, r.url), &r.opts) }

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

// fresh is a store in a new database, and the URL of that.
func fresh(t testing.TB, opts *Options) (*Store, string) {
	t.Helper()
	url := servers.Postgres(t, nil).Database(t)
	pool := connect(t, url)
	if err := Migrate(t.Context(), pool, opts); err != nil {
		t.Fatal(err)
	}
	return open(t, pool, opts), url
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) holdfast.Store {
		s, url := fresh(t, nil)
		return reopener{s, url}
	})
}

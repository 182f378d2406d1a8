package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-lock/holdfast/driver"
)

// A pool that its user has closed is a closed store.
func TestClosedPool(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none?sslmode=disable") // connects when it is used
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	if err := pooled(t.Context(), pool, func(*pgx.Conn) error { return nil }); err != driver.ErrClosed {
		t.Errorf("error %v", err)
	}
}

package sqlite

import (
	"errors"
	"testing"

	"github.com/holdfast-lock/holdfast"
)

// A lock of a client fences a transaction on the same file while it is held;
// once it is given back and another holds it, it does not.
func TestFenceOfClient(t *testing.T) {
	s := fresh(t)
	db := application(t, s)
	ctx := t.Context()
	var clients [2]*holdfast.Client
	for i := range clients {
		c, err := holdfast.New(open(t, s.path, nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients[i] = c
	}
	pay := func(locks ...*holdfast.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec(`insert into orders (paid) values ('yes')`); err != nil {
			t.Fatal(err)
		}
		if err := Fence(ctx, tx, locks...); err != nil {
			return err
		}
		return tx.Commit()
	}

	first, err := clients[0].Acquire(ctx, "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	other, err := clients[0].Acquire(ctx, "orders/43", holdfast.Shared())
	if err != nil {
		t.Fatal(err)
	}
	if err := pay(first, other); err != nil {
		t.Fatal(err)
	}
	var token int64
	if err := db.QueryRow(`select token from holdfast_locks where name = 'orders/42' and state = 'held'`).Scan(&token); err != nil || token != first.Token() {
		t.Errorf("the view shows token %d, error %v; the lock has %d", token, err, first.Token())
	}
	if err := first.Release(ctx); err != nil {
		t.Fatal(err)
	}
	second, err := clients[1].Acquire(ctx, "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	if err := pay(other, first); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("a lock that was given back: error %v, want one that is ErrLost", err)
	}
	if err := pay(second); err != nil {
		t.Error(err)
	}
	var paid int
	if err := db.QueryRow(`select count(*) from orders`).Scan(&paid); err != nil || paid != 2 {
		t.Errorf("%d orders, error %v; want 2", paid, err)
	}
}

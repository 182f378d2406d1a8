package postgres

import (
	"fmt"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The server plans the statements of batches and of many keys a few times, and not anew for
// each call: a planner that sees how long an array is would find its own plan for a short one
// cheaper each time.
func TestPlannedOnce(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	config, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, nil)
	const calls = 40
	for i := range calls {
		var batch []driver.Write
		var keys []driver.Key
		for j := range 2 + i%8 {
			k := driver.Key{Name: fmt.Sprintf("%d %d", i, j)}
			w := driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1")}
			if j%2 == 1 {
				w.Notify = "a"
			}
			batch, keys = append(batch, w), append(keys, k)
		}
		if _, err := s.CompareAndSwap(ctx, batch); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(ctx, keys, driver.Fresh); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := pool.Query(ctx, `select statement, generic_plans, custom_plans from pg_prepared_statements where generic_plans + custom_plans >= $1`, calls)
	if err != nil {
		t.Skipf("the server does not count plans: %v", err) // before PostgreSQL 14
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var text string
		var generic, custom int
		if err := rows.Scan(&text, &generic, &custom); err != nil {
			t.Fatal(err)
		}
		n++
		if custom > 5 {
			t.Errorf("planned for %d of %d calls:\n%s", custom, generic+custom, text)
		}
	}
	if err := rows.Err(); err != nil || n < 2 {
		t.Errorf("%d statements were called as often as that, error %v", n, err)
	}
}

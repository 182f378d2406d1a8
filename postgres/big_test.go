package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A table of a million names is no slower than an empty one.
func TestMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills a big table")
	}
	full, empty := fresh(t, nil), fresh(t, nil)
	ctx := t.Context()
	fill(t, full, 1_000_000)
	lock := func(c *holdfast.Client, name string) time.Duration {
		t.Helper()
		began := time.Now()
		l, err := c.Acquire(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	both := []*holdfast.Client{client(t, full), client(t, empty)}
	for kind, name := range map[string]func(i int) string{
		"one name":           func(int) string { return "name 500000" },
		"names of the table": func(i int) string { return fmt.Sprintf("name %d", (i*7919)%1_000_000) },
		"new names":          func(i int) string { return fmt.Sprintf("new %d", i) },
	} {
		var took [2][]time.Duration
		for i := range 400 {
			for j, c := range both {
				took[j] = append(took[j], lock(c, name(i)))
			}
		}
		for j := range took {
			slices.Sort(took[j])
		}
		a, b := took[0][200], took[1][200]
		t.Logf("%s: %v in a table of a million names, %v in an empty one (%.2fx)", kind, a, b, float64(a)/float64(b))
		if a > 2*b {
			t.Errorf("%s: %v in a table of a million names, %v in an empty one", kind, a, b)
		}
	}
	// All of them are idle, and go, by this sweep or by that of a heartbeat beside it.
	began := time.Now()
	n, err := full.Sweep(ctx, 0)
	t.Logf("swept %d rows in %v", n, time.Since(began))
	var left int
	if err == nil {
		err = full.pool.QueryRow(ctx, `select count(*) from holdfast_records`).Scan(&left)
	}
	if err != nil || n == 0 || left > 1000 {
		t.Errorf("%d rows were swept, %d are left, error %v", n, left, err)
	}
}

// fill makes rows of names that hold nothing.
func fill(t testing.TB, r reopener, n int) {
	t.Helper()
	if _, err := r.pool.Exec(t.Context(), fmt.Sprintf(`
set session_replication_role = replica;
insert into holdfast_records (id, version, value)
select '\x00'::bytea || convert_to('name ' || i, 'UTF8'), 1000000 + i, '' from generate_series(1, %d) i;
reset session_replication_role`, n)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.pool.Exec(t.Context(), `vacuum analyze holdfast_records`); err != nil {
		t.Fatal(err)
	}
}

// Rows are swept while clients take and give back the locks: tokens grow.
func TestSweepAgainstClients(t *testing.T) {
	t.Parallel()
	r := fresh(t, nil)
	ctx := t.Context()
	stop := make(chan struct{})
	swept := make(chan int)
	go func() {
		total := 0
		defer func() { swept <- total }()
		other := open(t, connect(t, r.url), nil)
		for {
			n, err := other.Sweep(ctx, 0)
			if err != nil {
				t.Errorf("sweep: %v", err)
			}
			total += n
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	clients := []*holdfast.Client{client(t, r), client(t, open(t, connect(t, r.url), nil))}
	type turn struct {
		name  string
		token int64
	}
	turns := make(chan turn, 10_000)
	done := make(chan error)
	for i := range 6 {
		go func() {
			for n := range 100 {
				name := fmt.Sprint("name ", (i+n)%3)
				l, err := clients[i%2].Acquire(ctx, name)
				if err != nil {
					done <- err
					return
				}
				turns <- turn{name, l.Token()} // in the order of the holds, for it is held
				if err := l.Release(ctx); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 6 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	if n := <-swept; n == 0 {
		t.Error("nothing was swept")
	}
	close(turns)
	last := make(map[string]int64)
	for turn := range turns {
		if turn.token <= last[turn.name] {
			t.Errorf("%s: token %d after %d", turn.name, turn.token, last[turn.name])
		}
		last[turn.name] = turn.token
	}
	if len(last) != 3 {
		t.Errorf("%d names were locked", len(last))
	}
}

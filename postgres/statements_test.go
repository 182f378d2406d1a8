package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// No statement of ours reads a big table from end to end, or sorts it, with the
// plans that are made without regard to arguments.
func TestPlans(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	if _, err := r.pool.Exec(ctx, `
set session_replication_role = replica;
insert into holdfast_records (id, version, value)
select '\x00'::bytea || convert_to('name ' || i, 'UTF8'), 1000000 + i, case when i % 3 = 0 then convert_to('{"holders":[]}', 'UTF8') else '' end
from generate_series(1, 100000) i;
reset session_replication_role;
analyze holdfast_records`); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var plans []string
	config, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		mu.Lock()
		defer mu.Unlock()
		plans = append(plans, n.Message)
	}
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_level": "notice",
		"auto_explain.log_nested_statements": "on", "plan_cache_mode": "force_generic_plan", "random_page_cost": "4",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, nil)

	k := func(i int) driver.Key { return driver.Key{Name: fmt.Sprintf("name %d", i)} }
	swap := func(ws ...driver.Write) []driver.Outcome {
		t.Helper()
		out, err := s.CompareAndSwap(ctx, ws)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	swap(driver.Write{Key: k(1), Old: driver.IfEmpty, Value: []byte("1")})
	swap(driver.Write{Key: k(1_000_001), Old: driver.IfEmpty, Value: []byte("1"), Notify: "a"})
	for _, wake := range []string{"", "", "a"} {
		v := swap(driver.Write{Key: k(2), Old: driver.IfEmpty, Value: []byte("1"), Notify: wake})[0].Record.Version
		swap(driver.Write{Key: k(2), Old: v})
	}
	swap(driver.Write{Key: k(1), Old: driver.IfEmpty, Value: []byte("1"), Notify: "a"})
	swap(driver.Write{Key: k(3), Old: 1_000_003, Value: []byte("1"), Notify: "a"})
	swap(driver.Write{Key: k(6), Old: 1_000_006})
	swap(driver.Write{Key: k(6), Old: 1_000_006, Value: []byte("1")})
	var many []driver.Write
	var keys []driver.Key
	for i := 10; i < 500; i++ {
		old := driver.IfEmpty
		if i%3 == 0 {
			old = 1_000_000 + int64(i)
		}
		many = append(many, driver.Write{Key: k(i), Old: old, Value: []byte("1"), Notify: "a"})
		keys = append(keys, k(i))
	}
	for _, some := range [][]driver.Write{many[:400], many[400:]} {
		for i, o := range swap(some...) {
			if !o.Won {
				t.Fatalf("write %d lost", i)
			}
		}
		for i := range many[400:] {
			many[400+i].Notify = ""
		}
	}
	for _, n := range []int{1, 100, len(keys)} {
		if _, err := s.Load(ctx, keys[:n], driver.Fresh); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := s.Keys(ctx, driver.Names, "name 5", 200); err != nil || len(names) != 200 {
		t.Fatalf("%d names, error %v", len(names), err)
	}
	d := s.Names.(*dialect)
	idle, err := d.Idle(ctx, sqlstore.ID(k(5)), time.Hour, 500)
	if err != nil || len(idle) != 500 {
		t.Fatalf("%d idle rows, error %v", len(idle), err)
	}
	if n, err := d.Remove(ctx, idle); err != nil || n != 500 {
		t.Fatalf("%d rows removed, error %v", n, err)
	}
	// The other statements of a new name, which the floor is above of.
	if _, err := pool.Exec(ctx, `update holdfast_meta set value = $1 where key = 'floor'`, time.Now().Add(time.Hour).UnixMicro()); err != nil {
		t.Fatal(err)
	}
	for i, wake := range []string{"", "a"} {
		n := 1_000_002 + 3*i
		swap(driver.Write{Key: k(n), Old: driver.IfEmpty, Value: []byte("1"), Notify: wake})
		swap(driver.Write{Key: k(n + 1), Old: driver.IfEmpty, Value: []byte("1"), Notify: wake}, driver.Write{Key: k(n + 2), Old: driver.IfEmpty, Value: []byte("1")})
	}
	for _, value := range []string{`{"holders":[{"slots":1,"token":7,"n":5}]}`, `{"holders":[{"slots":0,"token":8}]}`} {
		hold(t, s, "fenced", value)
		if err := inTx(t, pool, `select holdfast_fence('fenced', 8)`); err != nil {
			t.Fatal(err)
		}
	}

	mu.Lock()
	defer mu.Unlock()
	bad := regexp.MustCompile(`(Seq Scan|Bitmap Heap Scan) on holdfast_records|(Hash|Merge).* Join`)
	joins := regexp.MustCompile(`Nested Loop|(Hash|Merge).* Join`)
	all := strings.Join(plans, "\n")
	for _, plan := range plans {
		if at := bad.FindString(plan); at != "" {
			t.Errorf("%s in\n%s", at, plan)
		}
		if strings.Contains(plan, "Sort") && !strings.Contains(plan, "Sort Key: w.id\n") { // that is of a batch
			t.Errorf("a sort in\n%s", plan)
		}
	}
	// It is of no use if the plans were not seen. Joins would be compiled where nested
	// loops are turned off.
	want := []string{d.sql["update"+quietly], "for share", "for no key update", "order by r.id limit most", "m.key = 'floor'"}
	for _, name := range []string{"load", "load all", "keys", "idle", "remove"} {
		want = append(want, d.sql[name])
	}
	for _, name := range []string{"insert", "insert above", "take", "swap", "swaps", "swaps above"} {
		want = append(want, d.sql[name], d.sql[name+quietly])
	}
	for _, statement := range want {
		if !strings.Contains(all, strings.TrimSpace(statement)) {
			t.Errorf("there was no plan of %s", statement)
		}
		for _, plan := range plans {
			if strings.Contains(plan, strings.TrimSpace(statement)) && joins.MatchString(plan) {
				t.Errorf("a join in\n%s", plan)
			}
		}
	}
}

// foreign is a transaction of a stranger, rolled back at the end.
func foreign(t *testing.T, r reopener, statements ...string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), r.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	for _, q := range append([]string{`begin`}, statements...) {
		if _, err := c.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	return c
}

func exec(t *testing.T, c interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, q string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), q, args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

// A transaction that keeps a row locked keeps a write waiting for a second, of a batch for a
// quarter, and never the other writes of a batch.
func TestLockedRow(t *testing.T) {
	value := []byte("2")
	for _, test := range []struct {
		name, lock string
		write      driver.Write // Old 1: the version
	}{
		{"swap", `select from holdfast_records where id = '\x0061' for update`, driver.Write{Old: 1, Value: value}},
		{"swap behind readers", `select from holdfast_records where id = '\x0061' for share`, driver.Write{Old: 1, Value: value, Notify: "x"}},
		{"free", `select from holdfast_records where id = '\x0061' for update`, driver.Write{Old: 1, Lazy: true}},
		{"take", `update holdfast_records set value = '' where id = '\x0061'`, driver.Write{Old: driver.IfEmpty, Value: value}},
		{"take of a name that is being made", `insert into holdfast_records (id, version, value) values ('\x0062', 1, '')`,
			driver.Write{Key: driver.Key{Name: "b"}, Old: driver.IfEmpty, Value: value}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := fresh(t, nil)
			ctx := t.Context()
			version := hold(t, r, "a", "1")
			if test.name == "take" {
				version = hold(t, r, "a", "")
			}
			w := test.write
			if w.Key.Name == "" {
				w.Key.Name = "a"
			}
			if w.Old == 1 {
				w.Old = version
			}
			other := foreign(t, r, test.lock)
			began := time.Now()
			out, err := r.CompareAndSwap(ctx, []driver.Write{w})
			if took := time.Since(began); err != nil || out[0].Won || took < 900*time.Millisecond || took > 5*time.Second {
				t.Errorf("it ended after %v with %+v, error %v; want it to lose after a second", took, out, err)
			}
			if err == nil && w.Key.Name == "a" && out[0].Record.Version != version {
				t.Errorf("it was told version %d, want that which it was to follow, %d", out[0].Record.Version, version)
			}

			batch := []driver.Write{w}
			for i := range 20 {
				batch = append(batch, driver.Write{Key: driver.Key{Name: fmt.Sprintf("%c %d", 'A'+i%2*32, i)}, Old: driver.IfEmpty, Value: value})
			}
			began = time.Now()
			out, err = r.CompareAndSwap(ctx, batch)
			if took := time.Since(began); err != nil || took < 1200*time.Millisecond || took > 8*time.Second {
				t.Fatalf("a batch ended after %v, error %v; want a second and a quarter", took, err)
			}
			for i, o := range out {
				if o.Won != (i > 0) {
					t.Errorf("write %d: won is %v", i, o.Won)
				}
			}
			exec(t, other, `rollback`)
			var timeout, commit string
			for range 10 {
				if err := r.pool.QueryRow(ctx, `select current_setting('lock_timeout'), current_setting('synchronous_commit')`).Scan(&timeout, &commit); err != nil || timeout != "0" || commit != "on" {
					t.Fatalf("on a connection of the caller's pool lock_timeout is %s and synchronous_commit %s, error %v", timeout, commit, err)
				}
			}
		})
	}
}

// The version of a new row is above the floor, though the clock may be below it,
// and though the row may have gone while the statement was under way.
func TestFloor(t *testing.T) {
	future := func() int64 { return time.Now().Add(time.Hour).UnixMicro() }
	ways := map[string]func(s driver.Store, k driver.Key) (driver.Outcome, error){
		"one": func(s driver.Store, k driver.Key) (driver.Outcome, error) {
			out, err := s.CompareAndSwap(context.Background(), []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1")}})
			if err != nil {
				return driver.Outcome{}, err
			}
			return out[0], nil
		},
		"many": func(s driver.Store, k driver.Key) (driver.Outcome, error) {
			out, err := s.CompareAndSwap(context.Background(), []driver.Write{
				{Key: driver.Key{Name: "other"}, Old: driver.IfEmpty, Value: []byte("1")}, {Key: k, Old: driver.IfEmpty, Value: []byte("1")},
			})
			if err != nil {
				return driver.Outcome{}, err
			}
			return out[1], nil
		},
	}
	// sweep removes the row of "a" in a transaction that is still open.
	sweep := func(t *testing.T, r reopener, version int64) *pgx.Conn {
		return foreign(t, r, fmt.Sprintf(`update holdfast_meta set value = greatest(value, %d) where key = 'floor'`, version),
			`delete from holdfast_records where id = '\x0061'`)
	}
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		for way, take := range ways {
			t.Run(isolation+"/"+way, func(t *testing.T) {
				t.Parallel()
				r := fresh(t, nil)
				ctx := t.Context()
				config, err := pgxpool.ParseConfig(r.url)
				if err != nil {
					t.Fatal(err)
				}
				config.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
				pool, err := pgxpool.NewWithConfig(ctx, config)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				s := open(t, pool, nil)
				floor := future()
				exec(t, r.pool, `update holdfast_meta set value = $1 where key = 'floor'`, floor)
				if got, err := take(s, driver.Key{Name: "new"}); err != nil || !got.Won || got.Record.Version <= floor {
					t.Errorf("a new name below a floor of %d: %+v, error %v", floor, got, err)
				}

				floor = future()
				exec(t, r.pool, `insert into holdfast_records (id, version, value) values ('\x0061', $1, '')`, floor)
				sweeper := sweep(t, r, floor)
				type answer struct {
					driver.Outcome
					error
				}
				answers := make(chan answer, 1)
				go func() {
					o, err := take(s, driver.Key{Name: "a"})
					answers <- answer{o, err}
				}()
				blocked(t, r, 1)
				exec(t, sweeper, `commit`)
				if got := <-answers; got.error != nil || !got.Won || got.Record.Version <= floor {
					t.Errorf("a name that was swept as version %d while a statement waited for it: %+v, error %v", floor, got.Outcome, got.error)
				}
			})
		}
	}

	// Without the trigger the test above would fail.
	t.Run("without the trigger", func(t *testing.T) {
		r := fresh(t, nil)
		exec(t, r.pool, `alter table holdfast_records disable trigger holdfast_insert`)
		floor := future()
		exec(t, r.pool, `insert into holdfast_records (id, version, value) values ('\x0061', $1, '')`, floor)
		sweeper := sweep(t, r, floor)
		versions := make(chan int64, 1)
		go func() {
			o, err := ways["one"](r, driver.Key{Name: "a"})
			if err != nil {
				t.Error(err)
			}
			versions <- o.Record.Version
		}()
		blocked(t, r, 1)
		exec(t, sweeper, `commit`)
		if got := <-versions; got > floor {
			t.Errorf("version %d is above the floor %d also without the trigger: what is tested here?", got, floor)
		}
	})

	// A row that is swept while a swap of it is under way does not come back.
	t.Run("swap", func(t *testing.T) {
		r := fresh(t, nil)
		version := hold(t, r, "a", "")
		write := driver.Write{Key: driver.Key{Name: "a"}, Old: version, Value: []byte("back")}
		for _, batch := range [][]driver.Write{{write}, {write, {Key: driver.Key{Name: "b"}, Old: driver.IfEmpty, Value: []byte("1")}}} {
			exec(t, r.pool, `insert into holdfast_records (id, version, value) values ('\x0061', $1, '') on conflict do nothing`, version)
			sweeper := sweep(t, r, 0)
			ended := make(chan error, 1)
			go func() {
				out, err := r.CompareAndSwap(context.Background(), batch)
				switch {
				case err != nil:
				case out[0].Won:
					err = errors.New("the swap has won")
				case len(out) > 1 && !out[1].Won:
					err = errors.New("the other write has lost")
				}
				ended <- err
			}()
			blocked(t, r, 1)
			exec(t, sweeper, `commit`)
			if err := <-ended; err != nil {
				t.Errorf("a batch of %d: %v", len(batch), err)
			}
			exec(t, r.pool, `update holdfast_meta set value = 0 where key = 'floor'`)
		}
	})
}

// A write that loses to one which its statement could not see yet returns the record that
// won, not the one that the statement saw.
func TestLostToUnseenWrite(t *testing.T) {
	r := fresh(t, nil)
	version := hold(t, r, "a", "old")
	rival := foreign(t, r, `update holdfast_records set version = version + 1, value = 'new' where id = '\x0061'`)
	ended := make(chan error, 1)
	go func() {
		out, err := r.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "a"}, Old: version, Value: []byte("late")}})
		if err == nil && (out[0].Won || out[0].Record.Version != version+1 || string(out[0].Record.Value) != "new") {
			err = fmt.Errorf("got %+v, want that it lost to version %d", out[0], version+1)
		}
		ended <- err
	}()
	blocked(t, r, 1)
	exec(t, rival, `commit`)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A statement that the server ends to break a deadlock is tried again.
func TestDeadlock(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	config, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["deadlock_timeout"] = "1ms"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, nil)
	deadlocks := func() (n int) {
		t.Helper()
		for range 2 { // the first may be of an old snapshot of the counters
			exec(t, r.pool, `select pg_stat_clear_snapshot()`)
			if err := r.pool.QueryRow(ctx, `select deadlocks from pg_stat_database where datname = current_database()`).Scan(&n); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	var batch []driver.Write
	for _, n := range []string{"a", "b", "c"} {
		batch = append(batch, driver.Write{Key: driver.Key{Name: n}, Old: driver.IfEmpty, Value: []byte("1")})
		hold(t, r, n, "")
	}
	lock := func(n string) string {
		return `select from holdfast_records where id = '\x00` + fmt.Sprintf("%x", n) + `' for update`
	}
	rival := foreign(t, r, `set deadlock_timeout = '60s'`, lock("c"))
	gate := foreign(t, r, lock("b"))
	ended := make(chan error, 1)
	go func() {
		out, err := s.CompareAndSwap(ctx, batch)
		if err == nil && (!out[0].Won || !out[1].Won || !out[2].Won) {
			err = fmt.Errorf("outcomes %+v", out)
		}
		ended <- err
	}()
	blocked(t, r, 1) // it has a, and waits for b
	got := make(chan error, 1)
	go func() {
		_, err := rival.Exec(ctx, lock("a"))
		got <- err
	}()
	blocked(t, r, 2)
	exec(t, gate, `rollback`) // now it waits for c, whose holder waits for a
	if err := <-got; err != nil {
		t.Errorf("the rival: %v", err)
	}
	exec(t, rival, `rollback`)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	pool.Reset() // a backend that ends tells its counters
	for end := time.Now().Add(10 * time.Second); deadlocks() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Skip("the machine was too slow for a deadlock to come about")
		}
	}
}

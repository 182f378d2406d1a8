package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rowAhead is a row whose version is an hour ahead of the clock, as after the clock
// has gone back.
func rowAhead(t *testing.T, r reopener, name, value string) int64 {
	t.Helper()
	version := time.Now().Add(time.Hour).UnixMicro()
	exec(t, r.pool, `insert into holdfast_records (id, version, value) values ($1, $2, $3)
on conflict (id) do update set version = excluded.version, value = excluded.value`, sqlstore.ID(driver.Key{Name: name}), version, []byte(value))
	return version
}

// Versions grow where the clock has gone back.
func TestVersionsOutrunTheClock(t *testing.T) {
	r := fresh(t, nil)
	for _, test := range []struct {
		name, holds string
		write       driver.Write // Old 1: what is there
	}{
		{"take", "", driver.Write{Old: driver.IfEmpty, Value: []byte("2")}},
		{"take again", "", driver.Write{Old: driver.IfEmpty, Value: []byte("2")}},
		{"follow", "1", driver.Write{Old: 1, Value: []byte("2")}},
		{"free", "1", driver.Write{Old: 1}},
	} {
		for n := range 2 {
			w := test.write
			w.Key.Name = fmt.Sprintf("%s %d", test.name, n)
			if test.name == "take again" { // the row is known then
				put(t, r.Store, w.Key, "1")
			}
			version := rowAhead(t, r, w.Key.Name, test.holds)
			if w.Old == 1 {
				w.Old = version
			}
			batch := []driver.Write{w, {Key: driver.Key{Name: w.Key.Name + "'"}, Old: driver.IfEmpty}}[:n+1]
			if out, err := r.CompareAndSwap(t.Context(), batch); err != nil || !out[0].Won || out[0].Record.Version <= version {
				t.Errorf("%s in a call of %d: %+v, error %v, want a version above %d", test.name, n+1, out, err, version)
			}
		}
	}
}

func floorNow(t *testing.T, r reopener) (floor int64) {
	t.Helper()
	if err := r.pool.QueryRow(t.Context(), r.Tables.Expand(`select value from {meta} where key = 'floor'`, `"`)).Scan(&floor); err != nil {
		t.Fatal(err)
	}
	return floor
}

// What is removed has raised the floor, which never falls; and what was written
// since it was found is not removed.
func TestRemoveKeepsTheFloor(t *testing.T) {
	r := fresh(t, nil)
	find := func(name string, version int64) []sqlstore.Row {
		return []sqlstore.Row{{ID: sqlstore.ID(driver.Key{Name: name}), Version: version}}
	}
	remove := func(what string, rows []sqlstore.Row, want int) {
		t.Helper()
		if n, err := r.Names.Remove(t.Context(), rows); err != nil || n != want {
			t.Errorf("%s: %d rows removed, error %v, want %d", what, n, err, want)
		}
	}
	high := rowAhead(t, r, "a", "")
	low := hold(t, r, "b", "")
	remove("a row", find("a", high), 1)
	remove("a lower one", find("b", low), 1)
	if got := floorNow(t, r); got != high {
		t.Errorf("the floor is %d after a row of version %d was removed", got, high)
	}
	version := hold(t, r, "c", "")
	again := rowAhead(t, r, "d", "")
	remove("one that was written since", find("c", version-1), 0)
	remove("one that is held again", append(find("d", again), find("e", hold(t, r, "e", "held"))...), 1)
	if got, err := r.Load(t.Context(), []driver.Key{{Name: "c"}, {Name: "e"}}, driver.Fresh); err != nil || got[0].Version != version || string(got[1].Value) != "held" {
		t.Errorf("they are %+v, error %v", got, err)
	}
}

// All batches lock rows in one order, of rows that are there and of new ones.
func TestBatchLocksInOrder(t *testing.T) {
	r := fresh(t, nil)
	exec(t, r.pool, `
create table seen (nr serial, id bytea);
create function look() returns trigger language plpgsql as $$ begin
  insert into seen (id) values (new.id);
  return new;
end $$;
create trigger look before insert or update on holdfast_records for each row execute function look();`)
	for range 2 {
		var batch []driver.Write
		for _, n := range []string{"c", "a", "e", "b", "d"} {
			batch = append(batch, driver.Write{Key: driver.Key{Name: n}, Old: driver.IfEmpty})
		}
		if out, err := r.CompareAndSwap(t.Context(), batch); err != nil || !out[0].Won {
			t.Fatalf("%+v, error %v", out, err)
		}
		var order string
		if err := r.pool.QueryRow(t.Context(), `with gone as (delete from seen returning nr, id)
select string_agg(id, '' order by nr) from (select min(nr) as nr, convert_from(substr(id, 2), 'UTF8') as id from gone group by id) one`).Scan(&order); err != nil || order != "abcde" {
			t.Errorf("rows were locked in the order %q, error %v", order, err)
		}
	}
}

// Each write of a batch notifies its own recipient. The notification carries the record.
func TestBatchNotifies(t *testing.T) {
	r := fresh(t, nil)
	var batch []driver.Write
	who := []string{"c", "a", "", "b", driver.Everyone}
	notifications := make(map[string]chan driver.Notification)
	for _, w := range []string{"a", "b", "c"} {
		notifications[w], _, _ = watching(t, r.Store, w)
		expect(t, notifications[w], driver.Notification{})
	}
	for i, w := range who {
		batch = append(batch, driver.Write{Key: driver.Key{Name: fmt.Sprint(i)}, Old: driver.IfEmpty, Value: []byte("1"), Notify: w})
	}
	out, err := r.CompareAndSwap(t.Context(), batch)
	if err != nil || !out[4].Won {
		t.Fatalf("%+v, error %v", out, err)
	}
	for i, w := range who {
		if notifications[w] != nil {
			expect(t, notifications[w], driver.Notification{Key: batch[i].Key, To: w, Version: out[i].Record.Version, Value: "1"})
			expect(t, notifications[w], driver.Notification{Key: batch[4].Key, To: driver.Everyone})
		}
	}
}

// Where the connection breaks after a write was committed, and before that is
// told, the outcome is ambiguous: the write was applied, and is not sent again.
func TestAppliedIsNotSentAgain(t *testing.T) {
	r := fresh(t, nil)
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := servers.NewProxy(t.Context(), u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	s := open(t, connect(t, servers.WithHostPort(r.url, proxy.Addr())), nil)
	for i := range 8 {
		writes := []driver.Write{{Key: driver.Key{Name: fmt.Sprint("a", i)}, Old: driver.IfEmpty, Value: []byte("1")}}
		if i%2 == 1 {
			writes = append(writes, driver.Write{Key: driver.Key{Name: fmt.Sprint("b", i)}, Old: driver.IfEmpty, Value: []byte("1")})
		}
		if i%4 > 1 { // writes that follow
			for j := range writes {
				writes[j].Old = hold(t, s, writes[j].Key.Name, "0")
			}
		}
		proxy.CutAfterCommit(1)
		if out, err := s.CompareAndSwap(t.Context(), writes); err == nil {
			t.Fatalf("round %d: the answer was cut off, and is %+v", i, out)
		}
		if proxy.Cuts() != i+1 {
			t.Fatalf("round %d: %d connections were cut", i, proxy.Cuts())
		}
		for _, w := range writes {
			if got, err := r.Load(t.Context(), []driver.Key{w.Key}, driver.Fresh); err != nil || string(got[0].Value) != "1" {
				t.Errorf("round %d: %s holds %q, error %v", i, w.Key.Name, got[0].Value, err)
			}
		}
	}
}

// A fence that found readers, and waited until the lock was exclusive, has it as
// locked as if it had found it so.
func TestFenceChangesHands(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	version := hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":0}]}`)
	takeover := begin(t, r.pool)
	if _, err := takeover.Exec(ctx, `
update holdfast_records set version = version + 1, value = '{"holders":[{"session":"b","nr":1,"slots":1}]}' where id = '\x0061'`); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, r.pool)
	said := make(chan error, 1)
	go func() { said <- fences["SQL"](context.WithoutCancel(ctx), tx, "a", version+1) }()
	blocked(t, r, 1)
	if err := takeover.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-said; err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(ctx, r.pool, func(other pgx.Tx) error {
		_, err := other.Exec(ctx, `select from holdfast_records where id = '\x0061' for share nowait`)
		return err
	})
	if state(err) != "55P03" {
		t.Errorf("a reader beside an exclusive fence: %v, want that the row is locked", err)
	}
}

// Of a batch, too, a write that names another version than the row's loses.
func TestBatchComparesVersions(t *testing.T) {
	r := fresh(t, nil)
	old := hold(t, r, "a", "1")
	version := hold(t, r, "a", "2")
	for _, stale := range []int64{old, version + 1, version - 1, 1} {
		out, err := r.CompareAndSwap(t.Context(), []driver.Write{
			{Key: driver.Key{Name: "a"}, Old: stale, Value: []byte("3")}, {Key: driver.Key{Name: "b"}, Old: driver.IfEmpty},
		})
		if err != nil || out[0].Won || out[0].Record.Version != version || !out[1].Won {
			t.Errorf("version %d of a row that has %d: %+v, error %v", stale, version, out, err)
		}
	}
}

// A statement that began before a sweep has committed, and inserts after that,
// puts its row above the floor all the same.
func TestInsertSeesTheFloor(t *testing.T) {
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
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
			version := rowAhead(t, r, "a", "")
			exec(t, r.pool, `
create function dawdle() returns trigger language plpgsql as $$ begin perform pg_sleep(1); return new; end $$;
create trigger dawdle before insert on holdfast_records for each row execute function dawdle();`)
			got := make(chan error, 1)
			go func() {
				out, err := s.CompareAndSwap(context.WithoutCancel(ctx), []driver.Write{{Key: driver.Key{Name: "a"}, Old: driver.IfEmpty, Value: []byte("1")}})
				if err == nil && (!out[0].Won || out[0].Record.Version <= version) {
					err = fmt.Errorf("%+v, want a version above %d", out, version)
				}
				got <- err
			}()
			eventually(t, 10*time.Second, "it has begun", func() (asleep bool) {
				if err := r.pool.QueryRow(ctx, `select exists (select from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database())`).Scan(&asleep); err != nil {
					t.Fatal(err)
				}
				return asleep
			})
			if n, err := r.Names.Remove(ctx, []sqlstore.Row{{ID: sqlstore.ID(driver.Key{Name: "a"}), Version: version}}); err != nil || n != 1 {
				t.Errorf("%d rows removed, error %v", n, err)
			}
			if err := <-got; err != nil {
				t.Error(err)
			}
		})
	}
}

// Where notifications do not arrive Watch says so, and does not wait for them.
func TestPoolerIsNoticed(t *testing.T) {
	r := migrated(t, bouncer(t).Database(t), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	if err := r.Watch(ctx, nil, func(driver.Notification) {}); !errors.Is(err, errDeaf) {
		t.Errorf("Watch returned %v, want %v", err, errDeaf)
	}
}

// The fence looks at the tables beside it, whatever its caller has of that name.
func TestFenceLooksAtItsOwnTables(t *testing.T) {
	r := fresh(t, nil)
	version := hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	tx := begin(t, r.pool)
	exec(t, tx, `
create temp table holdfast_records as
select id, 17::bigint as version, fence, value from holdfast_records`)
	exec(t, tx, `set local search_path = pg_temp, public`)
	exec(t, tx, `select public.holdfast_fence('a'::bytea, $1)`, version)
	if _, err := tx.Exec(t.Context(), `select public.holdfast_fence('a'::bytea, 17)`); state(err) != stateLost {
		t.Errorf("the fence looked at a table of its caller's: %v", err)
	}
}

// A sweep leaves rows that somebody has locked to the next one, and does not wait.
func TestSweepPassesLockedRows(t *testing.T) {
	r := fresh(t, nil)
	rows := []sqlstore.Row{
		{ID: sqlstore.ID(driver.Key{Name: "a"}), Version: hold(t, r, "a", "")},
		{ID: sqlstore.ID(driver.Key{Name: "b"}), Version: hold(t, r, "b", "")},
	}
	foreign(t, r, `select from holdfast_records where id = '\x0061' for share`)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if n, err := r.Names.Remove(ctx, rows); err != nil || n != 1 {
		t.Errorf("beside a locked row %d are removed, error %v, want 1", n, err)
	}
}

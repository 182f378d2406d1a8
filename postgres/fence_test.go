package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
)

// The SQLSTATEs of the fence.
const (
	stateLost   = "HF002" // the token does not hold the lock
	stateNoLock = "HF003"
	stateNoTx   = "HF004"
)

// application is a pool of an application that keeps its data in the same
// database.
func application(t *testing.T, r reopener) *pgxpool.Pool {
	t.Helper()
	pool := connect(t, r.url)
	if _, err := pool.Exec(t.Context(), `create table orders (id serial primary key, paid text, token bigint)`); err != nil {
		t.Fatal(err)
	}
	return pool
}

// fences are the forms of the fence: in Go, and in SQL.
var fences = map[string]func(ctx context.Context, tx pgx.Tx, name string, token int64) error{
	"Fence": func(ctx context.Context, tx pgx.Tx, name string, token int64) error {
		t, _ := (*Options)(nil).tables()
		return fenceName(t, name, token, func(q string, n []byte, k int64) error { _, err := tx.Exec(ctx, q, n, k); return err })
	},
	"SQL": func(ctx context.Context, tx pgx.Tx, name string, token int64) error {
		_, err := tx.Exec(ctx, `select holdfast_fence('`+name+`', `+fmt.Sprint(token)+`)`)
		return err
	},
}

// begin is a transaction that is rolled back at the end, unless it has ended.
func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// inTx is a statement in a transaction of its own.
func inTx(t *testing.T, pool *pgxpool.Pool, q string, args ...any) error {
	return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), q, args...)
		return err
	})
}

// A fenced transaction commits only while the token holds the lock.
func TestFence(t *testing.T) {
	type step struct {
		token int64 // below 50: more or less than the version
		ok    bool
	}
	r := fresh(t, nil)
	for _, test := range []struct {
		name  string
		value string
		steps []step
	}{
		{"token of the version", `{"holders":[{"session":"a","nr":1,"slots":1}]}`, []step{{0, true}, {-1, false}, {1, false}, {0, true}}},
		{"token written out", `{"holders":[{"session":"a","nr":1,"slots":1,"token":100}]}`, []step{{100, true}, {99, false}, {101, false}, {0, false}}},
		{"token above the version", `{"next":9000000000000000,"holders":[{"session":"a","nr":1,"slots":1}]}`, []step{{9000000000000000, true}, {0, false}}},
		{"shared", `{"holders":[{"session":"a","nr":1,"slots":0,"token":70},{"session":"b","nr":1,"slots":0,"token":80}]}`, []step{{70, true}, {80, true}, {70, true}, {90, false}}},
		{"slots", `{"holders":[{"session":"a","nr":1,"slots":3},{"session":"b","nr":1,"slots":3,"off":1}]}`, []step{{1, true}, {0, true}, {2, false}}},
		{"block", `{"holders":[{"session":"a","nr":1,"slots":1,"token":100,"n":10}]}`, []step{{99, false}, {100, true}, {105, true}, {105, true}, {104, false}, {109, true}, {110, false}}},
		{"block of the version", `{"holders":[{"session":"a","nr":1,"slots":1,"n":3}]}`, []step{{0, true}, {2, true}, {1, false}, {3, false}}},
		{"shared block", `{"holders":[{"session":"a","nr":1,"slots":0,"token":100,"n":10}]}`, []step{{105, true}, {104, true}, {110, false}}},
		{"only waiting", `{"waiters":[{"session":"a","nr":1,"slots":1,"token":100}]}`, []step{{100, false}, {0, false}}},
		{"free", ``, []step{{0, false}}},
		{"NUL in a reason", `{"holders":[{"session":"a","nr":1,"slots":1,"reason":"a\u0000\\u0000\"b"}]}`, []step{{0, true}, {1, false}}},
		{"not JSON", "\xff{", []step{{0, false}}},
		{"not an object", `[1]`, []step{{0, false}}},
		{"strange holders", `{"holders":[7,null,{"token":"x"},{"token":1.5},{"slots":1,"token":100}]}`, []step{{100, true}, {1000, false}}},
	} {
		for form, fence := range fences {
			t.Run(test.name+"/"+form, func(t *testing.T) {
				lock := test.name + "/" + form
				version := hold(t, r, lock, test.value)
				for _, step := range test.steps {
					token := step.token
					if token < 50 {
						token += version
					}
					tx := begin(t, r.pool)
					err := fence(t.Context(), tx, lock, token)
					if (err == nil) != step.ok {
						t.Fatalf("token %d of version %d: error %v, want one: %v", token, version, err, !step.ok)
					}
					if err != nil {
						want := fmt.Sprintf(`fence %q: token %d no longer holds it; roll back`, lock, token)
						if form == "SQL" {
							want = fmt.Sprintf(`ERROR: token %d no longer holds "%s"; roll back (SQLSTATE HF002)`, token, lock)
						} else if !errors.Is(err, holdfast.ErrLost) {
							t.Errorf("token %d: error %v, want one that is ErrLost", token, err)
						}
						if err.Error() != want {
							t.Errorf("got %q, want %q", err, want)
						}
						tx.Rollback(t.Context())
					} else if err := tx.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

func TestFenceOfNoLock(t *testing.T) {
	r := fresh(t, nil)
	elsewhere := connect(t, servers.Postgres(t, nil).Database(t))
	for name, pool := range map[string]*pgxpool.Pool{"no row": r.pool, "no function": elsewhere} {
		tx := begin(t, pool)
		err := fences["Fence"](t.Context(), tx, "orders/42", 17)
		want := `fence "orders/42": there is no such lock in the database of this transaction: the lock was taken in another one`
		if err == nil || err.Error() != want || errors.Is(err, holdfast.ErrLost) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	for _, q := range []string{`select holdfast_fence(null::text, 1)`, `select holdfast_fence('none', 1)`} {
		if err := inTx(t, r.pool, q); state(err) != stateNoLock {
			t.Errorf("%s: %v", q, err)
		}
	}
	hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	if err := inTx(t, r.pool, `select holdfast_fence('a', null)`); state(err) != stateLost {
		t.Errorf("no token: %v", err)
	}
}

// Nobody takes a lock over while a transaction is open that has passed its
// fence; and the write of one that has lost the lock cannot commit.
func TestFenceAgainstTakeover(t *testing.T) {
	holders := map[string]string{
		"exclusive": `{"holders":[{"session":"a","nr":1,"slots":1}]}`,
		"shared":    `{"holders":[{"session":"a","nr":1,"slots":0}]}`,
		"block":     `{"holders":[{"session":"a","nr":1,"slots":1,"n":5}]}`,
	}
	for form, fence := range fences {
		for kind, value := range holders {
			t.Run(form+"/"+kind, func(t *testing.T) {
				t.Parallel()
				r := fresh(t, nil)
				db := application(t, r)
				ctx := t.Context()
				token := hold(t, r, "orders/42", value)
				takeover := []driver.Write{{Key: driver.Key{Name: "orders/42"}, Old: token, Value: []byte(`{"holders":[{"session":"b","nr":1,"slots":1}]}`)}}

				tx := begin(t, db)
				if _, err := tx.Exec(ctx, `insert into orders (paid) values ('first')`); err != nil {
					t.Fatal(err)
				}
				if err := fence(ctx, tx, "orders/42", token); err != nil {
					t.Fatal(err)
				}
				// It waits for a second, and is then told the record that it was to
				// follow.
				began := time.Now()
				out, err := r.CompareAndSwap(ctx, takeover)
				if err != nil || out[0].Won || out[0].Record.Version != token {
					t.Fatalf("a takeover behind an open fence: %+v, error %v; want it to lose to version %d", out, err, token)
				}
				if took := time.Since(began); took < 900*time.Millisecond || took > 10*time.Second {
					t.Errorf("it lost after %v, want a second", took)
				}
				// If the transaction ends meanwhile, it is there at once.
				went := make(chan error, 1)
				go func() {
					out, err := r.CompareAndSwap(ctx, takeover)
					if err == nil && !out[0].Won {
						err = fmt.Errorf("it lost to version %d", out[0].Record.Version)
					}
					went <- err
				}()
				blocked(t, r, 1)
				if err := tx.Commit(ctx); err != nil {
					t.Fatal(err)
				}
				if err := <-went; err != nil {
					t.Fatalf("the takeover after it: %v", err)
				}

				tx = begin(t, db)
				if _, err := tx.Exec(ctx, `insert into orders (paid) values ('second')`); err != nil {
					t.Fatal(err)
				}
				if err := fence(ctx, tx, "orders/42", token); err == nil {
					t.Fatal("the fence let in a token that has lost the lock")
				}
				// A caller that ignores the error cannot commit either.
				if err := tx.Commit(ctx); err == nil {
					t.Error("committed behind a fence that failed")
				}
				var paid int
				if err := db.QueryRow(ctx, `select count(*) from orders`).Scan(&paid); err != nil || paid != 1 {
					t.Fatalf("%d orders, error %v; want the first alone", paid, err)
				}
			})
		}
	}
}

// blocked waits until so many statements wait for a lock in the database.
func blocked(t *testing.T, r reopener, n int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		var got int
		if err := r.pool.QueryRow(t.Context(), `
select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got >= n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d statements wait for a lock, want %d", got, n)
		}
	}
}

// A fence that waits for a takeover which is under way sees what came of it.
func TestFenceBehindTakeover(t *testing.T) {
	for form, fence := range fences {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			r := fresh(t, nil)
			ctx := t.Context()
			token := hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":0}]}`)
			takeover := begin(t, r.pool)
			if _, err := takeover.Exec(ctx, `
update holdfast_records set version = version + 1, value = '{"holders":[{"session":"b","nr":1,"slots":1}]}' where id = '\x0061'`); err != nil {
				t.Fatal(err)
			}
			said := make(chan error, 1)
			go func() {
				said <- pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return fence(ctx, tx, "a", token) })
			}()
			blocked(t, r, 1)
			if err := takeover.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if err := <-said; state(err) != stateLost && !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("the fence said %v to who had just lost the lock", err)
			}
			// And the new holder is exclusive, though the first look saw readers.
			if err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return fence(ctx, tx, "a", token+1) }); err != nil {
				t.Error(err)
			}
		})
	}
}

// Readers fence at the same time; of an exclusive block only one does.
func TestFenceTogether(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	for _, test := range []struct {
		name, value string
		together    bool
	}{
		{"readers", `{"holders":[{"session":"a","nr":1,"slots":0},{"session":"b","nr":1,"slots":0,"off":1}]}`, true},
		{"block", `{"holders":[{"session":"a","nr":1,"slots":1,"n":2}]}`, false},
	} {
		token := hold(t, r, test.name, test.value)
		first := begin(t, r.pool)
		if err := fences["SQL"](ctx, first, test.name, token); err != nil {
			t.Fatal(err)
		}
		second := begin(t, r.pool)
		if _, err := second.Exec(ctx, `set local lock_timeout = '100ms'`); err != nil {
			t.Fatal(err)
		}
		if err := fences["SQL"](ctx, second, test.name, token+1); (err == nil) != test.together {
			t.Errorf("%s: the second fence beside the first: %v", test.name, err)
		}
		first.Rollback(ctx)
		second.Rollback(ctx)
	}
}

// Readers that fence one behind the other all the time do not keep a writer of the
// record waiting: somebody who queues, or the one who takes over.
func TestFenceCrowd(t *testing.T) {
	t.Parallel()
	r := fresh(t, nil)
	value := `{"holders":[{"session":"a","nr":1,"slots":0,"token":7}]}`
	version := hold(t, r, "a", value)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var fenced atomic.Int64
	for range 6 {
		pool := connect(t, r.url)
		wg.Go(func() {
			for ctx.Err() == nil {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if err := fences["SQL"](ctx, tx, "a", 7); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, `select pg_sleep(0.03)`)
					fenced.Add(1)
					return err
				})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		at := fenced.Load()
		eventually(t, 20*time.Second, "the readers are at it", func() bool { return fenced.Load() > at+12 })
		began := time.Now()
		out, err := r.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Name: "a"}, Old: version, Value: []byte(value)}})
		if took := time.Since(began); err != nil || !out[0].Won || took > 3*time.Second {
			t.Errorf("a write behind readers that fence: %+v after %v, error %v", out, took, err)
		}
		if err == nil {
			version = out[0].Record.Version
		}
	}
}

// Stricter isolation fails where the lock was written since the transaction
// began, and else is as good.
func TestFenceIsolation(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for form, fence := range fences {
			t.Run(string(level)+"/"+form, func(t *testing.T) {
				r := fresh(t, nil)
				db := application(t, r)
				ctx := t.Context()
				version := hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
				run := func(meanwhile func()) error {
					return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
						if _, err := tx.Exec(ctx, `insert into orders (paid) values ('yes')`); err != nil {
							return err
						}
						meanwhile()
						return fence(ctx, tx, "a", version)
					})
				}
				if err := run(func() {}); err != nil {
					t.Errorf("with nobody else: %v", err)
				}
				err := run(func() { hold(t, r, "a", `{"holders":[{"session":"b","nr":1,"slots":1}]}`) })
				if state(err) != "40001" && !errors.Is(err, holdfast.ErrLost) {
					t.Errorf("the lock has changed hands since the snapshot: %v", err)
				}
				if err := run(func() {}); err == nil {
					t.Error("committed with a token that is gone")
				}
				var paid int
				if err := db.QueryRow(ctx, `select count(*) from orders`).Scan(&paid); err != nil || paid != 1 {
					t.Errorf("%d orders, error %v, want 1", paid, err)
				}
			})
		}
	}
}

// The open transaction of a process that froze behind its fence is ended by the
// server after the TTL of the lock, unless the user has asked for less.
func TestFenceOfTheFrozen(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	token := hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":1,"ttl":500}]}`)
	limit := func(tx pgx.Tx) (s string) {
		t.Helper()
		if err := tx.QueryRow(ctx, `show idle_in_transaction_session_timeout`).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, test := range []struct{ set, want string }{{"0", "500ms"}, {"100ms", "100ms"}, {"2min", "500ms"}, {"500ms", "500ms"}} {
		tx := begin(t, r.pool)
		if _, err := tx.Exec(ctx, `set local idle_in_transaction_session_timeout = '`+test.set+`'`); err != nil {
			t.Fatal(err)
		}
		if err := fences["SQL"](ctx, tx, "a", token); err != nil {
			t.Fatal(err)
		}
		if got := limit(tx); got != test.want {
			t.Errorf("%s became %s, want %s", test.set, got, test.want)
		}
		tx.Rollback(ctx)
	}

	frozen := begin(t, r.pool)
	if err := fences["SQL"](ctx, frozen, "a", token); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	hold(t, r, "a", `{"holders":[{"session":"b","nr":1,"slots":1}]}`) // the takeover, of one write that waits
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("the takeover had to wait %v for a transaction with a TTL of 500ms", took)
	}
	if err := frozen.Commit(ctx); err == nil {
		t.Error("the frozen process woke and committed")
	}
}

// A trigger has every write of a table fenced, whoever writes it.
func TestFenceTrigger(t *testing.T) {
	r := fresh(t, nil)
	db := application(t, r)
	ctx := t.Context()
	// As docs/stores/postgres.md shows for inserts.
	if _, err := db.Exec(ctx, `
create function orders_fenced() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform public.holdfast_fence('orders/' || new.id, new.token);
  return new;
end $$;
create trigger orders_fenced before update on orders for each row execute function orders_fenced();
insert into orders (id) values (42);`); err != nil {
		t.Fatal(err)
	}
	c := client(t, r)
	lock, err := c.Acquire(ctx, "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	pay := func() error {
		_, err := db.Exec(ctx, `update orders set paid = 'yes', token = $1 where id = 42`, lock.Token())
		return err
	}
	if err := pay(); err != nil {
		t.Error(err)
	}
	if err := lock.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := pay(); state(err) != stateLost {
		t.Errorf("after Release: %v", err)
	}
}

// In a database of another encoding, too, what cannot be written there does not
// make the fence blind, and what the view shows is fit for a terminal.
func TestFenceEncoding(t *testing.T) {
	server := servers.Postgres(t, nil)
	url := server.Database(t)
	base := url[strings.LastIndex(url, "/")+1 : strings.Index(url, "?")]
	admin := connect(t, url)
	for _, test := range []struct{ encoding, reason, shows string }{
		{"LATIN1", `日本\\ \" é \u00e9 \u65e5`, `" `},
		{"LATIN1", `é\u009b\u0007`, `é\u009b\u0007`},
		{"WIN1252", `€\u0007`, `€\u0007`}, // 80 there
		{"EUC_JP", `日本\u0007`, `日本\u0007`},
		{"SQL_ASCII", `x\u0007`, `x\u0007`},
	} {
		t.Run(test.encoding, func(t *testing.T) {
			name := "hf_" + strings.ToLower(test.encoding) + base
			if _, err := admin.Exec(t.Context(), `create database `+name+` encoding '`+test.encoding+`' locale 'C' template template0`); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { admin.Exec(context.Background(), `drop database `+name+` with (force)`) })
			r := migrated(t, strings.Replace(url, base, name, 1), nil)
			token := hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":1,"reason":"`+test.reason+`"}]}`)
			if _, err := r.pool.Exec(t.Context(), `select holdfast_fence('a', $1)`, token); err != nil {
				t.Error(err)
			}
			c, err := r.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Release()
			exec(t, c, `set client_encoding = 'UTF8'`)
			var reason string
			if err := c.QueryRow(t.Context(), `select reason from holdfast_locks`).Scan(&reason); err != nil || !strings.Contains(reason, test.shows) {
				t.Errorf("the view shows %q, error %v, want %q", reason, err, test.shows)
			}
		})
	}
}

// Nobody writes without the lock (P4): transactions of pgx and of database/sql, tables in a
// schema of their own.
func TestFences(t *testing.T) {
	const put = `insert into registers (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value`
	for name, opts := range map[string]*Options{"pgx": nil, "database/sql": hostile} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced {
				r := fresh(t, opts)
				db := application(t, r)
				if _, err := db.Exec(t.Context(), `create table registers (name text primary key, value text)`); err != nil {
					t.Fatal(err)
				}
				f := drivertest.Fenced{Store: r.Store, Other: open(t, connect(t, r.url), opts)}
				std, err := sql.Open("pgx", r.url)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { std.Close() })
				f = f.InSQL(std, put, `select coalesce(max(value), '') from registers where name = $1`, FenceSQL)
				if opts == nil {
					f.Put = func(ctx context.Context, value string, fenced func(), locks ...*holdfast.Lock) error {
						return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
							_, err := tx.Exec(ctx, put, locks[0].Name(), value)
							if err == nil {
								err = Fence(ctx, tx, locks...)
							}
							if err == nil && fenced != nil {
								fenced()
							}
							return err
						})
					}
				}
				return f
			})
		})
	}
}

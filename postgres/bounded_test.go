package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// small is a store whose pool has one connection.
func small(t *testing.T, url string) *Store {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return open(t, pool, nil)
}

// names of the rows that stay locked, "locked 0" and so on.
const lockedRows = 8

// A way is something that is in the way of a store's calls.
type way struct {
	name string
	// A row of lockedRows alone is in the way: a write of it has lost, within two
	// seconds however many there are, and the others are not held up.
	rows   bool
	server bool // the whole server is in the way
	put    func(t *testing.T, r reopener, server *servers.Server) (s *Store, lift func())
}

// lock holds rows locked from outside.
func lockWay(name string, statements ...string) way {
	return way{name, true, false, func(t *testing.T, r reopener, _ *servers.Server) (*Store, func()) {
		c := foreign(t, r, statements...)
		return r.Store, func() { c.Close(context.Background()) }
	}}
}

const ofLocked = ` where substr(id, 2) like 'locked%'::bytea`

var ways = []way{
	lockWay("rows locked by another transaction", `select from holdfast_records`+ofLocked+` for update`),
	lockWay("rows changed by another transaction", `update holdfast_records set value = value`+ofLocked),
	lockWay("rows of readers' fences", `select from holdfast_records`+ofLocked+` for share`),
	lockWay("rows of a prepared transaction", `select from holdfast_records`+ofLocked+` for update`, `prepare transaction 'x'`),
	{"a table that is being rewritten", false, false, func(t *testing.T, r reopener, _ *servers.Server) (*Store, func()) {
		c := foreign(t, r, `lock table holdfast_records in access exclusive mode`)
		return r.Store, func() { c.Close(context.Background()) }
	}},
	{"the floor", false, false, func(t *testing.T, r reopener, _ *servers.Server) (*Store, func()) {
		c := foreign(t, r, `select from holdfast_meta for update`)
		return r.Store, func() { c.Close(context.Background()) }
	}},
	{"a pool that is exhausted", false, false, func(t *testing.T, r reopener, _ *servers.Server) (*Store, func()) {
		s := small(t, r.url)
		c, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s, c.Release
	}},
	{"a pooler that is exhausted", false, false, func(t *testing.T, r reopener, server *servers.Server) (*Store, func()) {
		b, err := servers.StartPgBouncer(t.Context(), server, &servers.Options{Settings: []string{"default_pool_size=1"}})
		if err != nil {
			t.Skip(err)
		}
		url := servers.WithHostPort(r.url, fmt.Sprintf("127.0.0.1:%d", b.Port))
		s := open(t, connect(t, url), nil)
		c := foreign(t, reopener{s, url})
		return s, func() { c.Close(context.Background()); b.Stop() }
	}},
	{"a server that is stopped", false, true, func(t *testing.T, r reopener, server *servers.Server) (*Store, func()) {
		if err := server.Freeze(); err != nil {
			t.Fatal(err)
		}
		return r.Store, func() { server.Thaw() }
	}},
	{"a server that is stopped, and a store that has no connection", false, true, func(t *testing.T, r reopener, server *servers.Server) (*Store, func()) {
		s := small(t, r.url)
		s.pool.Reset()
		if err := server.Freeze(); err != nil {
			t.Fatal(err)
		}
		return s, func() { server.Thaw() }
	}},
}

// Whatever is in the way, each call of a store ends with its context, and a row that
// is locked is no more than a write that has lost.
func TestBounded(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t, &servers.Options{Settings: []string{"max_prepared_transactions=5"}})
	if !server.Own {
		t.Skip("this needs a server of its own")
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			if !w.server { // those that are, come first, one after the other
				t.Parallel()
			}
			r := migrated(t, server.Database(t), nil)
			for i := range lockedRows {
				hold(t, r, fmt.Sprintf("locked %d", i), "1")
			}
			put(t, r, driver.Key{Space: driver.Sessions, Name: "locked s"}, "1")
			for i := range 3 {
				hold(t, r, fmt.Sprintf("gone %d", i), "")
			}
			calls := everyCall(t, r)
			s, lift := w.put(t, r, server)
			defer func() {
				lift()
				r.pool.Exec(context.Background(), `rollback prepared 'x'`)
			}()
			var all sync.WaitGroup
			for name, call := range calls {
				all.Go(func() {
					took, err := timed(t, 1200*time.Millisecond, s, call)
					if took > 2200*time.Millisecond {
						t.Errorf("%s with a second and a fifth returned after %v, error %v", name, took, err)
					}
				})
			}
			all.Wait()
			if !w.rows {
				return
			}
			for name, call := range calls {
				took, err := timed(t, 20*time.Second, s, call)
				if err != nil || took > 2500*time.Millisecond {
					t.Errorf("%s beside locked rows ended after %v, error %v", name, took, err)
				}
			}
			batch := lockedBatch(t, r)
			out, err := s.CompareAndSwap(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			for i, o := range out {
				if o.Won != (i >= lockedRows) {
					t.Errorf("%s: %+v", batch[i].Key.Name, o)
				}
				if i < lockedRows && o.Record.Version != batch[i].Old {
					t.Errorf("%s: it is told version %d, want that which it was to follow, %d", batch[i].Key.Name, o.Record.Version, batch[i].Old)
				}
			}
		})
	}
	closes(t, migrated(t, server.Database(t), nil), server)
}

func timed(t *testing.T, patience time.Duration, s *Store, call func(context.Context, *Store) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	err := call(ctx, s)
	return time.Since(began), err
}

// lockedBatch follows what is locked, and takes as many names that are free.
func lockedBatch(t *testing.T, r reopener) (batch []driver.Write) {
	t.Helper()
	for i := range lockedRows {
		k := driver.Key{Name: fmt.Sprintf("locked %d", i)}
		got, err := r.Load(t.Context(), []driver.Key{k}, driver.Fresh)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, driver.Write{Key: k, Old: got[0].Version, Value: []byte("2")})
	}
	for i := range lockedRows {
		batch = append(batch, driver.Write{Key: driver.Key{Name: fmt.Sprintf("%c free %d %d", 'a'+i%2*24, i, time.Now().UnixNano())}, Old: driver.IfEmpty, Value: []byte("1")})
	}
	return batch
}

// everyCall is what a client asks of a store.
func everyCall(t *testing.T, r reopener) map[string]func(context.Context, *Store) error {
	t.Helper()
	cas := func(ws ...driver.Write) func(context.Context, *Store) error {
		return func(ctx context.Context, s *Store) error {
			_, err := s.CompareAndSwap(ctx, ws)
			return err
		}
	}
	batch := lockedBatch(t, r)
	locked, beat := driver.Key{Name: "locked 0"}, driver.Key{Space: driver.Sessions, Name: "locked s"}
	return map[string]func(context.Context, *Store) error{
		"Load": func(ctx context.Context, s *Store) error {
			_, err := s.Load(ctx, []driver.Key{locked}, driver.Fresh)
			return err
		},
		"Load of many": func(ctx context.Context, s *Store) error {
			_, err := s.Load(ctx, []driver.Key{locked, beat}, driver.Fresh)
			return err
		},
		"a take":             cas(driver.Write{Key: locked, Old: driver.IfEmpty, Value: []byte("2")}),
		"a write":            cas(driver.Write{Key: locked, Old: batch[0].Old, Value: []byte("1"), Notify: "x"}),
		"a write that frees": cas(driver.Write{Key: locked, Old: batch[0].Old}),
		"a heartbeat":        cas(driver.Write{Key: beat, Old: driver.IfEmpty, Value: []byte("2")}),
		"a batch":            cas(batch[:lockedRows+1]...),
		"Keys":               func(ctx context.Context, s *Store) error { _, err := s.Keys(ctx, driver.Names, "", 5); return err },
		"Sweep":              func(ctx context.Context, s *Store) error { _, err := s.Sweep(ctx, 0); return err },
		"Diagnose":           func(ctx context.Context, s *Store) error { _, err := s.Diagnose(ctx); return err },
		"New":                func(ctx context.Context, s *Store) error { _, err := New(ctx, s.pool, nil); return err },
		"Verify":             func(ctx context.Context, s *Store) error { return Verify(ctx, s.pool, nil) },
		"Watch": func(ctx context.Context, s *Store) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			s.Watch(ctx, nil, func(driver.Notification) {})
			return nil
		},
		"Fence": func(ctx context.Context, s *Store) error {
			err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return fences["Fence"](ctx, tx, "free", 1) })
			if err != nil && ctx.Err() == nil { // there is no such lock
				return nil
			}
			return err
		},
	}
}

// Close waits for nobody.
func closes(t *testing.T, r reopener, server *servers.Server) {
	t.Helper()
	s := open(t, connect(t, r.url), nil)
	notifications, ended, _ := watching(t, s)
	expect(t, notifications, driver.Notification{})
	if err := s.beats.Use(t.Context(), func(c *pgx.Conn) error { return c.Ping(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer server.Thaw()
	began := time.Now()
	s.Close()
	<-ended
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Close, and the end of watching, beside a server that is stopped took %v", took)
	}
}

// A pooler may give a connection for a session, for a transaction or for a statement;
// with the last there are no transactions, and so no fence.
func TestPoolModes(t *testing.T) {
	server := servers.Postgres(t, nil)
	for _, mode := range []string{"session", "transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			b, err := servers.StartPgBouncer(t.Context(), server, &servers.Options{Settings: []string{"pool_mode=" + mode}})
			if err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { b.Stop() })
			r := fresh(t, nil)
			s := open(t, connect(t, servers.WithHostPort(r.url, fmt.Sprintf("127.0.0.1:%d", b.Port))), nil)
			c, other := client(t, s), client(t, s)
			lock, err := c.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.TryAcquire(t.Context(), "a"); !errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("a second one got %v", err)
			}
			err = pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error { return Fence(t.Context(), tx, lock) })
			if (err == nil) != (mode != "statement") {
				t.Errorf("the fence: %v", err)
			}
			handed := make(chan error, 1)
			go func() {
				l, err := other.Acquire(t.Context(), "a")
				if err == nil {
					err = l.Release(t.Context())
				}
				handed <- err
			}()
			eventually(t, 20*time.Second, "the other waits", func() bool {
				info, err := c.Show(t.Context(), "a")
				return err == nil && len(info.Waiters) == 1
			})
			if err := lock.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-handed; err != nil {
				t.Error(err)
			}
			ws := []driver.Write{{Key: driver.Key{Name: "b"}, Old: driver.IfEmpty, Value: []byte("\x00\xff")}, {Key: driver.Key{Name: "c"}, Old: driver.IfEmpty, Value: []byte("1")}}
			if out, err := s.CompareAndSwap(t.Context(), ws); err != nil || !out[0].Won || !out[1].Won {
				t.Errorf("a batch: %+v, error %v", out, err)
			}
			if got, err := s.Load(t.Context(), []driver.Key{ws[0].Key}, driver.Fresh); err != nil || string(got[0].Value) != "\x00\xff" {
				t.Errorf("it is read as %+v, error %v", got, err)
			}
		})
	}
}

package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// An answer is what a call has to say.
type answer string

const (
	done      answer = "done"
	lost      answer = "lost to what it was to follow"
	busy      answer = "that it is locked"
	never     answer = "that time is up"
	whichever answer = "anything in time"
)

// calls are all that a store is asked. Each is made in a moment where nothing is in
// the way. held is a version of "locked".
var calls = map[string]func(ctx context.Context, h handle, held int64) (answer, error){
	"load": func(ctx context.Context, h handle, _ int64) (answer, error) {
		_, err := h.Load(ctx, []driver.Key{name("locked")}, driver.Fresh)
		return done, err
	},
	"load of two": func(ctx context.Context, h handle, _ int64) (answer, error) {
		_, err := h.Load(ctx, []driver.Key{name("locked"), name("free")}, driver.Fresh)
		return done, err
	},
	"await": func(ctx context.Context, h handle, held int64) (answer, error) {
		_, err := h.Await(ctx, name("locked"), held, 2*time.Millisecond, 20*time.Millisecond)
		return done, err
	},
	"follow": func(ctx context.Context, h handle, held int64) (answer, error) {
		return outcome(h.CompareAndSwap(ctx, []driver.Write{{Key: name("locked"), Old: held, Value: []byte("2")}}))
	},
	"take": func(ctx context.Context, h handle, _ int64) (answer, error) {
		return outcome(h.CompareAndSwap(ctx, []driver.Write{{Key: name("new %d", time.Now().UnixNano()), Old: driver.IfEmpty, Value: []byte("2")}}))
	},
	"batch": func(ctx context.Context, h handle, held int64) (answer, error) {
		return outcome(h.CompareAndSwap(ctx, []driver.Write{
			{Key: name("locked"), Old: held, Value: []byte("2")},
			{Key: name("other"), Old: driver.IfEmpty},
		}))
	},
	"beat": func(ctx context.Context, h handle, _ int64) (answer, error) {
		return outcome(h.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Space: driver.Sessions, Name: "s"}, Old: driver.IfEmpty}}))
	},
	"keys": func(ctx context.Context, h handle, _ int64) (answer, error) {
		_, err := h.Keys(ctx, driver.Names, "", 10)
		return done, err
	},
	"sweep": func(ctx context.Context, h handle, _ int64) (answer, error) {
		_, err := h.Sweep(ctx, 0)
		return done, err
	},
	"diagnose": func(ctx context.Context, h handle, _ int64) (answer, error) {
		_, err := h.Diagnose(ctx)
		return done, err
	},
}

// outcome is that of the first write.
func outcome(out []driver.Outcome, err error) (answer, error) {
	if err == nil && !out[0].Won {
		return lost, nil
	}
	return done, err
}

// Whatever is in the way, a call returns when its context ends, or a moment later, and
// says what is in the way, as far as the server does.
func TestBounded(t *testing.T) {
	t.Parallel()
	server := servers.MySQL(t, &servers.Options{})
	if !server.Own {
		t.Skip("this server is not ours")
	}
	const limit = 5 * time.Second
	row := sqlstore.ID(name("locked"))
	for _, test := range []struct {
		name string
		way  way
		stop func(t *testing.T, h handle, conn *sql.Conn) (on func() error)
		want map[string]answer // "": of the others
	}{
		{"a row that stays locked", way{}, locking(`start transaction`, `select version from holdfast_records where id = x'`+fmt.Sprintf("%x", row)+`' for update`),
			map[string]answer{"follow": lost, "batch": lost, "": done}},
		{"as on MySQL", ways["as on MySQL"], locking(`start transaction`, `select version from holdfast_records where id = x'`+fmt.Sprintf("%x", row)+`' for update`),
			map[string]answer{"follow": lost, "batch": lost, "": done}},
		{"a transaction that is prepared", way{}, locking(`xa start 'p'`, `update holdfast_records set fence = 1 where id = x'`+fmt.Sprintf("%x", row)+`'`, `xa end 'p'`, `xa prepare 'p'`),
			map[string]answer{"follow": lost, "batch": lost, "": done}},
		{"the floor stays locked", way{}, locking(`start transaction`, "select value from holdfast_meta where `key` = 'floor' for update"),
			map[string]answer{"take": lost, "follow": whichever, "batch": whichever, "": done}}, // whichever is first lets the other lose
		{"tables that are locked", way{}, locking(`lock tables holdfast_records write, holdfast_meta write`),
			map[string]answer{"batch": whichever, "": busy}},
		{"a dump locks the tables", way{}, locking(`lock tables holdfast_records read, holdfast_meta read`),
			map[string]answer{"follow": lost, "take": lost, "batch": lost, "beat": lost, "": done}},
		{"a backup locks all", way{}, locking(`flush tables with read lock`),
			map[string]answer{"follow": lost, "take": lost, "batch": lost, "beat": lost, "": done}},
		{"a pool that is exhausted", way{conns: 4}, exhausted, map[string]answer{"beat": done, "": never}},
		{"a server that is stopped", way{}, func(*testing.T, handle, *sql.Conn) func() error {
			if err := server.Freeze(); err != nil {
				t.Fatal(err)
			}
			return server.Thaw
		}, map[string]answer{"": never}},
	} {
		t.Run(test.name, func(t *testing.T) {
			// What stops the whole server comes first, one after the other.
			if test.name != "a backup locks all" && test.name != "a server that is stopped" {
				t.Parallel()
			}
			target := server.Database(t)
			db := connect(t, target, way{})
			if err := Migrate(t.Context(), db, nil); err != nil {
				t.Fatal(err)
			}
			h := open(t, target, test.way)
			held := hold(t, h, "locked", "1")
			hold(t, h, "gone", "") // for the sweep
			for range 3 {          // so that heartbeats have a lane of their own
				if _, err := calls["beat"](t.Context(), h, held); err != nil {
					t.Fatal(err)
				}
			}
			for what, call := range calls {
				if what != "follow" && what != "batch" && what != "sweep" {
					if _, err := call(t.Context(), h, held); err != nil {
						t.Fatalf("%s, with nothing in the way: %v", what, err)
					}
				}
			}
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			on := test.stop(t, h, conn)
			var others sync.WaitGroup
			for what, call := range calls {
				want := test.want[what]
				if want == "" {
					want = test.want[""]
				}
				ask := func() {
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					var dial net.Error
					began := time.Now()
					got, err := call(ctx, h, held)
					took := time.Since(began)
					switch {
					case err == nil:
					case errors.Is(err, context.DeadlineExceeded), errors.As(err, &dial) && dial.Timeout():
						got = never
					case h.Names.Means(err) == sqlstore.Locked:
						got = busy
					}
					if got != want && want != whichever || err != nil && got != never && got != busy {
						t.Errorf("the call %q: %s, error %v, want %s", what, got, err, want)
					}
					if took > limit+time.Second {
						t.Errorf("%s took %v", what, took)
					}
				}
				if want == never {
					others.Go(ask)
				} else {
					ask()
				}
			}
			others.Wait()
			if err := on(); err != nil {
				t.Fatal(err)
			}
			if r, err := h.Load(t.Context(), []driver.Key{name("locked")}, driver.Fresh); err != nil || test.want["follow"] != whichever && r[0].Version != held {
				t.Errorf("afterwards: %+v, error %v, want version %d", r, err, held)
			}
		})
	}
}

// Nothing that a client bounds takes longer because somebody else's transaction keeps the
// row, open or prepared, or because the server stands still.
func TestBounds(t *testing.T) {
	t.Parallel()
	server := servers.MySQL(t, &servers.Options{})
	if !server.Own {
		t.Skip("this server is not ours")
	}
	row := func(name string) string { return fmt.Sprintf("x'%x'", sqlstore.ID(driver.Key{Name: name})) }
	obstacle := func(stop func(t *testing.T, h handle, name string) func() error) func(*testing.T, driver.Store, string) func() {
		return func(t *testing.T, s driver.Store, name string) func() {
			on := stop(t, s.(handle), name)
			return func() {
				if err := on(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	locked := func(t *testing.T, h handle, statements ...string) func() error {
		conn, err := connect(t, h.url, way{}).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return locking(statements...)(t, h, conn)
	}
	clienttest.RunBounds(t, func(t *testing.T) driver.Store {
		target := server.Database(t)
		if err := Migrate(t.Context(), connect(t, target, way{}), nil); err != nil {
			t.Fatal(err)
		}
		return open(t, target, way{})
	},
		clienttest.Obstacle{Name: "a row that stays locked", Begin: obstacle(func(t *testing.T, h handle, name string) func() error {
			return locked(t, h, `start transaction`, `insert into holdfast_records (id, version, value) values (`+row(name)+`, 1, '') on duplicate key update fence = fence`,
				`select version from holdfast_records where id = `+row(name)+` for update`)
		})},
		clienttest.Obstacle{Name: "a server that stands still", Silent: true, Server: true, Begin: obstacle(func(t *testing.T, _ handle, _ string) func() error {
			if err := server.Freeze(); err != nil {
				t.Fatal(err)
			}
			return server.Thaw
		})})
}

// locking is statements that somebody else makes.
func locking(statements ...string) func(t *testing.T, h handle, conn *sql.Conn) func() error {
	return func(t *testing.T, _ handle, conn *sql.Conn) func() error {
		for _, q := range statements {
			if _, err := conn.ExecContext(t.Context(), q); err != nil {
				t.Fatalf("%s: %v", q, err)
			}
		}
		return func() (err error) {
			for _, q := range []string{`unlock tables`, `rollback`} {
				if slices.Contains(statements, `xa prepare 'p'`) {
					q = `xa rollback 'p'`
				}
				if _, err = conn.ExecContext(t.Context(), q); err != nil || q == `xa rollback 'p'` {
					break
				}
			}
			return err
		}
	}
}

// exhausted has the application take all connections of its pool, a while after the
// store has last used one.
func exhausted(t *testing.T, h handle, _ *sql.Conn) func() error {
	h.names.Trim(0)
	h.beats.Trim(0)
	var conns []*sql.Conn
	for h.db.Stats().InUse < h.db.Stats().MaxOpenConnections {
		conn, err := h.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	return func() (err error) {
		for _, c := range conns {
			err = errors.Join(err, c.Close())
		}
		return err
	}
}

package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/jackc/pgx/v5"
)

// appRights are those that the documentation gives to who takes locks.
func appRights(t *testing.T) []string {
	t.Helper()
	return documented(t, "app", &Options{Schema: "public", Prefix: "holdfast_"})
}

// Where the role's statements may take less than our wait for a locked row, that wait
// ends sooner, and as it always does: the write has lost, and the others of its batch
// have not.
func TestStatementTimeout(t *testing.T) {
	for _, setting := range []string{"statement_timeout = '200ms'", "lock_timeout = '1ms'", "exit_on_error = on", "transaction_timeout = '200ms'"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			r := fresh(t, nil)
			ctx := t.Context()
			app := as(t, r, "app", appRights(t)...)
			if _, err := r.pool.Exec(ctx, `alter role `+app.Config().ConnConfig.User+` set `+setting); state(err) == "42704" {
				t.Skip("this server has no such setting")
			} else if err != nil {
				t.Fatal(err)
			}
			app.Reset()
			s := open(t, app, nil)
			version := hold(t, s, "a", "")
			hold(t, s, "other", "")
			put(t, s, driver.Key{Space: driver.Sessions, Name: "a"}, "")
			locker := foreign(t, r, `select from holdfast_records where id in ('\x0061', '\x0161') for update`)
			write := func(space driver.Space, name string) driver.Write {
				return driver.Write{Key: driver.Key{Space: space, Name: name}, Old: driver.IfEmpty, Value: []byte("1")}
			}
			follow := write(driver.Names, "a")
			follow.Old = version
			for what, batch := range map[string][]driver.Write{
				"a take":      {write(driver.Names, "a")},
				"a write":     {follow},
				"a heartbeat": {write(driver.Sessions, "a")},
				"a batch":     {write(driver.Names, "a"), write(driver.Names, "new "+setting), write(driver.Names, "other")},
			} {
				out, err := s.CompareAndSwap(ctx, batch)
				if err != nil {
					t.Errorf("%s: %v, want it to lose", what, err)
					continue
				}
				for i, o := range out {
					if o.Won != (i > 0) {
						t.Errorf("%s: write %d: %+v", what, i, o)
					}
				}
			}
			// And a client says who holds the lock.
			exec(t, locker, `rollback`)
			c := client(t, s)
			l, err := c.Acquire(ctx, "fenced")
			if err != nil {
				t.Fatal(err)
			}
			tx := begin(t, r.pool)
			if err := Fence(ctx, tx, l); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			_, err = client(t, s).TryAcquire(ctx, "fenced")
			if took := time.Since(began); !errors.Is(err, holdfast.ErrHeld) || took > 10*time.Second {
				t.Errorf("who does not wait for a fenced lock got %v after %v, want that it is held", err, took)
			}
			if err := tx.Commit(ctx); err != nil {
				t.Error(err)
			}
			if err := l.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// A server that ends idle connections costs no heartbeat, and ends no watching.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	r := fresh(t, nil)
	ctx := t.Context()
	app := setFor(t, r, "app", "idle_session_timeout = '300ms'", appRights(t)...)
	s := open(t, app, nil)
	notifications, ended, _ := watching(t, s)
	expect(t, notifications, driver.Notification{})
	for i := range 4 {
		time.Sleep(1100 * time.Millisecond) // it is idle
		if err := s.beats.Use(ctx, func(c *pgx.Conn) error { _, err := c.Exec(ctx, `select 1`); return err }); err != nil {
			t.Errorf("heartbeat %d, with a connection that the server has ended: %v", i, err)
		}
	}
	select {
	case err := <-ended:
		t.Errorf("watching has ended: %v", err)
	default:
	}
	if out, err := s.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Name: "a"}, Old: driver.IfEmpty, Notify: "x"}}); err != nil || !out[0].Won {
		t.Fatalf("%+v, error %v", out, err)
	}
	expect(t, notifications, driver.Notification{Key: driver.Key{Name: "a"}, To: "x"})
}

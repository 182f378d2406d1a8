package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// A panel sets the variables of a server.
type panel struct {
	conn *sql.Conn // which was there before
	app  string    // a URL
	uses int
}

// set sets a variable, and says whether the server has the value.
func (p *panel) set(t *testing.T, s setting) bool {
	t.Helper()
	_, err := p.conn.ExecContext(t.Context(), "set global "+s.String())
	if err != nil {
		t.Logf("not tried, since it cannot be set: %s: %v", s, err)
	}
	return err == nil
}

// try uses locks on a server with other settings.
func (p *panel) try(t *testing.T, settings ...setting) error {
	t.Helper()
	for _, s := range settings {
		if p.set(t, s) {
			defer func() {
				if _, err := p.conn.ExecContext(t.Context(), "set global "+s.name+" = "+s.back()); err != nil {
					t.Fatalf("%s cannot be set back: %v", s, err)
				}
			}()
		}
	}
	p.uses++
	return use(t, p.app, fmt.Sprintf("try %d", p.uses))
}

// alone tries a setting by itself, and says whether it is as it should be.
func (p *panel) alone(t *testing.T, s setting) bool {
	t.Helper()
	err := p.try(t, s)
	want, refused := refusals[s.String()]
	want, chance := strings.CutPrefix(want, "perhaps ")
	good := (refused == (err != nil) || chance) && (err == nil || strings.Contains(err.Error(), want) && want != "")
	if !good {
		t.Errorf("%s: %v, want %q", s, err, want)
	}
	return good
}

// startPanel starts a server on which some hold locks already.
func startPanel(t *testing.T, settings ...string) (p *panel, admin *sql.DB) {
	t.Helper()
	server := servers.MySQL(t, &servers.Options{Settings: append([]string{"log-bin=log", "sync-binlog=1", "binlog-format=mixed"}, settings...)})
	if !server.Own {
		t.Skip("the settings of this server are not ours")
	}
	target := server.Database(t)
	admin = connect(t, target, way{})
	if err := Migrate(t.Context(), admin, nil); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), admin, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(`create table orders (id integer primary key auto_increment, paid text)`); err != nil {
		t.Fatal(err)
	}
	c, err := holdfast.New(open(t, target, way{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for i := range kept {
		if _, err := c.Acquire(t.Context(), fmt.Sprintf("kept %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := admin.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &panel{conn: conn, app: grantee(t, target, admin)}, admin
}

// grantee is the URL of the database as a user who has the rights that the
// documentation names, and no others.
func grantee(t *testing.T, target string, admin *sql.DB) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	database := u.Path[1:]
	name := "app_" + strings.TrimPrefix(database, "hf_")
	t.Cleanup(func() { admin.Exec(`drop user ` + name + `@'%'`) })
	for _, q := range []string{
		`create user %s@'%%' identified by 'secret'`,
		`grant select, insert, update, delete on ` + database + `.holdfast_records to %s@'%%'`,
		`grant select, update on ` + database + `.holdfast_meta to %s@'%%'`,
		`grant execute on procedure ` + database + `.holdfast_fence to %s@'%%'`,
		`grant select on ` + database + `.holdfast_locks to %s@'%%'`,
		`grant select, insert on ` + database + `.orders to %s@'%%'`,
	} {
		if _, err := admin.Exec(fmt.Sprintf(q, name)); err != nil {
			t.Fatal(err)
		}
	}
	u.User = url.UserPassword(name, "secret")
	return u.String()
}

// kept are names that somebody holds all the time.
const kept = 45

// use takes a lock, has another wait for it, fences a transaction, hands the lock on,
// takes several at once, and looks at it all, each over new connections.
func use(t *testing.T, target, name string) (err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	var clients [2]*holdfast.Client
	for i, w := range []way{{dsn: "interpolateParams=true"}, ways["as on MySQL"]} {
		db := connect(t, target, w)
		defer db.Close()
		s, err := newStore(ctx, db, Options{}, w.change)
		if err != nil {
			return err
		}
		defer s.Close()
		if clients[i], err = holdfast.New(s, nil); err != nil {
			return err
		}
		defer clients[i].Close()
	}
	a, b := clients[0], clients[1]
	held, err := a.Acquire(ctx, name, holdfast.Reason("to see"))
	if err != nil {
		return err
	}
	if _, err := b.TryAcquire(ctx, name); !errors.Is(err, holdfast.ErrHeld) {
		return fmt.Errorf("a second one has it: %w", err)
	}
	type grant struct {
		lock *holdfast.Lock
		err  error
	}
	granted := make(chan grant, 1)
	go func() {
		l, err := b.Acquire(ctx, name)
		granted <- grant{l, err}
	}()
	for { // until it is in line
		info, err := a.Show(ctx, name)
		if err != nil {
			return err
		}
		if len(info.Waiters) == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := pay(ctx, t, target, held); err != nil {
		return fmt.Errorf("in a transaction of the application: %w", err)
	}
	if err := held.Release(ctx); err != nil {
		return err
	}
	g := <-granted
	if g.err != nil {
		return g.err
	}
	if g.lock.Token() <= held.Token() {
		return fmt.Errorf("token %d after %d", g.lock.Token(), held.Token())
	}
	if err := pay(ctx, t, target, held); !errors.Is(err, holdfast.ErrLost) {
		return fmt.Errorf("a fence with an old token, in a transaction of the application: %w", err)
	}
	locks, err := b.AcquireAll(ctx, []string{name + " 1", name + " 2", name + " 3"})
	if err != nil {
		return err
	}
	n := 0
	for info, err := range a.List(ctx, "") {
		if err != nil {
			return err
		}
		if len(info.Holders) > 0 && info.Holders[0].Owner.Host != "" {
			n++
		}
	}
	if n < kept+4 {
		return fmt.Errorf("%d names are listed, of %d or more", n, kept+4)
	}
	for _, l := range append(slices.Clone(locks.Locks()), g.lock) {
		if err := l.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pay is a fenced transaction.
func pay(ctx context.Context, t *testing.T, target string, l *holdfast.Lock) error {
	db := connect(t, target, way{})
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, `insert into orders (paid) values ('yes')`); err != nil {
		return err
	}
	if err := Fence(ctx, tx, l); err != nil {
		return err
	}
	var holder string
	if err := tx.QueryRowContext(ctx, `select max(holder) from holdfast_locks where token = ?`, l.Token()).Scan(&holder); err != nil {
		return fmt.Errorf("the view: %w", err)
	}
	return tx.Commit()
}

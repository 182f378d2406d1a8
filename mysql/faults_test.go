package mysql

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// hostPort is where the server of a URL listens.
func hostPort(t *testing.T, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func name(format string, args ...any) driver.Key {
	return driver.Key{Name: fmt.Sprintf(format, args...)}
}

// Where the connection breaks after a write was committed, and before that is
// told, the outcome is ambiguous: the write was applied, and is not sent again.
func TestCutAfterCommit(t *testing.T) {
	for which, change := range map[string]func(sqlstore.Facts){"MariaDB": nil, "as on MySQL": ways["as on MySQL"].change} {
		t.Run(which, func(t *testing.T) {
			h := fresh(t, way{})
			proxy, err := servers.NewProxy(t.Context(), hostPort(t, h.url))
			if err != nil {
				t.Fatal(err)
			}
			defer proxy.Close()
			s := open(t, servers.WithHostPort(h.url, proxy.Addr()), way{change: change})
			for i := range 20 {
				writes := []driver.Write{{Key: name("a %d", i), Old: driver.IfEmpty, Value: []byte("1")}}
				if i%2 == 1 {
					writes = append(writes, driver.Write{Key: name("b %d", i), Old: driver.IfEmpty, Value: []byte("1")})
				}
				if i%4 > 1 { // writes that follow
					for j := range writes {
						writes[j].Old = hold(t, s, writes[j].Key.Name, "0")
					}
				}
				proxy.CutAfterCommit(1)
				out, err := s.CompareAndSwap(t.Context(), writes)
				if err == nil {
					t.Fatalf("round %d: the answer was cut off, and is %+v", i, out)
				}
				if proxy.Cuts() != i+1 {
					t.Fatalf("round %d: %d connections were cut, error %v", i, proxy.Cuts(), err)
				}
				for _, w := range writes {
					r, err := s.Load(t.Context(), []driver.Key{w.Key}, driver.Fresh)
					if err != nil || string(r[0].Value) != "1" {
						t.Errorf("round %d: %s holds %q, error %v", i, w.Key.Name, r[0].Value, err)
					}
				}
			}
		})
	}
}

// What was cut off before the server had it is not known to be lost, but soon
// all goes on.
func TestBrokenConnections(t *testing.T) {
	h := fresh(t, way{})
	proxy, err := servers.NewProxy(t.Context(), hostPort(t, h.url))
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	s := open(t, servers.WithHostPort(h.url, proxy.Addr()), way{})
	for i := range 10 {
		hold(t, s, fmt.Sprint(i), "x")
		proxy.Cut()
		// Lanes that were idle are found broken before anything is sent.
		time.Sleep(20 * time.Millisecond)
		hold(t, s, fmt.Sprint(i), "y")
	}
}

// A server that was killed is used again when it is back, and has what it
// confirmed.
func TestKilledServer(t *testing.T) {
	server := servers.MySQL(t, &servers.Options{})
	if !server.Own {
		t.Skip("this server is not ours")
	}
	target := server.Database(t)
	if err := Migrate(t.Context(), connect(t, target, way{}), nil); err != nil {
		t.Fatal(err)
	}
	s := open(t, target, way{})
	version := hold(t, s, "a", "x")
	for range 2 {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if _, err := s.Load(ctx, []driver.Key{name("a")}, driver.Fresh); err == nil {
			t.Error("a dead server answers")
		}
		cancel()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, err := s.Load(t.Context(), []driver.Key{name("a")}, driver.Fresh)
		if err != nil || r[0].Version != version {
			t.Fatalf("after the restart: %+v, error %v, want version %d", r, err, version)
		}
		version = hold(t, s, "a", "y")
	}
}

// Of a server that hangs nobody waits for longer than the context says, and when
// it goes on so do we.
func TestHangingServer(t *testing.T) {
	server := servers.MySQL(t, &servers.Options{})
	if !server.Own {
		t.Skip("this server is not ours")
	}
	target := server.Database(t)
	if err := Migrate(t.Context(), connect(t, target, way{}), nil); err != nil {
		t.Fatal(err)
	}
	s := open(t, target, way{})
	hold(t, s, "a", "x")
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	var calls sync.WaitGroup
	for i := range 10 { // more than there are connections
		calls.Go(func() {
			_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: name("%d", i), Old: driver.IfEmpty, Value: []byte("x")}})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
			}
		})
	}
	calls.Wait()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		out, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: name("%d", i), Old: driver.IfEmpty, Value: []byte("y")}})
		if err != nil || !out[0].Won && string(out[0].Record.Value) != "x" {
			t.Errorf("after it: %+v, error %v", out, err)
		}
	}
}

// When the server's clock is set back versions go on growing, and when it leaps
// forward nothing that was written before has an age.
func TestClockMoved(t *testing.T) {
	server := servers.MySQL(t, &servers.Options{Faketime: true})
	if !server.Own {
		t.Skip("this server is not ours")
	}
	target := server.Database(t)
	if err := Migrate(t.Context(), connect(t, target, way{}), nil); err != nil {
		t.Fatal(err)
	}
	s := open(t, target, way{})
	load := func(n string) driver.Record {
		t.Helper()
		r, err := s.Load(t.Context(), []driver.Key{name("%s", n)}, driver.Fresh)
		if err != nil {
			t.Fatal(err)
		}
		return r[0]
	}
	last := hold(t, s, "a", "x")
	if age := load("a").Age; age < 0 || age > time.Minute {
		t.Errorf("a new record is %v old", age)
	}
	if err := server.SetClock(-time.Hour); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		version := hold(t, s, "a", fmt.Sprint(i))
		if version <= last {
			t.Errorf("version %d follows %d", version, last)
		}
		if last = version; load("a").Age >= 0 {
			t.Errorf("a record from the future is %v old", load("a").Age)
		}
	}
	fresh := hold(t, s, "b", "x")
	if fresh > last-int64(50*time.Minute/time.Microsecond) {
		t.Errorf("the clock has not been set: %d, %d", fresh, last)
	}
	if err := server.SetClock(time.Hour); err != nil {
		t.Fatal(err)
	}
	if age := load("b").Age; age >= 0 {
		t.Errorf("after a leap a record passes for %v old", age)
	}
	hold(t, s, "c", "x")
	if age := load("c").Age; age < 0 || age > time.Minute {
		t.Errorf("a record from after the leap is %v old", age)
	}
}

// A primary that has become a replica is neither read nor written; when it is
// the primary again all goes on.
func TestReadOnly(t *testing.T) {
	server := servers.MySQL(t, &servers.Options{})
	if !server.Own {
		t.Skip("this server is not ours")
	}
	target := server.Database(t)
	admin := connect(t, target, way{})
	for _, q := range []string{`create user app@'%' identified by 'secret'`, `grant all on *.* to app@'%'`, `revoke super, read_only admin on *.* from app@'%'`} {
		if _, err := admin.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := Migrate(t.Context(), admin, nil); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("app", "secret")
	s := open(t, u.String(), way{})
	version := hold(t, s, "a", "x")
	for _, on := range []bool{true, false} {
		if _, err := admin.Exec(`set global read_only = ?`, on); err != nil {
			t.Fatal(err)
		}
		_, err := s.Load(t.Context(), []driver.Key{name("a")}, driver.Fresh)
		if on != errors.Is(err, errReplica) {
			t.Errorf("read-only %v: load has error %v", on, err)
		}
		if _, err = s.Load(t.Context(), []driver.Key{name("a"), name("b")}, driver.Fresh); on != errors.Is(err, errReplica) {
			t.Errorf("read-only %v: load of two has error %v", on, err)
		}
		out, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: name("a"), Old: version, Value: []byte("y")}})
		if on && code(err) != "1290" || !on && (err != nil || !out[0].Won) {
			t.Errorf("read-only %v: %+v, error %v", on, out, err)
		}
		if on {
			if f := finding(t, s.Store, "server"); f.Level != driver.Failure {
				t.Errorf("the doctor says %+v", f)
			}
		}
	}
}

// Others that lock our rows in another order may bring about deadlocks. A write
// that is rolled back because of one is made again, and has its right outcome.
func TestDeadlock(t *testing.T) {
	h := fresh(t, way{})
	db := connect(t, h.url, way{})
	ctx := t.Context()
	const n = 20
	writes := make([]driver.Write, n)
	for i := range writes {
		writes[i] = driver.Write{Key: name("key %02d", i), Old: driver.IfEmpty, Value: []byte("0")}
	}
	var versions [n]int64
	out, err := h.CompareAndSwap(ctx, writes)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range out {
		versions[i] = o.Record.Version
	}
	deadlocks := func() (n int) {
		var name string
		if err := db.QueryRow(`show global status like 'Innodb_deadlocks'`).Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := deadlocks()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				t.Error(err)
				return
			}
			// As heavy as it can be, so that it is not the victim.
			if _, err := tx.Exec(`create temporary table if not exists heavy (n int)`); err != nil {
				t.Error(err)
			}
			tx.Exec(`insert into heavy select seq from seq_1_to_1000`)
			for i := n - 1; i >= 0; i-- {
				if _, err := tx.Exec(`update holdfast_records set fence = fence + 1 where id = ?`, sqlstore.ID(writes[i].Key)); err != nil {
					break
				}
			}
			tx.Rollback()
		}
	})
	for round := 0; deadlocks() < before+5; round++ {
		if round > 2000 {
			t.Fatal("no deadlock has come about")
		}
		for i := range writes {
			writes[i].Old, writes[i].Value = versions[i], fmt.Append(nil, round)
		}
		out, err := h.CompareAndSwap(ctx, writes)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for i, o := range out {
			switch {
			case !o.Won && o.Record.Version != versions[i]: // else it has lost to a row that stayed locked
				t.Fatalf("round %d: write %d lost to version %d, and nobody writes", round, i, o.Record.Version)
			case o.Won && o.Record.Version <= versions[i]:
				t.Fatalf("round %d: version %d follows %d", round, o.Record.Version, versions[i])
			}
			versions[i] = o.Record.Version
		}
	}
	close(stop)
	wg.Wait()
}

// A transaction that keeps one row locked holds up a batch for about two seconds, and then only
// the write to this row loses. Heartbeats do not wait for it.
func TestLockedRow(t *testing.T) {
	h := fresh(t, way{})
	version := hold(t, h, "locked", "x")
	tx := begin(t, connect(t, h.url, way{}))
	if err := tx.QueryRow(`select version from holdfast_records where id = ? for update`, sqlstore.ID(name("locked"))).Scan(&version); err != nil {
		t.Fatal(err)
	}
	batch := make(chan error, 1)
	began := time.Now()
	go func() {
		out, err := h.CompareAndSwap(t.Context(), []driver.Write{
			{Key: name("a"), Old: driver.IfEmpty, Value: []byte("1")},
			{Key: name("locked"), Old: version, Value: []byte("2")},
			{Key: name("z"), Old: driver.IfEmpty, Value: []byte("3")},
		})
		switch {
		case err != nil:
		case !out[0].Won || out[1].Won || !out[2].Won:
			err = fmt.Errorf("got %+v", out)
		case out[1].Record.Version != version || string(out[1].Record.Value) != "x":
			err = fmt.Errorf("it lost to %+v", out[1].Record)
		}
		batch <- err
	}()
	old := driver.IfEmpty
	for range 20 {
		beat := time.Now()
		out, err := h.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Space: driver.Sessions, Name: "s"}, Old: old, Value: []byte("beat")}})
		if err != nil || !out[0].Won {
			t.Fatalf("a heartbeat: %+v, error %v", out, err)
		}
		if took := time.Since(beat); took > 500*time.Millisecond {
			t.Errorf("a heartbeat took %v", took)
		}
		old = out[0].Record.Version
	}
	if err := <-batch; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the batch took %v", took)
	}
}

// A write in a hurry does not wait for a row that somebody keeps locked.
func TestHurry(t *testing.T) {
	h := fresh(t, way{})
	d := h.Names.(*dialect)
	for _, value := range []string{"x", ""} {
		w := sqlstore.Write{ID: sqlstore.ID(name("locked")), Old: hold(t, h, "locked", value), Value: []byte("2"), Hurry: true}
		if value == "" {
			w.Old = driver.IfEmpty
		}
		tx := begin(t, connect(t, h.url, way{}))
		if _, err := tx.Exec(`select version from holdfast_records where id = ? for update`, w.ID); err != nil {
			t.Fatal(err)
		}
		err := d.Use(t.Context(), func(l *lane) error {
			if _, err := l.conn.ExecContext(t.Context(), `set session innodb_lock_wait_timeout = 60`); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			one := newDialect(func(_ context.Context, f func(*lane) error) error { return f(l) }, d.returning, d.rows)
			_, _, err := one.Swap(ctx, w)
			return err
		})
		if d.Means(err) != sqlstore.Locked {
			t.Errorf("a row with the value %q: got %v, want that it is locked", value, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
}

// A write to a row that was swept loses, in a batch too, and brings nothing
// back: who takes the name next is above all that was there, also if the clock
// has gone back meanwhile.
func TestWriteToSweptRowLoses(t *testing.T) {
	h := fresh(t, way{})
	ctx := t.Context()
	const future = int64(9_000_000_000_000_000) // as if the clock had been there
	db := connect(t, h.url, way{})
	for i, k := range []driver.Key{name("a"), name("b"), name("c")} {
		if _, err := db.Exec(`insert into holdfast_records (id, version, value) values (?, ?, '')`, sqlstore.ID(k), future+int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	rows := []sqlstore.Row{{ID: sqlstore.ID(name("a")), Version: future}, {ID: sqlstore.ID(name("b")), Version: future + 1}, {ID: sqlstore.ID(name("c")), Version: future + 2}}
	if n, err := h.Names.Remove(ctx, rows); err != nil || n != 3 {
		t.Fatalf("%d rows removed, error %v", n, err)
	}
	follow := []driver.Write{{Key: name("a"), Old: future, Value: []byte("late")}, {Key: name("b"), Old: future + 1, Value: []byte("late")}, {Key: name("new"), Old: driver.IfEmpty, Value: []byte("1")}}
	out, err := h.CompareAndSwap(ctx, follow)
	if err != nil || out[0].Won || out[1].Won || !out[2].Won {
		t.Fatalf("writes that follow what was swept: %+v, error %v", out, err)
	}
	for i, o := range out[:2] {
		if o.Record.Version != 0 || o.Record.Value != nil {
			t.Errorf("write %d lost to %+v, want nothing", i, o.Record)
		}
	}
	if keys, err := h.Keys(ctx, driver.Names, "", 10); err != nil || strings.Join(keys, " ") != "new" {
		t.Errorf("keys %q, error %v", keys, err)
	}
	last := out[2].Record.Version
	for _, writes := range [][]driver.Write{
		{{Key: name("a"), Old: driver.IfEmpty, Value: []byte("alone")}},
		{{Key: name("b"), Old: driver.IfEmpty, Value: []byte("together")}, {Key: name("c"), Old: driver.IfEmpty, Value: []byte("together")}},
	} {
		out, err := h.CompareAndSwap(ctx, writes)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			if !o.Won || o.Record.Version <= future+2 {
				t.Errorf("%s: %+v, want a version above %d", writes[i].Key.Name, o, future+2)
			}
		}
	}
	if last <= future+2 {
		t.Errorf("a new name has version %d, want one above the floor", last)
	}
}

// A statement that inserts keeps the floor where it is until the row is there: else a row that
// was swept meanwhile could come back below the version it had.
func TestSweepWaitsForInsert(t *testing.T) {
	for how, change := range map[string]func(sqlstore.Facts){"MariaDB": nil, "as on MySQL": ways["as on MySQL"].change} {
		for _, n := range []int{1, 3} {
			h := fresh(t, way{change: change})
			ctx := t.Context()
			db := connect(t, h.url, way{})
			freed := hold(t, h, "idle", "x")
			out, err := h.CompareAndSwap(ctx, []driver.Write{{Key: name("idle"), Old: freed}})
			if err != nil || !out[0].Won {
				t.Fatalf("%+v, error %v", out, err)
			}
			idle := []sqlstore.Row{{ID: sqlstore.ID(name("idle")), Version: out[0].Record.Version}}

			// Another, unfinished, keeps an insert waiting for a row.
			patient(t, h)
			tx := begin(t, db)
			if _, err := tx.Exec(`insert into holdfast_records (id, version, value) values (?, 1, '')`, sqlstore.ID(name("a"))); err != nil {
				t.Fatal(err)
			}
			waiting := func(want int) {
				t.Helper()
				for end := time.Now().Add(20 * time.Second); ; {
					var status string
					var n int
					if err := db.QueryRow(`show global status like 'Innodb_row_lock_current_waits'`).Scan(&status, &n); err != nil {
						t.Fatal(err)
					}
					if n == want {
						return
					}
					if time.Now().After(end) {
						t.Fatalf("%s: %d transactions wait for locks, want %d", how, n, want)
					}
				}
			}
			var writes []driver.Write
			for _, n := range []string{"a", "b", "c"}[:n] {
				writes = append(writes, driver.Write{Key: name("%s", n), Old: driver.IfEmpty, Value: []byte("x")})
			}
			inserted, removed := make(chan error, 1), make(chan error, 1)
			go func() {
				out, err := h.CompareAndSwap(ctx, writes)
				if err == nil && !out[0].Won {
					err = fmt.Errorf("lost: %+v", out)
				}
				inserted <- err
			}()
			waiting(1)
			go func() {
				n, err := h.Names.Remove(ctx, idle)
				if err == nil && n != 1 {
					err = fmt.Errorf("%d removed", n)
				}
				removed <- err
			}()
			waiting(2)
			tx.Rollback()
			for what, c := range map[string]chan error{"insert": inserted, "sweep": removed} {
				if err := <-c; err != nil {
					t.Errorf("%s, %d writes: %s: %v", how, n, what, err)
				}
			}
		}
	}
}

// A trigger of somebody else's on our table makes the server forget what version
// a write has made. Then no writer learns that it lost.
func TestForeignTrigger(t *testing.T) {
	for _, dsn := range []string{"", "clientFoundRows=true"} {
		h := fresh(t, way{dsn: dsn})
		version := hold(t, h, "a", "1")
		db := connect(t, h.url, way{})
		for _, q := range []string{
			`create table audit (id integer primary key auto_increment, version bigint)`,
			`create trigger audit after update on holdfast_records for each row insert into audit (version) values (new.version)`,
		} {
			if _, err := db.Exec(q); err != nil {
				t.Fatal(err)
			}
		}
		write := []driver.Write{{Key: name("a"), Old: version, Value: []byte("2")}}
		if out, err := h.CompareAndSwap(t.Context(), write); !errors.Is(err, errTrigger) {
			t.Errorf("%s: a write that won: %+v, error %v, want %v", dsn, out, err, errTrigger)
		}
		if out, err := h.CompareAndSwap(t.Context(), write); err != nil || out[0].Won || string(out[0].Record.Value) != "2" {
			t.Errorf("%s: a write that lost: %+v, error %v", dsn, out, err)
		}
		take := []driver.Write{{Key: name("a"), Old: driver.IfEmpty, Value: []byte("3")}}
		if out, err := h.CompareAndSwap(t.Context(), take); err != nil || out[0].Won || string(out[0].Record.Value) != "2" {
			t.Errorf("%s: a take that lost: %+v, error %v", dsn, out, err)
		}
	}
}

// patient has statements wait longer than a second for locked rows: in a test
// that looks on, on a machine that is busy.
func patient(t *testing.T, h handle) {
	t.Helper()
	lend(t, h.names, h.names.Size())
}

// lend sets the limit of n lanes at once.
func lend(t *testing.T, p *sqlstore.Pool[*lane], n int) {
	t.Helper()
	if n == 0 {
		return
	}
	err := p.Use(t.Context(), func(l *lane) error {
		lend(t, p, n-1)
		_, err := l.conn.ExecContext(t.Context(), `set session innodb_lock_wait_timeout = 60`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Names are bytes: what a collation takes for the same are different names.
func TestNamesAreBytes(t *testing.T) {
	h := fresh(t, way{})
	var writes []driver.Write
	for _, n := range []string{"a", "A", "a ", "a\x00", "ä", "a\u0308", "\xe4", "a\t", " a", "a\\", "a'", "a`", "a%", "a_"} {
		writes = append(writes, driver.Write{Key: name("%s", n), Old: driver.IfEmpty, Value: []byte(n)})
	}
	for i, w := range writes {
		ws := writes[i : i+1]
		if i%2 == 0 && i+1 < len(writes) {
			ws = writes[i : i+2]
		} else if i%2 == 1 {
			continue
		}
		out, err := h.CompareAndSwap(t.Context(), ws)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range out {
			if !o.Won {
				t.Errorf("near %q: lost to %q", w.Key.Name, o.Record.Value)
			}
		}
	}
	for _, w := range writes {
		if r, err := h.Load(t.Context(), []driver.Key{w.Key}, driver.Fresh); err != nil || string(r[0].Value) != w.Key.Name {
			t.Errorf("%q holds %q, error %v", w.Key.Name, r[0].Value, err)
		}
	}
}

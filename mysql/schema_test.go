package mysql

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Migrate may be repeated, and by several at once, also while others use the
// tables; it changes nothing where all is there.
func TestMigrate(t *testing.T) {
	target := servers.MySQL(t, nil).Database(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := Migrate(t.Context(), connect(t, target, way{}), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := open(t, target, way{})
	want := hold(t, s, "a", "x")
	db := connect(t, target, way{})
	created := func() (at string) {
		if err := db.QueryRow(`select group_concat(created) from information_schema.routines where routine_schema = database()`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	first := created()
	time.Sleep(1100 * time.Millisecond) // times of routines are in seconds
	if err := Migrate(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	if now := created(); now != first {
		t.Error("the procedure was made anew, and could be missed meanwhile")
	}
	if r, err := s.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh); err != nil || r[0].Version != want {
		t.Errorf("after Migrate a record is %+v, error %v", r, err)
	}
	if err := Verify(t.Context(), db, nil); err != nil {
		t.Error(err)
	}

	if _, err := db.Exec("update holdfast_meta set value = 2 where `key` = 'version'"); err != nil {
		t.Fatal(err)
	}
	newer := `schema of "holdfast_" is version 2, newer than this program (1); upgrade the program`
	if err := Migrate(t.Context(), db, nil); err == nil || !strings.HasSuffix(err.Error(), newer) {
		t.Errorf("migrate: got %v, want %s", err, newer)
	}
	if _, err := New(t.Context(), db, nil); err == nil || err.Error() != "mysql: "+newer {
		t.Errorf("new: got %v, want %s", err, newer)
	}
}

// What Schema prints makes with the client the same as Migrate, and may be
// repeated.
func TestSchemaByClient(t *testing.T) {
	target := servers.MySQL(t, nil).Database(t)
	opts := &Options{Prefix: "my_locks_"}
	script, err := Schema(opts)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	client, err := exec.LookPath("mariadb")
	if err != nil {
		t.Skip("there is no client mariadb")
	}
	for range 2 {
		cmd := exec.Command(client, "--no-defaults", "--protocol=tcp", "-h"+u.Hostname(), "-P"+u.Port(), "-u"+u.User.Username(), u.Path[1:])
		cmd.Stdin = strings.NewReader(script)
		password, _ := u.User.Password()
		cmd.Env = append(os.Environ(), "MYSQL_PWD="+password)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	db := connect(t, target, way{})
	if err := Verify(t.Context(), db, opts); err != nil {
		t.Error(err)
	}
	hold(t, open(t, target, way{prefix: "my_locks_"}), "a", `{"holders":[{"session":"a","slots":1,"token":7}]}`)
	if _, err := begin(t, db).Exec(`call my_locks_fence('a', 7)`); err != nil {
		t.Error(err)
	}
}

func TestVerify(t *testing.T) {
	// part is one of the published statements, changed.
	part := func(begins, from, to string) string {
		for _, q := range sqlstore.Statements(script(tables(t, ""))) {
			if strings.HasPrefix(q, begins) {
				return strings.ReplaceAll(q, from, to)
			}
		}
		t.Fatalf("the schema has no statement %q", begins)
		return ""
	}
	for change, want := range map[string]string{
		`alter table holdfast_records modify value longblob not null`:                          `holdfast_records.value is`,
		`alter table holdfast_records engine = Aria`:                                           `holdfast_records is "Aria" and not "InnoDB"`,
		`alter table holdfast_records modify id varchar(256) not null`:                         `holdfast_records.id is`,
		`create or replace view holdfast_locks as select 1 as name`:                            `holdfast_locks.address is missing`,
		`create or replace view holdfast_history as select 1 as name`:                          `holdfast_history.ended is missing`,
		`create or replace procedure holdfast_fence(a varchar(300), b bigint) begin do 1; end`: `holdfast_fence is not as published`,
		`alter procedure holdfast_fence sql security invoker`:                                  `holdfast_fence runs with the rights of its caller, and not of its owner; compare it with: holdfast schema print`,
		`set sql_mode = 'EMPTY_STRING_IS_NULL';` + part("create procedure", "", ""):            `holdfast_fence was made with sql_mode "EMPTY_STRING_IS_NULL", and not with none`,
		part("create or replace view", "replace view", "replace sql security invoker view"):    `holdfast_locks runs with the rights of its reader`,
		part("create or replace view", escapeMark, "''"):                                       `holdfast_locks is not as published`,
		`create trigger audit after update on holdfast_records for each row set @x = 1`:        `holdfast_records has a trigger, audit: a trigger on our table`,
		`drop table holdfast_meta`:                                                             `is missing; create it with mysql.Migrate or: holdfast schema apply`,
		"delete from holdfast_meta where `key` = 'version'":                                    `is missing; create it with mysql.Migrate or: holdfast schema apply`,
		"update holdfast_meta set value = -1 where `key` = 'version'":                          `is version -1, this program needs 1; the owner of the tables runs: holdfast schema apply`,
	} {
		target := servers.MySQL(t, nil).Database(t)
		db := connect(t, target, way{})
		if err := Migrate(t.Context(), db, nil); err != nil {
			t.Fatal(err)
		}
		if mode, create, ok := strings.Cut(change, ";create procedure"); ok {
			db.SetMaxOpenConns(1)
			for _, q := range []string{`drop procedure holdfast_fence`, mode, "create procedure" + create} {
				if _, err := db.Exec(q); err != nil {
					t.Fatal(err)
				}
			}
		} else if _, err := db.Exec(change); err != nil {
			t.Fatal(err)
		}
		if err := Verify(t.Context(), db, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after %q: got %v, want %s", change, err, want)
		}
	}
}

// looks has a user who may only read do all that looks: it finds this name held.
func looks(t *testing.T, db *sql.DB, held string) {
	t.Helper()
	var rights *driver.RightsError
	if _, err := New(t.Context(), db, nil); !errors.As(err, &rights) || !strings.HasPrefix(rights.What, "may not write") {
		t.Errorf("New of a user who may only read: %v", err)
	}
	s, err := New(t.Context(), db, &Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := holdfast.New(s, &holdfast.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n := 0
	for info, err := range c.List(t.Context(), "") {
		if n++; err != nil || info.Name != held || len(info.Holders) != 1 || info.Holders[0].BeatAge < 0 {
			t.Errorf("list: %+v, error %v", info, err)
		}
	}
	if n != 1 {
		t.Errorf("%d names are listed, want one", n)
	}
	for info, err := range c.Watch(t.Context(), held) {
		if err != nil || len(info.Holders) != 1 {
			t.Errorf("watch: %+v, error %v", info, err)
		}
		break
	}
	if f := finding(t, s, "schema"); f.Level != driver.Good || !strings.HasSuffix(f.Text, "; may read, and not write") {
		t.Errorf("doctor says %+v", f)
	}
	if err := Verify(t.Context(), db, nil); err != nil {
		t.Error(err)
	}
}

// With the rights that the documentation names each may do what it should, and
// who takes locks may not change the schema.
func TestRights(t *testing.T) {
	server := servers.MySQL(t, nil)
	target := server.Database(t)
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	database := u.Path[1:]
	admin := connect(t, target, way{})
	do := func(format string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(fmt.Sprintf(format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	user := func(role string) *sql.DB {
		name := role + "_" + strings.TrimPrefix(database, "hf_")
		do(`create user %s@'%%' identified by 'secret'`, name)
		t.Cleanup(func() { admin.Exec(`drop user ` + name + `@'%'`) })
		own := *u
		own.User = url.UserPassword(name, "secret")
		return connect(t, own.String(), way{})
	}
	grants := func(role, to string) {
		_, text, _ := strings.Cut(comment(t, "schema.go", "Migrate"), role)
		for _, g := range strings.Split(text, "grant ")[1:] {
			g, _, _ = strings.Cut(g, ";")
			if strings.HasSuffix(g, " to "+to) {
				name := to + "_" + strings.TrimPrefix(database, "hf_")
				do(`grant %s`, strings.ReplaceAll(strings.TrimSuffix(g, to), "shop.", database+".")+name+"@'%'")
			}
		}
	}
	// A user needs some right on a database to use it at all.
	migrator, app, fencer, dba := user("migrator"), user("app"), user("fencer"), user("dba")
	grants("these rights on the database", "migrator")
	if err := Migrate(t.Context(), migrator, nil); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(t.Context(), migrator, nil); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), migrator, nil); err != nil {
		t.Error(err)
	}

	want := `this user may not read the tables of "holdfast_": grant what holdfast schema grants prints`
	do(`grant execute on %s.* to app_%s@'%%'`, database, strings.TrimPrefix(database, "hf_"))
	if _, err := New(t.Context(), app, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("without rights: got %v, want %s", err, want)
	}
	do(`revoke execute on %s.* from app_%s@'%%'`, database, strings.TrimPrefix(database, "hf_"))
	do(`grant select on %s.holdfast_records to app_%s@'%%'`, database, strings.TrimPrefix(database, "hf_"))
	do(`grant select on %s.holdfast_meta to app_%s@'%%'`, database, strings.TrimPrefix(database, "hf_"))
	want = `this user may not write the tables of "holdfast_": grant what holdfast schema grants prints`
	if _, err := New(t.Context(), app, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("with read rights: got %v, want %s", err, want)
	}

	do(`grant insert, update on %s.holdfast_records to app_%s@'%%'`, database, strings.TrimPrefix(database, "hf_"))
	if s, err := New(t.Context(), app, nil); err != nil {
		t.Errorf("without the right to sweep: %v", err)
	} else {
		if f := finding(t, s, "schema"); f.Level != driver.Failure || !strings.Contains(f.Text, want) {
			t.Errorf("without the right to sweep the doctor says %+v", f)
		}
		s.Close()
	}

	given := func(user string, readOnly bool) {
		t.Helper()
		statements, err := Kind.Grants(&driver.Location{Database: u.Path}, user+"_"+strings.TrimPrefix(database, "hf_")+"@%", readOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range slices.Repeat(statements, 2) {
			do(`%s`, s)
		}
	}
	do(`revoke all, grant option from app_%s@'%%'`, strings.TrimPrefix(database, "hf_"))
	given("app", false)
	if err := Verify(t.Context(), app, nil); err != nil {
		t.Errorf("verify as app: %v", err)
	}
	s, err := New(t.Context(), app, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := holdfast.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Acquire(t.Context(), "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	freed := hold(t, s, "gone", "x")
	if o, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "gone"}, Old: freed}}); err != nil || !o[0].Won {
		t.Fatal(err)
	}
	if n, err := s.Sweep(t.Context(), 0); err != nil || n != 1 {
		t.Errorf("sweep as app: %d, error %v", n, err)
	}
	if _, err := s.Diagnose(t.Context()); err != nil {
		t.Errorf("diagnose as app: %v", err)
	}
	if _, err := app.Exec(`alter table holdfast_records comment = 'x'`); !denied(err) {
		t.Errorf("alter as app: got %v, want it denied", err)
	}

	do(`grant execute on procedure %s.holdfast_fence to fencer_%s@'%%'`, database, strings.TrimPrefix(database, "hf_"))
	do(`grant select on %s.holdfast_locks to dba_%s@'%%'`, database, strings.TrimPrefix(database, "hf_"))
	for name, db := range map[string]*sql.DB{"app": app, "fencer": fencer} {
		tx := begin(t, db)
		if err := Fence(t.Context(), tx, l); err != nil {
			t.Errorf("fence as %s: %v", name, err)
		}
		tx.Rollback()
	}
	look := user("look")
	given("look", true)
	looks(t, look, "orders/42")
	if err := look.QueryRow(`select holder from holdfast_locks`).Scan(new(string)); err != nil {
		t.Errorf("the view as a user who looks: %v", err)
	}
	for _, q := range []string{`update holdfast_records set fence = 0`, `insert into holdfast_records (id, version, value) values ('', 1, '')`,
		`delete from holdfast_records`, `update holdfast_meta set value = 0`, `call holdfast_fence('orders/42', 1)`} {
		if _, err := look.Exec(q); !denied(err) {
			t.Errorf("%s by a user who looks: error %v, want it denied", q, err)
		}
	}
	var holder string
	if err := dba.QueryRow(`select holder from holdfast_locks`).Scan(&holder); err != nil || holder == "" {
		t.Errorf("the view as dba: %q, error %v", holder, err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}

	// The user who has made the tables has to stay, or another one to make them anew.
	do(`drop user migrator_%s@'%%'`, strings.TrimPrefix(database, "hf_"))
	want = `holdfast_fence runs with the rights of a user who has gone (`
	if err := Verify(t.Context(), admin, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("without the migrator: got %v, want %s", err, want)
	}
	if f := finding(t, s, "schema"); f.Level != driver.Failure || !strings.Contains(f.Text, want) {
		t.Errorf("without the migrator the doctor says %+v", f)
	}
	if err := Migrate(t.Context(), admin, nil); err != nil {
		t.Error(err)
	}
	if err := Verify(t.Context(), admin, nil); err != nil {
		t.Errorf("made anew: %v", err)
	}
}

// The view shows who holds and who waits, as a DBA wants to see it.
func TestView(t *testing.T) {
	s := fresh(t, way{})
	db := connect(t, s.url, way{dsn: "parseTime=true&time_zone=%27%2B00:00%27"})
	c, err := holdfast.New(s, &holdfast.Options{Owner: holdfast.Owner{Name: "web 7", Host: "db1", User: "ann", Program: "ship \"it\"", PID: 4711, Address: "10.0.0.7", Device: "pts/3"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, err := holdfast.New(s.Reopen(t), &holdfast.Options{Owner: holdfast.Owner{Host: "db2", User: "bob", PID: 7}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	asked := time.Now()
	l, err := c.Acquire(t.Context(), "größe/42", holdfast.Reason("why not"), holdfast.Labels(map[string]string{"build": "7"}))
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := other.Acquire(t.Context(), "größe/42", holdfast.Shared())
		waiting <- err
	}()
	type row struct {
		name, mode, state, holder, host, user, program, session, reason sql.NullString
		position, pid, nr, token, last, retries                         sql.NullInt64
		requested, granted, beat, suspectedSince                        sql.NullTime
		waited, ttl                                                     sql.NullFloat64
		suspectedBy, owner, address, device, labels                     sql.NullString
		dead                                                            bool
	}
	look := func() (list []row) {
		t.Helper()
		rows, err := db.Query("select name, mode, state, position, holder, host, pid, `user`, program, session, nr, reason, token, last_token, " +
			"requested, granted, waited, retries, ttl, last_beat, suspected_by, suspected_since, dead, owner, address, device, labels from holdfast_locks order by state, position")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var r row
			if err := rows.Scan(&r.name, &r.mode, &r.state, &r.position, &r.holder, &r.host, &r.pid, &r.user, &r.program, &r.session, &r.nr, &r.reason,
				&r.token, &r.last, &r.requested, &r.granted, &r.waited, &r.retries, &r.ttl, &r.beat, &r.suspectedBy, &r.suspectedSince, &r.dead, &r.owner, &r.address, &r.device, &r.labels); err != nil {
				t.Fatal(err)
			}
			list = append(list, r)
		}
		return list
	}
	var list []row
	for end := time.Now().Add(10 * time.Second); len(list) < 2; list = look() {
		if time.Now().After(end) {
			t.Fatalf("the view shows %+v", list)
		}
	}
	held, waits := list[0], list[1]
	for what, got := range map[string][2]any{
		"name":             {held.name.String, "größe/42"},
		"mode":             {held.mode.String, "exclusive"},
		"state":            {held.state.String, "held"},
		"position":         {held.position.Int64, int64(1)},
		"holder":           {held.holder.String, "web 7 (ann@db1, pid 4711)"},
		"host":             {held.host.String, "db1"},
		"pid":              {held.pid.Int64, int64(4711)},
		"user":             {held.user.String, "ann"},
		"program":          {held.program.String, `ship "it"`},
		"session":          {len(held.session.String), 32},
		"reason":           {held.reason.String, "why not"},
		"token":            {held.token.Int64, l.Token()},
		"last token":       {held.last.Int64, l.Token()},
		"owner":            {held.owner.String, "web 7"},
		"address":          {held.address.String, "10.0.0.7"},
		"device":           {held.device.String, "pts/3"},
		"labels":           {strings.ReplaceAll(held.labels.String, " ", ""), `{"build":"7"}`},
		"labels of waiter": {waits.labels.Valid || waits.owner.Valid, false},
		"ttl":              {held.ttl.Float64, 15.0},
		"dead":             {held.dead, false},
		"suspected":        {held.suspectedBy.Valid || held.suspectedSince.Valid, false},
		"mode of waiter":   {waits.mode.String, "shared"},
		"state of waiter":  {waits.state.String, "waiting"},
		"holder of waiter": {waits.holder.String, "bob@db2 (pid 7)"},
		"token of waiter":  {waits.token.Valid || waits.granted.Valid || waits.last.Valid, false},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is %v, want %v", what, got[0], got[1])
		}
	}
	near := func(at sql.NullTime) bool { return at.Valid && at.Time.Sub(asked).Abs() < 20*time.Second }
	if !near(held.requested) || !near(held.granted) || !near(held.beat) || !near(waits.requested) || waits.waited.Float64 < 0 || waits.waited.Float64 > 20 {
		t.Errorf("times: %+v, %+v", held, waits)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}

	// A mark, and a death.
	hold(t, s, "by hand", `{"holders":[{"session":"x1","nr":3,"slots":2,"token":100,"n":5,"ttl":2500,"since":90,"retries":4}]}`)
	k := driver.Key{Space: driver.Sessions, Name: "x1"}
	at := time.Now()
	o, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte(`{"ttl":2500,"beat":3,"suspected":{"by":"ann","age":60000000}}`)}})
	if err != nil || !o[0].Won {
		t.Fatal(err)
	}
	find := func() row {
		for _, r := range look() {
			if r.session.String == "x1" {
				return r
			}
		}
		t.Fatal("it is not in the view")
		return row{}
	}
	r := find()
	if r.mode.String != "slots 2" || r.holder.String != "session x1" || r.last.Int64 != 104 || r.retries.Int64 != 4 || r.ttl.Float64 != 2.5 || r.suspectedBy.String != "ann" ||
		r.suspectedSince.Time.Sub(at).Abs() > 10*time.Second || r.suspectedSince.Time.Sub(r.beat.Time) != time.Minute || r.waited.Float64 != 0.00001 {
		t.Errorf("a suspect: %+v", r)
	}
	if o, err = s.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: o[0].Record.Version, Value: []byte(`{"beat":3,"dead":123456}`)}}); err != nil || !o[0].Won {
		t.Fatal(err)
	}
	if r := find(); !r.dead {
		t.Errorf("the dead: %+v", r)
	}
}

// A table whose names had at most 255 bytes is widened in place, with locks held. Until then
// longer names are refused, and not cut.
func TestWiden(t *testing.T) {
	s := fresh(t, way{})
	admin := connect(t, s.url, way{})
	if _, err := admin.Exec(`alter table holdfast_records modify id varbinary(256) not null`); err != nil {
		t.Fatal(err)
	}
	c, err := holdfast.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	held, err := c.Acquire(t.Context(), strings.Repeat("x", 255))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1023)
	if l, err := c.TryAcquire(t.Context(), long); err == nil {
		t.Errorf("an older table takes a name of %d bytes", len(l.Name()))
	}
	want := `holdfast_records.id is "varbinary(256) not null primary key"`
	if err := Verify(t.Context(), admin, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Verify says %v, want %s", err, want)
	}
	for range 2 {
		if err := Migrate(t.Context(), admin, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := Verify(t.Context(), admin, nil); err != nil {
		t.Error(err)
	}
	if err := held.Err(); err != nil {
		t.Errorf("the lock that was held meanwhile: %v", err)
	}
	for _, name := range []string{long + "a", long + "b"} {
		l, err := c.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		tx := begin(t, admin)
		if _, err := tx.Exec(`call holdfast_fence(?, ?)`, name, l.Token()); err != nil {
			t.Errorf("the fence of a name of %d bytes: %v", len(name), err)
		}
		tx.Rollback()
	}
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// hold makes a lock record by hand and returns its version.
func hold(t *testing.T, s driver.Store, name, value string) int64 {
	t.Helper()
	k := driver.Key{Name: name}
	r, err := s.Load(t.Context(), []driver.Key{k}, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	old := r[0].Version
	if old == 0 {
		old = driver.IfEmpty
	}
	out, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: old, Value: []byte(value)}})
	if err != nil || !out[0].Won {
		t.Fatalf("write %s: %+v, error %v", value, out, err)
	}
	return out[0].Record.Version
}

// application is a pool of an application that keeps its data beside the locks.
func application(t *testing.T, h handle, params string) *sql.DB {
	t.Helper()
	db := connect(t, h.url, way{dsn: params})
	if _, err := db.Exec(`create table if not exists orders (id integer primary key auto_increment, paid text)`); err != nil {
		t.Fatal(err)
	}
	return db
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

// fences are the two forms of the fence: in Go, and in SQL.
var fences = map[string]func(ctx context.Context, tx *sql.Tx, name string, token int64) error{
	"Fence": func(ctx context.Context, tx *sql.Tx, name string, token int64) error {
		return fence(ctx, tx, sqlstore.Tables{Prefix: "holdfast_"}, name, token)
	},
	"SQL": func(ctx context.Context, tx *sql.Tx, name string, token int64) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`call holdfast_fence('%s', %d)`, name, token))
		return err
	},
}

// A fenced transaction commits only while the token holds the lock.
func TestFence(t *testing.T) {
	type step struct {
		token int64 // less than 50: from the version of the record
		ok    bool
	}
	for _, test := range []struct {
		name  string
		value string
		steps []step
	}{
		{"token of the version", `{"holders":[{"session":"a","nr":1,"slots":1}]}`, []step{{0, true}, {-1, false}, {1, false}, {0, true}}},
		{"token written out", `{"holders":[{"session":"a","nr":1,"slots":1,"token":100}]}`, []step{{100, true}, {99, false}, {101, false}, {0, false}}},
		{"token above the version", `{"next":9000000000000001,"holders":[{"session":"a","nr":1,"slots":1}]}`, []step{{9000000000000001, true}, {9000000000000000, false}, {0, false}}},
		{"shared", `{"holders":[{"session":"a","nr":1,"slots":0,"token":7},{"session":"b","nr":1,"slots":0,"token":8}]}`, []step{{7, true}, {8, true}, {7, true}, {9, false}}},
		{"slots", `{"holders":[{"session":"a","nr":1,"slots":3},{"session":"b","nr":1,"slots":3,"off":1}]}`, []step{{1, true}, {0, true}, {2, false}}},
		{"block", `{"holders":[{"session":"a","nr":1,"slots":1,"token":100,"n":10}]}`, []step{{99, false}, {100, true}, {105, true}, {105, true}, {104, false}, {109, true}, {110, false}}},
		{"shared block", `{"holders":[{"session":"a","nr":1,"slots":0,"token":100,"n":10}]}`, []step{{105, true}, {104, true}, {110, false}}},
		{"only waiting", `{"waiters":[{"session":"a","nr":1,"slots":1,"token":100}]}`, []step{{100, false}, {0, false}}},
		{"free", ``, []step{{0, false}}},
	} {
		for form, fence := range fences {
			t.Run(test.name+"/"+form, func(t *testing.T) {
				t.Parallel()
				s := fresh(t, way{})
				db := application(t, s, "")
				version := hold(t, s, "orders/42", test.value)
				for _, step := range test.steps {
					token := step.token
					if token < 50 && token > -50 && !strings.Contains(test.value, `"token":`+fmt.Sprint(7)) {
						token += version
					}
					tx := begin(t, db)
					err := fence(t.Context(), tx, "orders/42", token)
					if (err == nil) != step.ok {
						t.Fatalf("token %d of version %d: error %v, want one: %v", token, version, err, !step.ok)
					}
					if form == "Fence" && err != nil && !errors.Is(err, holdfast.ErrLost) {
						t.Fatalf("token %d: error %v, want one that is ErrLost", token, err)
					}
					if err != nil {
						tx.Rollback()
					} else if err := tx.Commit(); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// What a record holds that is no record of ours lets nobody in, and is no error
// but that of a lost lock.
func TestFenceOfRubbish(t *testing.T) {
	s := fresh(t, way{})
	db := application(t, s, "")
	for _, value := range []string{
		"x", "{", "\xff\x00", "5", `"holders"`, `[{"session":"a"}]`, `{"holders":5}`, `{"holders":[5,null,"x",{}]}`,
		`{"holders":[{"session":5,"slots":"x","token":"y","n":{}}]}`, `{"next":"x","holders":[{"session":"a","slots":1,"n":"x","off":1e99}]}`,
		`{"holders":[{"session":"a","slots":1,"token":99999999999999999999}]}`,
		strings.Repeat(`{"holders":[`, 50),
	} {
		version := hold(t, s, "rubbish", value)
		for _, token := range []int64{1, version + 1} {
			tx := begin(t, db)
			err := fences["Fence"](t.Context(), tx, "rubbish", token)
			tx.Rollback()
			if !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("%s: error %v, want one that is ErrLost", value, err)
			}
		}
		if _, err := db.Exec(`do (select count(concat(name, holder, token, requested)) from holdfast_locks)`); err != nil {
			t.Errorf("the view, where a record holds %s: %v", value, err)
		}
	}
}

func TestFenceOfNoLock(t *testing.T) {
	s := fresh(t, way{})
	elsewhere := servers.MySQL(t, nil).Database(t)
	for name, db := range map[string]*sql.DB{"no row": application(t, s, ""), "no procedure": connect(t, elsewhere, way{})} {
		err := fences["Fence"](t.Context(), begin(t, db), "orders/42", 17)
		want := `fence "orders/42": there is no such lock in the database of this transaction: the lock was taken in another one`
		if err == nil || err.Error() != want || errors.Is(err, holdfast.ErrLost) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	for _, name := range []string{"orders/42", strings.Repeat("ä", 127) + "x"} {
		_, err := application(t, s, "").Exec(`call holdfast_fence(?, 17)`, name)
		if state(err) != "HF003" {
			t.Errorf("in SQL: error %v of SQLSTATE %q, want HF003", err, state(err))
		}
	}
}

// The character set of the connection does not matter, be it one in which digits
// are of several bytes.
func TestFenceInAnyCharacterSet(t *testing.T) {
	s := fresh(t, way{})
	token := hold(t, s, "größe/42", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	for _, collation := range []string{"latin1_bin", "utf8mb4_turkish_ci", "ucs2_bin", "utf32_bin", "gbk_bin", "binary"} {
		db := application(t, s, "collation_connection=%27"+collation+"%27")
		for form, fence := range fences {
			if form == "SQL" && slices.Contains([]string{"latin1_bin", "gbk_bin", "binary"}, collation) {
				continue // there ö is of other bytes, or is none
			}
			tx := begin(t, db)
			if err := fence(t.Context(), tx, "größe/42", token); err != nil {
				t.Errorf("%s, %s: %v", collation, form, err)
			}
			tx.Rollback()
		}
	}
}

// Nobody holds anything with no token, as a trigger on a column that may be null
// may have it.
func TestFenceOfNull(t *testing.T) {
	s := fresh(t, way{})
	db := application(t, s, "")
	hold(t, s, "a", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	for call, want := range map[string]string{`call holdfast_fence('a', null)`: "HF002", `call holdfast_fence(null, 7)`: "HF003", `call holdfast_fence(null, null)`: "HF003"} {
		if _, err := db.Exec(call); state(err) != want {
			t.Errorf("%s: error %v, want one of SQLSTATE %s", call, err, want)
		}
	}
}

func state(err error) string {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return string(e.SQLState[:])
	}
	return ""
}

// isolations are what a transaction of the application may have.
var isolations = map[string]string{
	"REPEATABLE READ": "",
	"READ COMMITTED":  "tx_isolation=%27READ-COMMITTED%27",
	"SERIALIZABLE":    "tx_isolation=%27SERIALIZABLE%27",
}

// Nobody takes a lock over while a transaction is open that has passed its
// fence; and the write of one that has lost the lock cannot commit, even if it
// saw the lock held when it began.
func TestFenceAgainstTakeover(t *testing.T) {
	for form, fence := range fences {
		for isolation, params := range isolations {
			t.Run(form+"/"+isolation, func(t *testing.T) {
				t.Parallel()
				s := fresh(t, way{})
				db := application(t, s, params)
				ctx := t.Context()
				token := hold(t, s, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)

				tx := begin(t, db)
				if _, err := tx.Exec(`insert into orders (paid) values ('first')`); err != nil {
					t.Fatal(err)
				}
				if err := fence(ctx, tx, "orders/42", token); err != nil {
					t.Fatal(err)
				}
				takeover := []driver.Write{{Key: driver.Key{Name: "orders/42"}, Old: token, Value: []byte(`{"holders":[{"session":"b","nr":1,"slots":1}]}`)}}
				began := time.Now()
				out, err := s.CompareAndSwap(ctx, takeover)
				if err != nil || out[0].Won || out[0].Record.Version != token {
					t.Fatalf("a takeover behind an open fence: %+v, error %v; want it to lose to what it was to follow", out, err)
				}
				if took := time.Since(began); took < 500*time.Millisecond || took > 5*time.Second {
					t.Errorf("it waited for %v, want about a second", took)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}

				tx = begin(t, db)
				var n int
				if err := tx.QueryRow(`select count(*) from orders`).Scan(&n); err != nil || n != 1 { // it has its snapshot now
					t.Fatalf("%d orders, error %v", n, err)
				}
				if out, err := s.CompareAndSwap(ctx, takeover); err != nil || !out[0].Won {
					t.Fatalf("the takeover after it: %+v, error %v", out, err)
				}
				if _, err := tx.Exec(`insert into orders (paid) values ('second')`); err != nil {
					t.Fatal(err)
				}
				if err := fence(ctx, tx, "orders/42", token); err == nil {
					t.Fatal("the fence let in a token that has lost the lock")
				}
				tx.Rollback()
				var paid int
				if err := db.QueryRow(`select count(*) from orders`).Scan(&paid); err != nil || paid != 1 {
					t.Fatalf("%d orders, error %v; want the first alone", paid, err)
				}
			})
		}
	}
}

// Where the server fails transactions that read what has changed since they
// began, the fence fails with them, and does not let the wrong one in.
func TestFenceUnderSnapshotIsolation(t *testing.T) {
	s := fresh(t, way{})
	db := application(t, s, "innodb_snapshot_isolation=ON")
	token := hold(t, s, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	for name, value := range map[string]string{"lost": `{"holders":[]}`, "held": fmt.Sprintf(`{"holders":[{"session":"a","nr":1,"slots":1,"token":%d}]}`, token)} {
		tx := begin(t, db)
		var n int
		if err := tx.QueryRow(`select count(*) from orders`).Scan(&n); err != nil { // it has its snapshot now
			t.Fatal(err)
		}
		if err := fences["Fence"](t.Context(), tx, "orders/42", token); name == "lost" && err != nil {
			t.Errorf("nothing has changed: %v", err)
		}
		tx.Rollback()

		tx = begin(t, db)
		if err := tx.QueryRow(`select count(*) from orders`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		hold(t, s, "orders/42", value)
		if err := fences["Fence"](t.Context(), tx, "orders/42", token); code(err) != "1020" {
			t.Errorf("%s since the transaction began to read: got %v, want error 1020", name, err)
		}
		tx.Rollback()
	}
}

// Holders that share a lock fence at the same time; of an exclusive one with
// many tokens, one after the other.
func TestFencesTogether(t *testing.T) {
	s := fresh(t, way{})
	db := application(t, s, "innodb_lock_wait_timeout=1")
	hold(t, s, "shared", `{"holders":[{"session":"a","slots":0,"token":7,"n":3},{"session":"b","slots":0,"token":10}]}`)
	hold(t, s, "slots", `{"holders":[{"session":"a","slots":2,"token":7},{"session":"b","slots":2,"token":8}]}`)
	hold(t, s, "exclusive", `{"holders":[{"session":"a","slots":1,"token":7,"n":3}]}`)
	for _, test := range []struct {
		name          string
		first, second int64
		together      bool
	}{{"shared", 7, 10, true}, {"slots", 8, 7, true}, {"exclusive", 7, 8, false}} {
		one, two := begin(t, db), begin(t, db)
		if err := fences["Fence"](t.Context(), one, test.name, test.first); err != nil {
			t.Fatal(err)
		}
		err := fences["Fence"](t.Context(), two, test.name, test.second)
		if (err == nil) != test.together || err != nil && code(err) != "1205" {
			t.Errorf("%s: a second fence has error %v, want them together: %v", test.name, err, test.together)
		}
		one.Rollback()
		two.Rollback()
	}
}

// A process that freezes in a fenced transaction does not keep the lock from
// others for ever: the server ends it. A limit that the session has stays.
func TestFrozenTransaction(t *testing.T) {
	s := fresh(t, way{})
	token := hold(t, s, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1,"ttl":1200}]}`)
	limit := func(tx *sql.Tx) (n int) {
		if err := tx.QueryRow(`select @@idle_transaction_timeout`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	tx := begin(t, application(t, s, "idle_transaction_timeout=100"))
	if err := fences["Fence"](t.Context(), tx, "orders/42", token); err != nil || limit(tx) != 100 {
		t.Fatalf("error %v, limit %ds, want that of the session, 100", err, limit(tx))
	}
	tx.Rollback()

	db := application(t, s, "")
	tx = begin(t, db)
	if _, err := tx.Exec(`insert into orders (paid) values ('frozen')`); err != nil {
		t.Fatal(err)
	}
	if err := fences["Fence"](t.Context(), tx, "orders/42", token); err != nil || limit(tx) != 2 {
		t.Fatalf("error %v, limit %ds, want that of the lock, 2", err, limit(tx))
	}
	began := time.Now()
	takeover := []driver.Write{{Key: driver.Key{Name: "orders/42"}, Old: token, Value: []byte(`{"holders":[{"session":"b","nr":1,"slots":1}]}`)}}
	for won := false; !won; {
		out, err := s.CompareAndSwap(t.Context(), takeover)
		if err != nil {
			t.Fatal(err)
		}
		won = out[0].Won
		if took := time.Since(began); won && took < time.Second {
			t.Errorf("the lock was taken over after %v, within the fence", took)
		} else if took > 20*time.Second {
			t.Fatal("a frozen transaction keeps the lock")
		}
	}
	if err := tx.Commit(); err == nil {
		t.Error("the frozen transaction has committed after the takeover")
	}
	var n int
	if err := db.QueryRow(`select count(*) from orders`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d orders, error %v, want none", n, err)
	}
}

// The limit that a fence sets stays with the connection. A later fence there of a lock
// with a shorter TTL lowers it, and none lowers a limit that the session has itself.
func TestFrozenTransactionOnUsedConnection(t *testing.T) {
	s := fresh(t, way{})
	long := hold(t, s, "long", `{"holders":[{"session":"a","nr":1,"slots":1,"ttl":86400000}]}`)
	short := hold(t, s, "short", `{"holders":[{"session":"a","nr":1,"slots":1,"ttl":1200}]}`)
	db := application(t, s, "")
	db.SetMaxOpenConns(1)
	for _, step := range []struct {
		name  string
		token int64
		own   string
		want  int
	}{
		{"long", long, "", 86400}, {"short", short, "", 2}, {"long", long, "", 2},
		{"short", short, "7", 7}, {"long", long, "0", 86400}, {"long", long, "100", 100}, {"short", short, "", 100},
	} {
		if step.own != "" {
			if _, err := db.Exec(`set session idle_transaction_timeout = ` + step.own); err != nil {
				t.Fatal(err)
			}
		}
		tx := begin(t, db)
		if err := fences["SQL"](t.Context(), tx, step.name, step.token); err != nil {
			t.Fatal(err)
		}
		var limit int
		if err := tx.QueryRow(`select @@idle_transaction_timeout`).Scan(&limit); err != nil || limit != step.want {
			t.Errorf("a fence of %q, with a limit of its own %q: %ds, error %v, want %ds", step.name, step.own, limit, err, step.want)
		}
		tx.Rollback()
	}
}

// A trigger on the user's table lets only those write who bring the token of the
// lock, as the documentation has it.
func TestTrigger(t *testing.T) {
	s := fresh(t, way{})
	db := application(t, s, "")
	_, trigger, _ := strings.Cut(comment(t, "fence.go", "Fence"), "create trigger")
	for _, q := range []string{
		`create table accounts (id integer primary key, balance integer not null)`,
		`insert into accounts values (1, 100)`,
		"create trigger" + trigger,
	} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	pay := func(token int64) error {
		if _, err := conn.ExecContext(ctx, `set @lock_token = ?`, token); err != nil {
			t.Fatal(err)
		}
		_, err := conn.ExecContext(ctx, `update accounts set balance = balance - 10 where id = 1`)
		return err
	}
	c, err := holdfast.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := pay(17); state(err) != "HF003" {
		t.Errorf("without a lock: error %v, want one of SQLSTATE HF003", err)
	}
	l, err := c.Acquire(ctx, "accounts/1")
	if err != nil {
		t.Fatal(err)
	}
	if err := pay(l.Token()); err != nil {
		t.Error(err)
	}
	if err := pay(l.Token() - 1); state(err) != "HF002" {
		t.Errorf("with an old token: error %v, want one of SQLSTATE HF002", err)
	}
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := pay(l.Token()); state(err) != "HF002" {
		t.Errorf("after the release: error %v, want one of SQLSTATE HF002", err)
	}
	var balance int
	if err := db.QueryRow(`select balance from accounts`).Scan(&balance); err != nil || balance != 90 {
		t.Errorf("balance %d, error %v; want 90", balance, err)
	}
}

// Nobody writes without the lock (P4), also with tables of other names, and a connection in
// which a name has other bytes.
func TestFences(t *testing.T) {
	for name, w := range map[string]way{"defaults": {}, "elsewhere": {prefix: "elsewhere_"}} {
		t.Run(name, func(t *testing.T) {
			drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced {
				s := fresh(t, w)
				params := ""
				if w.prefix != "" {
					params = "charset=latin1"
				}
				db := application(t, s, params)
				if _, err := db.Exec(`create table registers (name varchar(100) primary key, value text)`); err != nil {
					t.Fatal(err)
				}
				return drivertest.Fenced{Store: s.Store, Other: s.Reopen(t)}.InSQL(db, `replace into registers (name, value) values (?, ?)`,
					`select coalesce(max(value), '') from registers where name = ?`, Fence)
			})
		})
	}
}

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/memory"
)

// hold makes a lock record by hand and returns its version.
func hold(t *testing.T, s *Store, name, value string) int64 {
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

// application opens the file as an application does that keeps its data there.
func application(t *testing.T, s *Store) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+s.path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.Exec(`create table orders (id integer primary key, paid text)`); err != nil {
		t.Fatal(err)
	}
	return db
}

// fences are the two forms of the fence: in Go, and in SQL.
var fences = map[string]func(ctx context.Context, tx *sql.Tx, name string, token int64) error{
	"Fence": func(ctx context.Context, tx *sql.Tx, name string, token int64) error {
		if err := sameCopy(ctx, tx); err != nil {
			return err
		}
		return fence(ctx, tx, name, token)
	},
	"SQL": func(ctx context.Context, tx *sql.Tx, name string, token int64) error {
		_, err := tx.ExecContext(ctx, `insert into holdfast_fence (name, token) values (?, ?)`, name, token)
		return err
	},
}

// A fenced transaction commits only while the token holds the lock.
func TestFence(t *testing.T) {
	type step struct {
		token int64 // less 0: below the version of the record
		ok    bool
	}
	for _, test := range []struct {
		name  string
		value string
		steps []step // a token of 0 stands for the version
	}{
		{"token of the version", `{"holders":[{"session":"a","nr":1,"slots":1}]}`, []step{{0, true}, {-1, false}, {1, false}, {0, true}}},
		{"token written out", `{"holders":[{"session":"a","nr":1,"slots":1,"token":100}]}`, []step{{100, true}, {99, false}, {101, false}, {0, false}}},
		{"token above the version", `{"next":9000000000000000,"holders":[{"session":"a","nr":1,"slots":1}]}`, []step{{9000000000000000, true}, {0, false}}},
		{"shared", `{"holders":[{"session":"a","nr":1,"slots":0,"token":7},{"session":"b","nr":1,"slots":0,"token":8}]}`, []step{{7, true}, {8, true}, {7, true}, {9, false}}},
		{"slots", `{"holders":[{"session":"a","nr":1,"slots":3},{"session":"b","nr":1,"slots":3,"off":1}]}`, []step{{1, true}, {0, true}, {2, false}}},
		{"block", `{"holders":[{"session":"a","nr":1,"slots":1,"token":100,"n":10}]}`, []step{{99, false}, {100, true}, {105, true}, {105, true}, {104, false}, {109, true}, {110, false}}},
		{"shared block", `{"holders":[{"session":"a","nr":1,"slots":0,"token":100,"n":10}]}`, []step{{105, true}, {104, true}, {110, false}}},
		{"only waiting", `{"waiters":[{"session":"a","nr":1,"slots":1,"token":100}]}`, []step{{100, false}, {0, false}}},
		{"free", ``, []step{{0, false}}},
	} {
		for form, fence := range fences {
			t.Run(test.name+"/"+form, func(t *testing.T) {
				s := fresh(t)
				db := application(t, s)
				version := hold(t, s, "orders/42", test.value)
				for _, step := range test.steps {
					token := step.token
					if token < 50 && token > -50 && !strings.Contains(test.value, `"token":`+fmt.Sprint(7)) {
						token += version
					}
					tx, err := db.BeginTx(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					err = fence(t.Context(), tx, "orders/42", token)
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

func TestFenceOfNoLock(t *testing.T) {
	s := fresh(t)
	db := application(t, s)
	elsewhere, err := sql.Open("sqlite", "file:"+t.TempDir()+"/other.db")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	for name, db := range map[string]*sql.DB{"no row": db, "no table": elsewhere} {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		err = fences["Fence"](t.Context(), tx, "orders/42", 17)
		want := `fence "orders/42": there is no such lock in the file of this transaction: the lock was taken in another one`
		if err == nil || err.Error() != want || errors.Is(err, holdfast.ErrLost) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

// Fence without a lock would let everybody commit.
func TestFenceWithoutALock(t *testing.T) {
	tx, err := application(t, fresh(t)).Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := Fence(t.Context(), tx); !errors.Is(err, driver.ErrNothingFenced) {
		t.Errorf("error %v", err)
	}
}

// A temporary table of the application does not stand in for the file's.
func TestFenceIsHidden(t *testing.T) {
	s := fresh(t)
	db := application(t, s)
	db.SetMaxOpenConns(1)
	token := hold(t, s, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	if _, err := db.Exec(`create temp table Holdfast_Records as select * from holdfast_records`); err != nil {
		t.Fatal(err)
	}
	hold(t, s, "orders/42", `{"holders":[{"session":"b","nr":1,"slots":1}]}`)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := fences["Fence"](t.Context(), tx, "orders/42", token); err == nil || !strings.Contains(err.Error(), "drop it") {
		t.Errorf("got %v, want that it is hidden", err)
	}
}

// The fence itself keeps others from the lock, also in a transaction that has
// written nothing and was begun without a lock.
func TestFenceAlone(t *testing.T) {
	for form, fence := range fences {
		t.Run(form, func(t *testing.T) {
			s := fresh(t)
			application(t, s)
			ctx := t.Context()
			token := hold(t, s, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
			db, err := sql.Open("sqlite", "file:"+s.path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			if err := fence(ctx, tx, "orders/42", token); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			takeover := []driver.Write{{Key: driver.Key{Name: "orders/42"}, Old: token}}
			if out, err := s.CompareAndSwap(short, takeover); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a takeover behind an open fence: %+v, error %v; want it to wait", out, err)
			}
		})
	}
}

// Nobody takes a lock over while a transaction is open that has passed its
// fence; and the write of one that has lost the lock cannot commit.
func TestFenceAgainstTakeover(t *testing.T) {
	for form, fence := range fences {
		t.Run(form, func(t *testing.T) {
			s := fresh(t)
			db := application(t, s)
			ctx := t.Context()
			token := hold(t, s, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)

			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(`insert into orders (paid) values ('first')`); err != nil {
				t.Fatal(err)
			}
			if err := fence(ctx, tx, "orders/42", token); err != nil {
				t.Fatal(err)
			}
			takeover := []driver.Write{{Key: driver.Key{Name: "orders/42"}, Old: token, Value: []byte(`{"holders":[{"session":"b","nr":1,"slots":1}]}`)}}
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if out, err := s.CompareAndSwap(short, takeover); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a takeover behind an open fence: %+v, error %v; want it to wait", out, err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if out, err := s.CompareAndSwap(ctx, takeover); err != nil || !out[0].Won {
				t.Fatalf("the takeover after it: %+v, error %v", out, err)
			}

			tx, err = db.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(`insert into orders (paid) values ('second')`); err != nil {
				t.Fatal(err)
			}
			if err := fence(ctx, tx, "orders/42", token); err == nil {
				t.Fatal("the fence let in a token that has lost the lock")
			}
			if form == "SQL" {
				// A caller that ignores the error cannot commit either.
				if err := tx.Commit(); err == nil {
					t.Error("committed behind a fence that failed")
				}
			} else {
				tx.Rollback()
			}
			var paid int
			if err := db.QueryRow(`select count(*) from orders`).Scan(&paid); err != nil || paid != 1 {
				t.Fatalf("%d orders, error %v; want the first alone", paid, err)
			}
		})
	}
}

// Nobody writes without the lock (P4).
func TestFences(t *testing.T) {
	drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced {
		s := fresh(t)
		db := application(t, s)
		if _, err := db.Exec(`create table registers (name text primary key, value text)`); err != nil {
			t.Fatal(err)
		}
		return drivertest.Fenced{Store: s, Other: open(t, s.path, nil)}.InSQL(db, `replace into registers (name, value) values (?, ?)`,
			`select coalesce(max(value), '') from registers where name = ?`, Fence)
	})
}

// A lock of another store is refused as such: what its token is worth here is chance.
func TestFenceOfAnotherStore(t *testing.T) {
	here, elsewhere := fresh(t), fresh(t)
	tx, err := application(t, here).Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, test := range []struct {
		store driver.Store
		want  string
	}{
		{memory.New(), `fence "orders/42": the lock was taken in a store that is not one of SQLite but a *memory.Store; fence it there`},
		{elsewhere, `fence "orders/42": the lock was taken in ` + elsewhere.path + `, and this transaction is one of ` + here.path + `; fence it there`},
	} {
		c, err := holdfast.New(test.store, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := c.Acquire(t.Context(), "orders/42")
		if err != nil {
			t.Fatal(err)
		}
		if err := Fence(t.Context(), tx, l); err == nil || err.Error() != test.want || errors.Is(err, holdfast.ErrLost) {
			t.Errorf("got %v\nwant %s", err, test.want)
		}
	}
}

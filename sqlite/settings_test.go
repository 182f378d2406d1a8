package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	modernc "modernc.org/sqlite"
)

// What a program registers with its driver is not for our connections: else a
// function of its own, or a setting, would decide who holds a lock.
func TestDriverOfTheProgram(t *testing.T) {
	for name, want := range map[string]string{"length": "it is held", "exclusive": "it is held", "read-only": "it is held"} {
		t.Run(name, func(t *testing.T) {
			s := fresh(t)
			held(t, s, "hold")
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE=try", "HOLDFAST_TEST_FILE="+s.path, "HOLDFAST_TEST_DRIVER="+name)
			out, _ := c.CombinedOutput()
			if !strings.Contains(string(out), want) {
				t.Errorf("got %s, want %s", out, want)
			}
		})
	}
}

func init() {
	pragma := ""
	switch os.Getenv("HOLDFAST_TEST_DRIVER") {
	case "length":
		modernc.MustRegisterScalarFunction("length", 1, func(*modernc.FunctionContext, []sqldriver.Value) (sqldriver.Value, error) { return int64(0), nil })
	case "exclusive":
		pragma = "pragma locking_mode = exclusive"
	case "read-only":
		pragma = "pragma query_only = on"
	}
	if pragma != "" {
		modernc.RegisterConnectionHook(func(c modernc.ExecQuerierContext, _ string) error {
			_, err := c.ExecContext(context.Background(), pragma, nil)
			return err
		})
	}
}

// What another program has made of the file is put right, refused by name, or
// does no harm.
func TestSettingsOfTheFile(t *testing.T) {
	for _, test := range []struct {
		before string // the schema is made
		after  string
		want   string // of Open; "": a lock is taken, and its fence holds
	}{
		{before: `pragma encoding = 'UTF-16le'; create table t (x)`, want: "its text is in UTF-16le"},
		{before: `pragma encoding = 'UTF-16be'; create table t (x)`, want: "its text is in UTF-16be"},
		{before: `pragma page_size = 512; create table t (x)`},
		{before: `pragma page_size = 65536; create table t (x)`},
		{before: `pragma auto_vacuum = full; create table t (x)`},
		{before: `pragma auto_vacuum = incremental; create table t (x)`},
		{after: `pragma journal_mode = delete`},
		{after: `pragma journal_mode = truncate; create table t (x)`},
		{after: `pragma journal_mode = memory; create table t (x)`},
		{after: `pragma journal_mode = off; create table t (x)`},
		{after: `pragma user_version = 7; pragma application_id = 7`},
		{after: `pragma journal_mode = delete; pragma page_size = 1024; vacuum; pragma auto_vacuum = full; vacuum`},
		{after: `create index odd on holdfast_records (fence)`},
		{after: `create table seen (v); create trigger look after update on holdfast_records begin insert into seen values (new.version); end`},
	} {
		t.Run(test.before+test.after, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "app.db")
			script := func(sql string) {
				t.Helper()
				c, err := connect("file:" + path)
				if err != nil {
					t.Fatal(err)
				}
				defer c.close()
				if err := c.script(sql); err != nil {
					t.Fatal(err)
				}
			}
			script(test.before)
			err := Migrate(t.Context(), path)
			if err == nil {
				script(test.after)
			}
			var s *Store
			if err == nil {
				s, err = Open(t.Context(), path, nil)
			}
			if err != nil || test.want != "" {
				if test.want == "" || err == nil || !strings.Contains(err.Error(), path+": "+test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				return
			}
			defer s.Close()
			one(t, s)
		})
	}
}

// one takes a lock, fences with it in both forms, and finds that all are as they
// are by default.
func one(t *testing.T, s *Store) {
	t.Helper()
	token := hold(t, s, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	db, err := sql.Open("sqlite", "file:"+s.path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for form, fence := range fences {
		for _, of := range []int64{token, token - 1} {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := fence(t.Context(), tx, "orders/42", of); (err == nil) != (of == token) {
				t.Errorf("%s with token %d of %d: error %v", form, of, token, err)
			}
			tx.Rollback()
		}
	}
	if r, err := s.Load(t.Context(), []driver.Key{{Name: "orders/42"}}, driver.Fresh); err != nil || r[0].Version != token {
		t.Errorf("loaded %+v, error %v", r, err)
	}
	for query, want := range map[string]string{
		"pragma journal_mode": "wal",
		"pragma synchronous":  "2",
	} {
		err := s.names.Use(t.Context(), func(c *conn) error {
			got, err := c.strings(query)
			if err == nil && fmt.Sprint(got) != "["+want+"]" {
				t.Errorf("%s is %s, want %s", query, got, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A file whose log another program has taken away, while no connection was open,
// has it again.
func TestJournalModeChanged(t *testing.T) {
	s := fresh(t)
	hold(t, s, "a", "1")
	failed := errors.New("failed")
	if err := s.names.Use(t.Context(), func(*conn) error { return failed }); err != failed { // it is closed
		t.Fatal(err)
	}
	other, err := sql.Open("sqlite", "file:"+s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetMaxIdleConns(0) // a connection that reads nothing says what it knew
	mode := ""
	if err := other.QueryRow(`pragma journal_mode = delete`).Scan(&mode); err != nil || mode != "delete" {
		t.Fatalf("the journal mode is %q, error %v", mode, err)
	}
	hold(t, s, "a", "2")
	if err := other.QueryRow(`pragma journal_mode`).Scan(&mode); err != nil || mode != "wal" {
		t.Errorf("the journal mode is %q, error %v, want wal", mode, err)
	}
}

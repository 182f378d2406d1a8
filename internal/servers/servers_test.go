package servers

import (
	"os"
	"strings"
	"testing"
)

// sql runs statements and returns what they print.
func sql(t *testing.T, target, statements string) string {
	t.Helper()
	out, err := query(t.Context(), target, statements)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What was committed is there after kill -9, a restart, and an orderly restart.
func TestRestart(t *testing.T) {
	for _, kind := range []struct {
		name, setting string
		start         func(testing.TB, *Options) *Server
	}{
		{"PostgreSQL", "SHOW max_connections", Postgres},
		{"M", "SELECT @@max_connections", MySQL},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			s := kind.start(t, &Options{Settings: []string{"max_connections=70"}})
			if !s.Own {
				t.Skip("the server is not ours")
			}
			if !strings.HasPrefix(s.Name, kind.name) {
				t.Errorf("got the name %q, want one with %s", s.Name, kind.name)
			}
			db := s.Database(t)
			sql(t, db, "CREATE TABLE t (k INT PRIMARY KEY)")
			for _, end := range []func() error{s.Kill, func() error { return nil }} {
				sql(t, db, "INSERT INTO t SELECT count(*) FROM t")
				if err := end(); err != nil {
					t.Fatal(err)
				}
				if err := s.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := sql(t, db, "SELECT count(*) FROM t"); got != "2" {
				t.Errorf("%s rows are left of 2", got)
			}
			if got := sql(t, db, kind.setting); got != "70" {
				t.Errorf("max_connections is %s, want 70", got)
			}
			for range 2 {
				if err := s.Stop(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
				t.Errorf("%s is still there: %v", s.Dir, err)
			}
			if left := working(s.Dir); len(left) > 0 {
				t.Errorf("processes %v still work in %s", left, s.Dir)
			}
		})
	}
}

func TestPgBouncer(t *testing.T) {
	b := PgBouncer(t, Postgres(t, nil))
	if got, want := sql(t, b.Database(t), "SELECT 1"), "1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !strings.HasPrefix(b.Name, "PgBouncer 1.") {
		t.Errorf("got the name %q", b.Name)
	}
}

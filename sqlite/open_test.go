package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	modernc "modernc.org/sqlite"
)

// Every way a file can be unfit says what is wrong and, where there is one, the
// way out.
func TestOpenRefuses(t *testing.T) {
	write := func(content string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	script := func(sql string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			s := open(t, path, &Options{Create: true})
			err := s.names.Use(t.Context(), func(c *conn) error { return c.script(sql) })
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name string
		make func(t *testing.T, path string)
		opts *Options
		want string // the end of the message begins with it, % is the path
	}{
		{"missing", nil, nil, "open %: no such file; create it with sqlite.Migrate or: holdfast schema apply"},
		{"empty", write(""), nil, `%: schema of "holdfast_" is missing; create it with sqlite.Migrate or: holdfast schema apply`},
		{"garbage", write(strings.Repeat("no database ", 1000)), nil, "% is not a database"},
		{"garbage to create in", write(strings.Repeat("no database ", 1000)), &Options{Create: true}, "% is not a database"},
		{"directory", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, nil, "% is a directory, not a database"},
		{"no schema", script(`drop view holdfast_fence; drop view holdfast_locks; drop table holdfast_meta; drop table holdfast_records`), nil, `%: schema of "holdfast_" is missing;`},
		{"newer schema", script(`update holdfast_meta set value = 9 where key = 'version'`), nil, `%: schema of "holdfast_" is version 9, newer than this program (1); upgrade the program`},
		{"newer schema to create in", script(`update holdfast_meta set value = 9 where key = 'version'`), &Options{Create: true}, `%: schema of "holdfast_" is version 9, newer than this program (1); upgrade the program`},
		{"unknown danger", nil, &Options{Allow: []string{"fire"}}, `cannot allow "fire": it is none of async-commit, network-fs`},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a?b#c%20.db")
			if test.make != nil {
				test.make(t, path)
			}
			_, err := Open(t.Context(), path, test.opts)
			if want := strings.ReplaceAll(test.want, "%", path); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
			if test.name == "missing" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v is not fs.ErrNotExist", err)
			}
		})
	}
	for path, want := range map[string]string{
		"":                                "path of the SQLite file is empty",
		":memory:":                        ":memory:: a path is needed",
		filepath.Join(t.TempDir(), "a/b"): "no such file or directory",
	} {
		if _, err := Open(t.Context(), path, &Options{Create: true}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", path, err, want)
		}
	}
}

// A page that is overwritten is an error that names the file, not an answer.
func TestDamagedFile(t *testing.T) {
	s := fresh(t)
	hold(t, s, "a", `{}`)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 4096; i < len(content); i++ {
		content[i] = 0xa5
	}
	if err := os.WriteFile(s.path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), s.path, nil)
	var e *modernc.Error
	if err == nil || !strings.HasPrefix(err.Error(), s.path+" is damaged") || !errors.As(err, &e) {
		t.Errorf("got %v", err)
	}
}

// The file and its log are for their owner alone.
func TestFileMode(t *testing.T) {
	s := fresh(t)
	hold(t, s, "a", `{}`)
	for _, name := range []string{s.path, s.path + "-wal", s.path + "-shm"} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, error %v, want 0600", name, info.Mode(), err)
		}
	}
}

func TestClosed(t *testing.T) {
	s := fresh(t)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Keys(t.Context(), 0, "", 1); err != driver.ErrClosed {
		t.Errorf("got %v, want %v", err, driver.ErrClosed)
	}
}

// A file that is removed or replaced under a store ends the store: those who
// open the new one would hold the same locks.
func TestFileReplaced(t *testing.T) {
	for _, change := range []func(path, other string) error{
		func(path, _ string) error { return os.Remove(path) },
		func(path, other string) error { return os.Rename(other, path) },
	} {
		s, other := fresh(t), fresh(t)
		version := hold(t, s, "a", `{}`)
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		if err := change(s.path, other.path); err != nil {
			t.Fatal(err)
		}
		want := s.path + " was removed or replaced while in use: open the store anew"
		_, err := s.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh)
		if err == nil || err.Error() != want {
			t.Errorf("load: got %v, want %s", err, want)
		}
		_, err = s.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "a"}, Old: version}})
		if err == nil || err.Error() != want {
			t.Errorf("swap: got %v, want %s", err, want)
		}
		_, err = s.Keys(t.Context(), driver.Names, "", 10)
		if err == nil || err.Error() != want {
			t.Errorf("keys: got %v, want %s", err, want)
		}
	}
}

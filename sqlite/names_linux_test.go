package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/mounts"
)

func init() {
	roles["try"] = func(ctx context.Context, s *Store) error { return ask(ctx, s, 0) }
}

// ask asks for "a" and says what became of it.
func ask(ctx context.Context, s *Store, wait time.Duration) error {
	c, err := holdfast.New(s, &holdfast.Options{TTL: childTTL, RuntimeDir: os.DevNull})
	if err != nil {
		return err
	}
	defer c.Close()
	switch l, err := c.Acquire(ctx, "a", holdfast.MaxWait(wait)); {
	case errors.Is(err, holdfast.ErrHeld):
		fmt.Println("it is held")
	case err != nil:
		return err
	default:
		fmt.Printf("it was given away again, with token %d\n", l.Token())
	}
	return nil
}

// A file that is reached by two names has two logs, and each who comes by one
// does not see what the other writes: so by a second name it is refused. Where
// SQLite finds the one log all see the holder.
func TestSecondName(t *testing.T) {
	link := "has 2 names (hard links)"
	mounted := "is mounted as a single file"
	for _, test := range []struct {
		name string
		make func(t *testing.T, path, dir string) (second string)
		want string
	}{
		{"hard link", func(t *testing.T, path, dir string) string {
			shell(t, "ln %s %s/second.db", path, dir)
			return dir + "/second.db"
		}, link},
		{"first name of a hard link", func(t *testing.T, path, dir string) string {
			shell(t, "ln %s %s/second.db", path, dir)
			return path
		}, link},
		{"symbolic link to a hard link", func(t *testing.T, path, dir string) string {
			shell(t, "ln %s %s/second.db; ln -s second.db %s/third.db", path, dir, dir)
			return dir + "/third.db"
		}, link},
		{"bind mount of the file", func(t *testing.T, path, dir string) string {
			mounts.Private(t)
			shell(t, ": >%s/second.db", dir)
			mounts.Mount(t, "--bind", path, dir+"/second.db")
			return dir + "/second.db"
		}, mounted},
		{"bind mount of the file that a symbolic link leads to", func(t *testing.T, path, dir string) string {
			mounts.Private(t)
			shell(t, ": >'%s/second db'; ln -s 'second db' %s/third.db", dir, dir)
			mounts.Mount(t, "--bind", path, dir+"/second db")
			return dir + "/third.db"
		}, mounted},
		{"symbolic link", func(t *testing.T, path, dir string) string {
			shell(t, "ln -s %s %s/second.db", path, dir)
			return dir + "/second.db"
		}, "it is held"},
		{"symbolic link of the directory", func(t *testing.T, path, dir string) string {
			shell(t, "ln -s %s %s/second", filepath.Dir(path), dir)
			return dir + "/second/locks.db"
		}, "it is held"},
		{"bind mount of the directory", func(t *testing.T, path, dir string) string {
			mounts.Private(t)
			shell(t, "mkdir %s/second", dir)
			mounts.Mount(t, "--bind", filepath.Dir(path), dir+"/second")
			return dir + "/second/locks.db"
		}, "it is held"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &Store{path: filepath.Join(t.TempDir(), "locks.db")}
			if err := Migrate(t.Context(), s.path); err != nil { // which leaves no log
				t.Fatal(err)
			}
			p, _, _ := held(t, s, "hold")
			defer p.Process.Kill()
			second := test.make(t, s.path, t.TempDir())
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE=try", "HOLDFAST_TEST_FILE="+second)
			out, _ := c.CombinedOutput()
			if !strings.Contains(string(out), test.want) {
				t.Errorf("got %s, want %s", out, test.want)
			}
		})
	}
}

// A second name that the file is given while it is open, and a place where others
// may have another file, are told.
func TestDiagnosePlace(t *testing.T) {
	s := fresh(t)
	shell(t, "ln %s %s2", s.path, s.path)
	wantFinding(t, s, "name", driver.Failure)

	mounts.Private(t)
	memory, upper, merged := t.TempDir(), t.TempDir(), t.TempDir()
	mounts.Mount(t, "-t", "tmpfs", "none", memory)
	wantFinding(t, open(t, memory+"/locks.db", &Options{Create: true}), "file system", driver.Warning)
	shell(t, "mkdir %s/upper %s/work", upper, upper)
	mounts.Mount(t, "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", memory, upper, upper), merged)
	wantFinding(t, open(t, merged+"/others.db", &Options{Create: true}), "file system", driver.Warning)
}

func shell(t *testing.T, format string, args ...any) {
	t.Helper()
	script := fmt.Sprintf(format, args...)
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// A client that holds a lock in a file that is moved away, and in whose place another
// process has made a new one, loses it within its TTL, and learns why.
func TestFileMovedAway(t *testing.T) {
	s := fresh(t)
	c, err := holdfast.New(s, &holdfast.Options{TTL: childTTL, RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	shell(t, "mv %s %s.old", s.path, s.path)
	if err := Migrate(t.Context(), s.path); err != nil {
		t.Fatal(err)
	}
	held(t, s, "hold") // in the new file
	select {
	case <-l.Context().Done():
		if err := context.Cause(l.Context()); !errors.Is(err, holdfast.ErrLost) || !strings.Contains(err.Error(), "was removed or replaced while in use") {
			t.Errorf("lost with %v, which does not say why", err)
		}
		t.Logf("lost after %v", time.Since(began))
	case <-time.After(childTTL):
		t.Error("after a TTL both hold the lock")
	}
}

// When the log of a file that is in use is removed, by hand or by a process that seems to be the
// last to close it, those who come later begin another. A holder does not go on beside them.
func TestLogRemoved(t *testing.T) {
	for _, test := range []struct {
		name   string
		role   string
		remove func(t *testing.T, path string)
	}{
		{"by hand", "hold", func(t *testing.T, path string) { shell(t, "rm %s-wal %s-shm", path, path) }},
		{"the log alone", "hold", func(t *testing.T, path string) { shell(t, "rm %s-wal", path) }},
		{"the index alone", "hold", func(t *testing.T, path string) { shell(t, "rm %s-shm", path) }},
		{"the holder reads its file", "hold carelessly", func(t *testing.T, path string) {
			if out, err := exec.Command("sqlite3", path, "select count(*) from holdfast_records").CombinedOutput(); err != nil {
				t.Skipf("NOT TESTED: sqlite3: %v: %s", err, out)
			}
			if _, err := os.Stat(path + "-wal"); err == nil {
				t.Skip("NOT TESTED: this version of sqlite3 leaves the log")
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &Store{path: filepath.Join(t.TempDir(), "locks.db")}
			if err := Migrate(t.Context(), s.path); err != nil {
				t.Fatal(err)
			}
			p, _, _ := held(t, s, test.role)
			ended := make(chan bool)
			go func() {
				p.Wait()
				close(ended)
			}()
			defer func() {
				p.Process.Kill()
				<-ended
			}()
			test.remove(t, s.path)
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE=wait", "HOLDFAST_TEST_FILE="+s.path)
			out, _ := c.CombinedOutput()
			if !strings.Contains(string(out), "it was given away again") {
				return // nobody else has it
			}
			select {
			case <-ended:
			case <-time.After(childTTL):
				t.Errorf("two hold the lock: %s", out)
			}
		})
	}
}

func init() {
	roles["hold carelessly"] = func(ctx context.Context, s *Store) error {
		if _, err := s.Load(ctx, []driver.Key{{Name: "a"}}, driver.Fresh); err != nil {
			return err
		}
		if _, err := os.ReadFile(s.path); err != nil { // which ends the locks of this process
			return err
		}
		return keep(ctx, s, false)
	}
	roles["wait"] = func(ctx context.Context, s *Store) error { return ask(ctx, s, 2*childTTL) }
}

// A store whose log was removed does no harm to those who have come since, also
// when it is closed.
func TestCloseBesideAnotherLog(t *testing.T) {
	for _, call := range []string{"", "load"} {
		s := fresh(t)
		hold(t, s, "b", "1")
		if err := s.names.Use(t.Context(), checkpoint); err != nil {
			t.Fatal(err)
		}
		shell(t, "rm %s-wal %s-shm", s.path, s.path)
		p, _, _ := held(t, s, "hold")
		p.Process.Kill() // what it has written is in the new log
		p.Wait()
		if call != "" {
			if _, err := s.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh); err == nil {
				t.Error("the log that was removed is still read")
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE=try", "HOLDFAST_TEST_FILE="+s.path)
		if out, _ := c.CombinedOutput(); !strings.Contains(string(out), "it is held") {
			t.Errorf("after %q: what was written since is gone: %s", call, out)
		}
	}
}

// checkpoint copies the log into the file.
func checkpoint(c *conn) error { return c.script(`pragma wal_checkpoint(truncate)`) }

// A write that was under way when the log was removed is not told as done.
func TestWriteIntoRemovedLog(t *testing.T) {
	s := fresh(t)
	db := application(t, s)
	tx, err := db.Begin() // immediate
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	done := make(chan error, 1)
	go func() {
		_, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "a"}, Old: driver.IfEmpty, Value: []byte("1")}})
		done <- err
	}()
	for s.names.Lent() == 0 { // until it has the connection
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // and has begun to wait, most likely: it fails either way
	shell(t, "rm %s-wal %s-shm", s.path, s.path)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "was removed or replaced while in use") {
		t.Errorf("got %v, want that the log was removed", err)
	}
}

// A store is not opened on a log that only this program still has.
func TestLogOfTheProgram(t *testing.T) {
	s := fresh(t)
	application(t, s)
	if err := errors.Join(s.names.Use(t.Context(), checkpoint), s.Close()); err != nil {
		t.Fatal(err)
	}
	shell(t, "rm %s-wal %s-shm", s.path, s.path)
	other := &Store{path: s.path}
	held(t, other, "hold")
	if s, err := Open(t.Context(), s.path, nil); err == nil || !strings.Contains(err.Error(), "close all of them") {
		t.Errorf("got %v, want that a connection of this program has another log", err)
		if err == nil {
			s.Close()
		}
	}
}

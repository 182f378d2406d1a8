package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/holdfast-lock/holdfast/driver"
	"golang.org/x/sys/unix"
)

// as runs f as a user with some groups, the user's own first, on a thread that is
// given up afterwards.
func as(user uintptr, groups []uint32, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // what follows is of this thread alone
		_, _, err := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0)
		if err == 0 {
			_, _, err = unix.RawSyscall(unix.SYS_SETRESGID, uintptr(groups[0]), uintptr(groups[0]), uintptr(groups[0]))
		}
		if err == 0 {
			_, _, err = unix.RawSyscall(unix.SYS_SETRESUID, user, user, user)
		}
		if err != 0 {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// use writes a key and empties it.
func use(t *testing.T, dir string, name string) error {
	s, err := open(dir)
	if err == nil {
		defer s.Close()
		err = s.verify()
	}
	k := driver.Key{Name: name}
	for _, value := range []string{"1", "2", ""} {
		var f *found
		if err == nil {
			f, err = s.look(t.Context(), k)
		}
		if err != nil {
			return err
		}
		w := driver.Write{Key: k, Old: f.version, Value: []byte(value)}
		if f.empty() {
			w.Old = driver.IfEmpty
		}
		f.close()
		// As CompareAndSwap, but on this thread.
		o, err := s.swap(t.Context(), w, func() func(int64) time.Duration { return func(int64) time.Duration { return -1 } })
		if err == nil && !o.Won {
			err = fmt.Errorf("%q was not written over version %d", value, w.Old)
		}
		if err != nil {
			return err
		}
	}
	if _, err = s.keys(t.Context(), driver.Names, "", 10); err == nil {
		_, err = s.sweep(t.Context(), time.Hour)
	}
	return err
}

// Those who may write in a directory can use what others have made there: the members
// of its group, whichever group is their first, and its owner after root.
func TestUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED, users of one directory: only root can be several")
	}
	const one, two, group = 60001, 60002, 60010
	type user struct {
		id     uintptr
		groups []uint32
	}
	first, second, root := user{one, []uint32{one, group}}, user{two, []uint32{two, group}}, user{0, []uint32{0}}
	for _, c := range []struct {
		what  string
		owner int
		mode  fs.FileMode
		users []user
	}{
		{"a group's", 0, 0o770, []user{first, second, root, first}},
		{"a group's, setgid", 0, 0o770 | fs.ModeSetgid, []user{first, second, root, first}},
		{"a member's", one, 0o770, []user{root, second, first}},
		{"a user's", one, 0o700, []user{first, root, first}},
		{"a user's, by root", one, 0o700, []user{root, first}},
		{"a user's, for its group to read", one, 0o750, []user{{one, []uint32{one}}, root, {one, []uint32{one}}}},
	} {
		t.Run(c.what, func(t *testing.T) {
			top, err := os.MkdirTemp("", "users") // t.TempDir is for its owner only
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(top) })
			dir := filepath.Join(top, "locks")
			for _, err := range []error{os.Chmod(top, 0o755), os.Mkdir(dir, 0o700), os.Chown(dir, c.owner, group), os.Chmod(dir, c.mode)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			for i, u := range c.users {
				err := as(u.id, u.groups, func() error {
					if i == 0 {
						if err := Migrate(dir); err != nil {
							return err
						}
					}
					// Each goes on with what the one before has made, and makes more.
					for _, name := range []string{fmt.Sprint("of ", i-1), fmt.Sprint("of ", i), "all"} {
						if err := use(t, dir, name); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatalf("user %d, of the groups %v, after %d others: %v", u.id, u.groups, i, err)
				}
			}
		})
	}
}

// A process of the group wakes a waiter of the group, whatever the waiter's umask.
func TestWakeModes(t *testing.T) {
	s := fresh(t)
	if err := os.Chmod(s.path, 0o770); err != nil {
		t.Fatal(err)
	}
	s.mode = 0o770
	f, err := s.newWake(all)
	if err != nil {
		t.Fatal(err)
	}
	defer f.file.Close()
	info, err := f.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o660 {
		t.Errorf("notifications for a waiter are written to a file of mode %o, want 660", got)
	}
}

// A user who may read a directory, and not write there, sees what is held; one who may not even read it
// is refused.
func TestReadOnlyUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED, a user who may only read: only root can be another")
	}
	top, err := os.MkdirTemp("", "looker") // t.TempDir is for its owner only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	const owner, group, stranger = 60001, 60010, 60002
	dir := filepath.Join(top, "locks")
	for _, err := range []error{os.Chmod(top, 0o755), os.Mkdir(dir, 0o700), os.Chown(dir, owner, group), os.Chmod(dir, 0o750)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(s *Store, name, value string, old int64) (int64, error) {
		o, err := s.swap(t.Context(), driver.Write{Key: driver.Key{Name: name}, Old: old, Value: []byte(value)}, func() func(int64) time.Duration { return s.ages() })
		if err == nil && !o.Won {
			err = fmt.Errorf("%q was not written", value)
		}
		return o.Record.Version, err
	}
	err = as(owner, []uint32{owner, group}, func() error {
		if err := Migrate(dir); err != nil {
			return err
		}
		s, err := New(dir)
		if err != nil {
			return err
		}
		defer s.Close()
		version, err := write(s, "a", "1", driver.IfEmpty)
		if err != nil {
			return err
		}
		_, err = write(s, "a", "2", version)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	look := func(allow ...string) error {
		s, err := New(dir, allow...)
		if err != nil {
			return err
		}
		defer s.Close()
		names, err := s.keys(t.Context(), driver.Names, "", 10)
		if err != nil || len(names) != 1 || names[0] != "a" {
			return fmt.Errorf("names are %q, error %v", names, err)
		}
		for name, want := range map[string]string{"a": "2", "b": ""} {
			f, err := s.look(t.Context(), driver.Key{Name: name})
			if err != nil {
				return err
			}
			r := f.record(s.ages())
			f.close()
			if string(r.Value) != want || want != "" && r.Age < 0 {
				return fmt.Errorf("%s is %+v, want %s and its age", name, r, want)
			}
		}
		findings, err := s.diagnose(t.Context())
		if err != nil {
			return err
		}
		for _, f := range findings {
			if f.Level == driver.Failure {
				return fmt.Errorf("doctor says %+v", f)
			}
		}
		return nil
	}
	if err := as(stranger, []uint32{stranger, group}, func() error { return look(ReadOnly) }); err != nil {
		t.Errorf("a user who may read: %v", err)
	}
	if err := as(stranger, []uint32{stranger, group}, func() error { return look() }); err == nil {
		t.Error("a user who may read passes for one who may write")
	}
	if err := as(stranger, []uint32{stranger}, func() error { return look(ReadOnly) }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a user who may not read: %v", err)
	}
}

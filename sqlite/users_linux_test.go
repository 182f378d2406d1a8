package sqlite

import (
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A file that belongs to a group, in a directory that hands its group on, is shared by the
// members, as docs/stores/sqlite.md has it: what one makes the others use, and they wake each
// other, whoever comes first.
func TestUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED, users of one file: only root can be several")
	}
	top, err := os.MkdirTemp("", "users") // t.TempDir is for its owner only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	dir := filepath.Join(top, "locks")
	path := filepath.Join(dir, "locks.db")
	for _, err := range []error{os.Chmod(top, 0o755), os.Mkdir(dir, 0o700), os.Chown(dir, 60001, sharedGroup), os.Chmod(dir, 0o770|fs.ModeSetgid),
		Migrate(t.Context(), path), os.Chown(path, 60001, sharedGroup), os.Chmod(path, 0o660)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	os.RemoveAll(path + "-wake")
	t.Setenv("HOLDFAST_TEST_UID", "60001")
	_, told := process(t, "watch", path)
	lines := make(chan string, 10000)
	go func() {
		for told.Scan() {
			lines <- told.Text()
		}
	}()
	if got := <-lines; got != `0 ""` {
		t.Fatalf("the watcher of one user says %s first", got)
	}
	versions := make(map[string]string)
	var counts []func() error
	for _, uid := range []string{"60001", "60002"} {
		t.Setenv("HOLDFAST_TEST_UID", uid)
		p, out := process(t, "count", path)
		counts = append(counts, func() error {
			for out.Scan() {
				if by, twice := versions[out.Text()]; twice {
					t.Errorf("users %s and %s both won version %s", by, uid, out.Text())
				}
				versions[out.Text()] = uid
			}
			return p.Wait()
		})
	}
	for i, count := range counts {
		if err := count(); err != nil {
			t.Fatalf("user %d: %v", i+1, err)
		}
	}
	if len(versions) != 2*increments {
		t.Errorf("%d versions, want %d", len(versions), 2*increments)
	}
	t.Setenv("HOLDFAST_TEST_UID", "60002")
	process(t, "tell", path)
	for {
		select {
		case got := <-lines:
			if got == `0 "told"` {
				return
			}
		case <-time.After(20 * time.Second):
			t.Fatal("one user does not wake the other")
		}
	}
}

// A file that the URL of a store names is made by the first lock, with mode 0600, by whoever of
// many is first; its directory is not, nor is anything made by who looks, nor in a file of others.
func TestKindMakesFile(t *testing.T) {
	dir := t.TempDir()
	open := func(path string, readOnly bool) error {
		at := Kind.At(filepath.Join(dir, path))
		at.ReadOnly = readOnly
		_, close, err := Kind.Open(t.Context(), at)
		if err != nil {
			return err
		}
		return close()
	}
	var missing *driver.SchemaError
	if err := open("locks.db", true); !errors.As(err, &missing) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("to look at a file that is not there: %v", err)
	}
	if err := open("none/locks.db", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	if names, _ := os.ReadDir(dir); len(names) > 0 {
		t.Errorf("there is %v, want nothing", names)
	}
	errs := make(chan error, 8)
	for range 8 {
		go func() { errs <- open("locks.db", false) }()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "locks.db"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, error %v; want mode 600", info, err)
	}
	others := filepath.Join(dir, "others.db")
	db, err := sql.Open("sqlite", "file:"+others)
	if err == nil {
		_, err = db.Exec(`create table orders (id int)`)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := open("others.db", false); !errors.As(err, &missing) {
		t.Errorf("a file of others: %v, want that it has no schema", err)
	}
	var tables, mode string
	err = errors.Join(db.QueryRow(`select group_concat(name) from sqlite_master`).Scan(&tables), db.QueryRow(`pragma journal_mode`).Scan(&mode))
	if err != nil || tables != "orders" || mode != "delete" {
		t.Errorf("in a file of others there is %s, in mode %s, error %v", tables, mode, err)
	}
}

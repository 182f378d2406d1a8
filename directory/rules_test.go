package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

var key = driver.Key{Space: driver.Names, Name: "orders/42"}

func put(t *testing.T, s *Store, old int64, value string) driver.Record {
	t.Helper()
	outs, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: old, Value: []byte(value)}})
	if err != nil || !outs[0].Won {
		t.Fatalf("write %q: %v %v", value, outs, err)
	}
	return outs[0].Record
}

func load(t *testing.T, s *Store) driver.Record {
	t.Helper()
	recs, err := s.Load(t.Context(), []driver.Key{key}, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	return recs[0]
}

// at looks at the key as it is.
func at(t *testing.T, s *Store) *found {
	t.Helper()
	f, err := s.lookAt(t.Context(), keyDir(key))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	return f
}

func (s *Store) file(name string) string { return filepath.Join(s.path, filepath.FromSlash(name)) }

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %q, and does not say %q", err, part)
		}
	}
}

// A directory that nobody has prepared may be a mount point without its mount.
func TestNotPrepared(t *testing.T) {
	dir := t.TempDir()
	_, err := New(dir)
	wantError(t, err, dir, "not prepared", "mount it", "holdfast schema apply")
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("New has made %v", entries)
	}
	_, err = New(filepath.Join(dir, "none"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a directory that is not there: %v", err)
	}
	if err := Migrate(dir); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(dir); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, about), []byte(`{"holdfast_directory":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = New(dir)
	wantError(t, err, "version 2, newer than this program (1)")
	wantError(t, Migrate(dir), "version 2")
}

func TestChangedByEveryone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("permissions are not bits here")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	wantError(t, Migrate(dir), "can be changed by everyone", "chmod o-w "+dir)
}

// What others do not find any more is not the store.
func TestReplaced(t *testing.T) {
	s := fresh(t)
	put(t, s, driver.IfEmpty, "1")
	if err := os.Rename(s.path, s.path+".old"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Load(t.Context(), []driver.Key{key}, driver.Fresh)
	wantError(t, err, s.path, "was removed, replaced or mounted over")
	if err := os.Mkdir(s.path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(s.path); err != nil {
		t.Fatal(err)
	}
	_, err = s.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: driver.IfEmpty, Value: []byte("2")}})
	wantError(t, err, s.path, "open the store anew")
}

// A version that its writer did not live to report is made to last by who reads
// it: what it follows cannot be read any more, by anybody.
func TestReaderSettles(t *testing.T) {
	s := fresh(t)
	first := put(t, s, driver.IfEmpty, "1")
	old := at(t, s)
	kept, err := os.ReadFile(s.file(old.recordOf(old.nonce)))
	if err != nil {
		t.Fatal(err)
	}
	second := put(t, s, first.Version, "2")
	if err := os.WriteFile(s.file(old.recordOf(old.nonce)), kept, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := load(t, s); got.Version != second.Version || string(got.Value) != "2" {
		t.Errorf("read version %d with %q", got.Version, got.Value)
	}
	if s.exists(old.recordOf(old.nonce)) {
		t.Error("the record before the one that was read is still there")
	}
}

// An old listing leads to a record that is gone, and is made again.
func TestOldListing(t *testing.T) {
	s := fresh(t)
	first := put(t, s, driver.IfEmpty, "1")
	f := at(t, s)
	if err := os.Remove(s.file(f.recordOf(f.nonce))); err != nil { // as a writer does before it reports
		t.Fatal(err)
	}
	if _, err := s.lookOnce(f.at); !errors.Is(err, errMoved) {
		t.Errorf("a version without its record: %v, want %v", err, errMoved)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.CompareAndSwap(ctx, []driver.Write{{Key: key, Old: first.Version}}); err == nil {
		t.Error("it was followed")
	}
}

// A write that comes late, to a version that was followed, or to a key that was
// swept and made again, finds nothing to rename.
func TestLateRename(t *testing.T) {
	s := fresh(t)
	first := put(t, s, driver.IfEmpty, "1")
	stale := at(t, s)
	empty := put(t, s, first.Version, "")
	if next, err := s.follow(t.Context(), stale, driver.Write{Key: key, Old: first.Version, Value: []byte("late")}); next != nil || err != nil {
		t.Errorf("a late write: %v %v, want none", next, err)
	}
	if n, err := s.Sweep(t.Context(), 0); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
	if got := load(t, s); got.Version != 0 {
		t.Errorf("a swept key has version %d", got.Version)
	}
	again := put(t, s, driver.IfEmpty, "2")
	if again.Version <= empty.Version {
		t.Errorf("version %d after %d was swept", again.Version, empty.Version)
	}
	if next, err := s.follow(t.Context(), stale, driver.Write{Key: key, Old: first.Version, Value: []byte("late")}); next != nil || err != nil {
		t.Errorf("a late write to a key that was made again: %v %v, want none", next, err)
	}
	if got := load(t, s); string(got.Value) != "2" {
		t.Errorf("the key holds %q", got.Value)
	}
}

// A write that lost to a sweep is known to have lost, also where the floor is above
// its version and other hosts may change the files.
func TestLostToSweep(t *testing.T) {
	s := fresh(t)
	s.local = false
	first := put(t, s, driver.IfEmpty, "1")
	stale := at(t, s)
	put(t, s, first.Version, "")
	f := at(t, s)
	ahead := f.marker
	ahead.version += time.Hour.Microseconds()
	if err := f.dir.Rename(f.marker.String(), ahead.String()); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Sweep(t.Context(), 0); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
	for _, now := range []string{"gone", "made again"} {
		if next, err := s.follow(t.Context(), stale, driver.Write{Key: key, Old: first.Version, Value: []byte("late")}); next != nil || err != nil {
			t.Errorf("a late write to a key that is %s: %v %v, want none", now, next, err)
		}
		if now == "gone" {
			put(t, s, driver.IfEmpty, "2")
		}
	}
}

// The floor is above what was swept, whatever the clock says.
func TestFloor(t *testing.T) {
	s := fresh(t)
	now := put(t, s, driver.IfEmpty, "1").Version
	f := at(t, s)
	far := now + time.Hour.Microseconds() // the clock has gone back since
	m := f.marker
	m.version = far
	if err := os.Rename(s.file(f.at+"/"+f.marker.String()), s.file(f.at+"/"+m.String())); err != nil {
		t.Fatal(err)
	}
	far = put(t, s, far, "").Version
	if n, err := s.Sweep(t.Context(), 0); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
	if got := put(t, s, driver.IfEmpty, "2").Version; got <= far {
		t.Errorf("version %d after %d was swept", got, far)
	}
}

// A sweep that has come halfway is ended by who comes next.
func TestHalfSwept(t *testing.T) {
	s := fresh(t)
	first := put(t, s, driver.IfEmpty, "1")
	put(t, s, first.Version, "")
	f := at(t, s)
	if err := f.dir.Rename(f.marker.String(), f.swept()); err != nil {
		t.Fatal(err)
	}
	if got := load(t, s); got.Version != 0 {
		t.Errorf("a key that is being swept has version %d", got.Version)
	}
	if s.exists(f.recordOf(f.nonce)) || s.exists(f.at) {
		t.Error("something of it is left")
	}
	if err := s.root.Mkdir(f.at, 0o700); err != nil { // halfway in another place
		t.Fatal(err)
	}
	put(t, s, driver.IfEmpty, "2")
}

// A damaged record is not taken for another.
func TestDamaged(t *testing.T) {
	for _, c := range []struct {
		what   string
		damage func(path string, text []byte) error
	}{
		{"cut short", func(p string, text []byte) error { return os.WriteFile(p, text[:len(text)-1], 0o600) }},
		{"emptied", func(p string, _ []byte) error { return os.Truncate(p, 0) }},
		{"a bit", func(p string, text []byte) error { text[len(text)-1] ^= 1; return os.WriteFile(p, text, 0o600) }},
		{"zeros", func(p string, text []byte) error { return os.WriteFile(p, make([]byte, len(text)), 0o600) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := fresh(t)
			put(t, s, driver.IfEmpty, "a value")
			f := at(t, s)
			path := s.file(f.recordOf(f.nonce))
			text, err := os.ReadFile(path)
			if err == nil {
				err = c.damage(path, text)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Load(t.Context(), []driver.Key{key}, driver.Fresh)
			wantError(t, err, "orders/42", "is damaged", f.recordOf(f.nonce))
			other := driver.Write{Key: driver.Key{Name: "other"}, Old: driver.IfEmpty, Value: []byte("1")}
			if _, err := s.CompareAndSwap(t.Context(), []driver.Write{other}); err != nil {
				t.Fatal(err)
			}
			if names, err := s.Keys(t.Context(), driver.Names, "", 10); err != nil || !slices.Equal(names, []string{"other"}) {
				t.Errorf("beside it are %q, error %v", names, err)
			}
			findings, err := s.Diagnose(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(findings, func(found driver.Finding) bool {
				return found.Level == driver.Failure && strings.Contains(found.Text, f.recordOf(f.nonce))
			}) {
				t.Errorf("doctor says nothing of it: %v", findings)
			}
		})
	}
}

// That a key is free needs no record after a power cut.
func TestFreeWithoutRecord(t *testing.T) {
	s := fresh(t)
	free := put(t, s, put(t, s, driver.IfEmpty, "1").Version, "")
	f := at(t, s)
	if err := os.Truncate(s.file(f.recordOf(f.nonce)), 0); err != nil {
		t.Fatal(err)
	}
	if got := load(t, s); got.Version != free.Version || len(got.Value) > 0 {
		t.Errorf("read version %d with %q, want %d with nothing", got.Version, got.Value, free.Version)
	}
	if got := put(t, s, driver.IfEmpty, "2"); got.Version <= free.Version {
		t.Errorf("version %d after %d", got.Version, free.Version)
	}
	// As its writer would have left it if it had died before it reported.
	if err := os.WriteFile(s.file(f.recordOf(f.nonce)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	load(t, s)
	if s.exists(f.recordOf(f.nonce)) {
		t.Error("the version after it was read, and not made to last")
	}
}

// A person reads what is there.
func TestReadable(t *testing.T) {
	s := fresh(t)
	put(t, s, driver.IfEmpty, `{"holders":[]}`)
	f := at(t, s)
	text, err := os.ReadFile(s.file(f.recordOf(f.nonce)))
	if err != nil {
		t.Fatal(err)
	}
	line, value, _ := strings.Cut(string(text), "\n")
	if !strings.Contains(line, `"name":"orders/42"`) || value != `{"holders":[]}` {
		t.Errorf("a record reads\n%s", text)
	}
}

// Two hosts of a directory of a group can both write, whatever their umask.
func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("permissions are not bits here")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(dir); err != nil {
		t.Fatal(err)
	}
	s, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put(t, s, driver.IfEmpty, "1")
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		info, e2 := e.Info()
		if err = errors.Join(err, e2); err != nil {
			return err
		}
		want := fs.FileMode(0o660)
		if e.IsDir() {
			want = 0o770
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The ages of records do not follow the wall clock of who asks: a file with a
// time ahead has none.
func TestAgeOfTheFuture(t *testing.T) {
	s := fresh(t)
	put(t, s, driver.IfEmpty, "1")
	if got := load(t, s).Age; got < 0 || got > time.Minute {
		t.Errorf("a record of now is %v old", got)
	}
	f := at(t, s)
	for _, c := range []struct{ by, low, high time.Duration }{
		{time.Hour, -1, -1},
		{-time.Hour, time.Hour - 20*time.Millisecond, time.Hour + time.Minute}, // the clock that gives files their times ticks seldom
	} {
		to := time.Now().Add(c.by)
		if err := os.Chtimes(s.file(f.recordOf(f.nonce)), to, to); err != nil {
			t.Fatal(err)
		}
		if got := load(t, s).Age; got < c.low || got > c.high {
			t.Errorf("written %v from now: %v old", c.by, got)
		}
	}
}

// Where each host's clock may give files their times they tell no ages.
func TestFileTimes(t *testing.T) {
	s := fresh(t)
	put(t, s, driver.IfEmpty, "1")
	s.timed = false
	if got := load(t, s).Age; got >= 0 {
		t.Errorf("a record is %v old by times that may be anybody's", got)
	}
	_, err := New(s.path, "fire")
	wantError(t, err, `"fire"`, FileTimes)
	again, err := New(s.path, FileTimes)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if !again.timed {
		t.Error("they were accepted, and are not used")
	}
}

// What is no file of ours keeps nobody waiting.
func TestPlanted(t *testing.T) {
	s := fresh(t)
	put(t, s, driver.IfEmpty, "1")
	f := at(t, s)
	path := s.file(f.recordOf(f.nonce))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	plant(t, path)
	_, err := s.Load(t.Context(), []driver.Key{key}, driver.Fresh)
	wantError(t, err, "is not a file of ours")
	if names, err := s.Keys(t.Context(), driver.Names, "", 10); err != nil || len(names) > 0 {
		t.Errorf("beside it are %q, error %v", names, err)
	}
}

// A call that hangs, as on a mount whose server is gone, is left alone when its
// context ends, and heartbeats go on.
func TestHanging(t *testing.T) {
	s := fresh(t)
	hang := make(chan struct{})
	var stuck sync.WaitGroup
	for range cap(s.calls) {
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan struct{})
		stuck.Go(func() {
			if _, err := do(ctx, s, s.calls, func() (int, error) { close(begun); <-hang; return 0, nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("a call that hangs ended with %v", err)
			}
		})
		<-begun
		cancel()
	}
	stuck.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Load(ctx, []driver.Key{key}, driver.Fresh); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one more ended with %v", err)
	}
	if _, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Space: driver.Sessions, Name: "a"}, Old: driver.IfEmpty, Value: []byte("1")}}); err != nil {
		t.Errorf("a heartbeat: %v", err)
	}
	close(hang)
}

// A call that is left alone, and comes to its end all the same, shares nothing
// with its caller: the race detector sees it if it does.
func TestLeftAlone(t *testing.T) {
	s := fresh(t)
	put(t, s, driver.IfEmpty, "1")
	ended := make(chan struct{})
	close(ended)
	for name, call := range map[string]func(ctx context.Context) error{
		"load": func(ctx context.Context) error { _, err := s.Load(ctx, []driver.Key{key}, driver.Fresh); return err },
		"compare and swap": func(ctx context.Context) error {
			_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: key, Old: driver.IfEmpty, Value: []byte("1")}})
			return err
		},
		"keys":     func(ctx context.Context) error { _, err := s.Keys(ctx, driver.Names, "", 10); return err },
		"sweep":    func(ctx context.Context) error { _, err := s.Sweep(ctx, time.Hour); return err },
		"diagnose": func(ctx context.Context) error { _, err := s.Diagnose(ctx); return err },
	} {
		left := 0
		for range 50 {
			if err := call(&nearlyDone{Context: t.Context(), ended: ended}); errors.Is(err, context.Canceled) {
				left++
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if left == 0 {
			t.Errorf("%s was never left alone", name)
		}
	}
	for range cap(s.calls) { // they have all ended
		s.calls <- struct{}{}
	}
}

// A nearlyDone context ends when it is waited for the second time: when a call has
// its place in the lane, and is under way.
type nearlyDone struct {
	context.Context
	ended chan struct{}
	waits atomic.Int32
}

func (c *nearlyDone) Done() <-chan struct{} {
	if c.waits.Add(1) < 2 {
		return nil
	}
	return c.ended
}

func (c *nearlyDone) Err() error {
	if c.waits.Load() < 2 {
		return nil
	}
	return context.Canceled
}

// What nobody finished is swept when no call can still want it.
func TestLeftovers(t *testing.T) {
	s := fresh(t)
	first := put(t, s, driver.IfEmpty, "1")
	f := at(t, s)
	place := func(name string, h header, old bool) string {
		t.Helper()
		h.setName(h.Name + key.Name)
		text, err := encodeRecord(h, []byte("x"))
		if err == nil {
			err = os.WriteFile(s.file(name), text, 0o600)
		}
		if err == nil && old {
			to := time.Now().Add(-2 * leftover)
			err = os.Chtimes(s.file(name), to, to)
		}
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	lost := place("names/record-LOST", header{Follows: first.Version - 1}, true)
	coming := place("names/record-COMING", header{Follows: first.Version, Previous: f.nonce}, true)
	young := place("names/record-YOUNG", header{Follows: first.Version - 1}, false)
	dirt := place(scratch+"/dirt", header{}, true)
	peeked := place("names/"+look+"X", header{}, false)
	born := place("names/record-BORN", header{}, true)
	if err := s.root.Mkdir(scratch+"/BORN", 0o700); err != nil { // by who is at it
		t.Fatal(err)
	}
	stillborn := place("names/record-STILLBORN", header{}, true)
	old := time.Now().Add(-2 * leftover)
	if err := os.Chtimes(s.file(f.recordOf(f.nonce)), old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sweep(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{lost: false, coming: true, young: true, dirt: false, peeked: false, born: true, stillborn: false, f.recordOf(f.nonce): true} {
		if s.exists(name) != want {
			t.Errorf("%s is there: %v, want %v", name, !want, want)
		}
	}
}

func FuzzMarker(f *testing.F) {
	for _, name := range []string{"version-1-A", "version-1795226403001234-ABC-free", "version--1-A", "version-01-A", "swept-1-A", "version-1-", "version-9223372036854775808-A"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if m, ok := parseMarker(name); ok && m.String() != name {
			t.Errorf("%q was taken for %q", name, m)
		}
	})
}

func FuzzRecord(f *testing.F) {
	text, _ := encodeRecord(header{Name: "a"}, []byte("value"))
	f.Add(text)
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, value, err := decodeRecord(text)
		if err == nil && (h.Size != len(value) || h.Sum != checksum(value)) {
			t.Errorf("%q was taken for a record", text)
		}
	})
}

func FuzzNotifications(f *testing.F) {
	f.Add(append(message(driver.Notification{Key: key, To: "x"}), "0 \"half"...))
	f.Fuzz(func(t *testing.T, text []byte) {
		notifications, rest := split(text)
		for _, h := range notifications {
			if h != (driver.Notification{}) && h.Key.Check() != nil {
				t.Errorf("%q has the notification %v", text, h)
			}
		}
		if strings.Contains(string(rest), "\n") {
			t.Errorf("a line is left: %q", rest)
		}
	})
}

// A weary context is done after so many looks at it.
type weary struct {
	context.Context
	looks atomic.Int64
}

func (c *weary) Err() error {
	if c.looks.Add(-1) < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// A sweep that is not given the time for all has done a part, and those that
// follow come to the end. Nothing is left then of keys that hold nothing.
func TestSweepInParts(t *testing.T) {
	s := fresh(t)
	const n = 400
	var writes []driver.Write
	for i := range n {
		writes = append(writes, driver.Write{Key: driver.Key{Space: driver.Sessions, Name: fmt.Sprint(i)}, Old: driver.IfEmpty, Value: []byte("1")})
	}
	for range 2 {
		outs, err := s.CompareAndSwap(t.Context(), writes)
		if err != nil {
			t.Fatal(err)
		}
		for i := range writes {
			writes[i].Old, writes[i].Value = outs[i].Record.Version, nil
		}
	}
	removed := 0
	for sweeps := 1; removed < n; sweeps++ {
		ctx := &weary{Context: t.Context()}
		ctx.looks.Store(200)
		n, err := s.Sweep(ctx, 0)
		if removed += n; n == 0 || sweeps > 20 {
			t.Fatalf("after %d sweeps %d keys are removed, of late %d, error %v", sweeps, removed, n, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var left []string
	err := filepath.WalkDir(s.path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, path)
		}
		return err
	})
	if err != nil || len(left) != 3 { // what it is, and the floor with its record
		t.Errorf("left are %q, error %v", left, err)
	}
}

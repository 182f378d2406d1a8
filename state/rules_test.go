//go:build linux || darwin

package state

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/memory"
	"golang.org/x/sys/unix"
)

// The tests of this file are named for the holes of the protocol as it was first
// described, K1 to K11. Each fails when the rule that closes the hole is taken
// out.

var errFault = errors.New("fault")

// openWith opens a state that calls step before each step.
func openWith(t testing.TB, path string, lease time.Duration, step func(what string) error) *State {
	t.Helper()
	s := openDir(t, path, &DirOptions{Lease: lease})
	s.keeper.(*dir).step = step
	return s
}

// failing fails a step from now on, until it is told "".
func failing() (step func(string) error, fail func(what string)) {
	var mu sync.Mutex
	var now string
	step = func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		if what == now {
			return fmt.Errorf("%s: %w", what, errFault)
		}
		return nil
	}
	return step, func(what string) {
		mu.Lock()
		defer mu.Unlock()
		now = what
	}
}

// plant puts a file of an age into a state's directory.
func plant(t testing.TB, path, name, text string, age time.Duration) string {
	t.Helper()
	name = filepath.Join(path, "state", name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if age != 0 {
		at := time.Now().Add(-age)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// inTime fails the test if fn hangs.
func inTime(t testing.TB, what string, fn func()) {
	t.Helper()
	done := make(chan bool)
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s hangs", what)
	}
}

// K1: a writer that readers took for dead has been told before, and changes the
// key once more at its end.
func TestK1(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	path := t.TempDir()
	step, fail := failing()
	s := openWith(t, path, lease, step)
	reader := openDir(t, path, nil)
	keyOf(t, reader)
	began := time.Now()
	w := begin(t, s)
	if w.TTL() != lease || time.Until(w.Deadline()) > lease-holdfast.Margin(lease) {
		t.Errorf("a lease of %v ends in %v", w.TTL(), time.Until(w.Deadline()))
	}
	fail("renew") // as when the file server does not answer
	hide(t, path)
	ended := make(chan time.Time, 1)
	context.AfterFunc(w.Context(), func() { ended <- time.Now() })
	buried := eventually(t, reader)
	at := time.Now()
	select {
	case end := <-ended:
		if end.After(at) {
			t.Errorf("the writer learns that its lease has ended %v after the reader", end.Sub(at))
		}
		if took := end.Sub(began); took > lease {
			t.Errorf("the writer believed for %v in a lease of %v", took, lease)
		}
	case <-time.After(5 * time.Second):
		t.Error("the writer does not learn that its lease has ended")
	}
	if cause := context.Cause(w.Context()); !isLost(cause) || !errors.Is(cause, errFault) {
		t.Errorf("its context's cause is %v, want ErrLost and why", cause)
	}
	fail("")
	for range 2 {
		if err := w.End(t.Context()); !isLost(err) {
			t.Errorf("End: %v, want ErrLost", err)
		}
	}
	if k := keyOf(t, reader); k.Equal(buried) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// K1: whoever asks is told of a lease's end though no timer has run yet.
func TestK1Clock(t *testing.T) {
	w := begin(t, openDir(t, t.TempDir(), nil))
	f := w.lease.(*dirWriter)
	f.mu.Lock()
	f.window = core.Window{} // as if the process had been stopped until now
	f.window.ExtendTo(now()-1, now())
	f.mu.Unlock()
	if w.Context().Err() == nil || !isLost(context.Cause(w.Context())) {
		t.Errorf("the lease has ended, and its context's cause is %v", context.Cause(w.Context()))
	}
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
}

// K1: a renewal that is answered after the lease has ended does not bring it
// back.
func TestK1Late(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	s := openWith(t, t.TempDir(), holdfast.MinTTL, func(what string) error {
		if what == "renew" {
			<-hold
		}
		return nil
	})
	w := begin(t, s)
	select {
	case <-w.Context().Done():
	case <-time.After(20 * time.Second):
		t.Error("while a renewal hangs the lease does not end")
	}
	close(hold)
	for deadline := time.Now().Add(holdfast.MinTTL); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if time.Until(w.Deadline()) > 0 {
			t.Fatalf("a lost lease lasts until %v", w.Deadline())
		}
	}
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
}

// K1: a renewed lease outlives its length, and each renewal causes a Heartbeat.
func TestK1Renewed(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	beats := make(chan time.Time, 100)
	s := openDir(t, path, &DirOptions{Lease: 3 * time.Second, Trace: &holdfast.Trace{Heartbeat: func(_ context.Context, e holdfast.Event) {
		if e.Err != nil {
			t.Errorf("renewal: %v", e.Err)
		}
		beats <- e.Until
	}}})
	w := begin(t, s)
	hide(t, path)
	last := w.Deadline()
	for range 4 {
		until := <-beats
		if !until.After(last) {
			t.Errorf("a renewal moves the end of the lease from %v to %v", last, until)
		}
		last = until
		if k := anyKey(t, openDir(t, path, nil)); !k.Writing {
			t.Fatalf("while it writes the key is %+v", k)
		}
	}
	if err := w.End(t.Context()); err != nil {
		t.Error(err)
	}
}

// K1: the function of a Write is told that the lease is lost, and so is who
// called it.
func TestK1Write(t *testing.T) {
	t.Parallel()
	step, fail := failing()
	s := openWith(t, t.TempDir(), holdfast.MinTTL, step)
	fail("renew")
	err := s.Write(t.Context(), func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			t.Error("the context of Write's function does not end")
		}
		if cause := context.Cause(ctx); !isLost(cause) {
			t.Errorf("its cause is %v, want ErrLost", cause)
		}
		return nil
	})
	if !isLost(err) {
		t.Errorf("Write: %v, want ErrLost", err)
	}
}

// K1: a lease counts from before its renewal was sent, not from the answer.
func TestK1Window(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	sent := make(chan time.Time, 100)
	s := openDir(t, t.TempDir(), nil)
	d := s.keeper.(*dir)
	until := make(chan time.Time, 100)
	d.Lease, d.Trace = lease, &holdfast.Trace{Heartbeat: func(_ context.Context, e holdfast.Event) { until <- e.Until }}
	d.step = func(what string) error {
		if what == "renew" {
			sent <- time.Now()
			time.Sleep(300 * time.Millisecond)
		}
		return nil
	}
	w := begin(t, s)
	if end, most := <-until, (<-sent).Add(lease-holdfast.Margin(lease)); end.After(most) {
		t.Errorf("the lease ends %v late", end.Sub(most))
	}
	if err := w.End(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lease to write causes Acquired, and then Released or Lost.
func TestTraceOfFiles(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	told := make(chan string, 10)
	note := func(what string) func(context.Context, holdfast.Event) {
		return func(_ context.Context, e holdfast.Event) {
			if e.Name != path {
				t.Errorf("%s: the name is %q, want %q", what, e.Name, path)
			}
			told <- what + " " + e.Reason
		}
	}
	s := openDir(t, path, &DirOptions{Trace: &holdfast.Trace{Acquired: note("acquired"), Released: note("released"), Lost: note("lost")}})
	w := begin(t, s)
	w.End(t.Context())
	w.End(t.Context())
	w = begin(t, s)
	if err := os.Remove(entries(t, path)[0]); err != nil {
		t.Fatal(err)
	}
	w.End(t.Context())
	close(told)
	var all []string
	for what := range told {
		all = append(all, what)
	}
	if want := []string{"acquired ", "released ", "acquired ", "lost its entry was removed"}; !slices.Equal(all, want) {
		t.Errorf("told %q, want %q", all, want)
	}
}

// K1: a writer whose entry was removed, or whose directory was replaced, learns
// of it with its next renewal, and if there is none at its end.
func TestK1Removed(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(path string) error{
		"entry": func(path string) error { return os.Remove(entries(t, path)[0]) },
		"directory": func(path string) error {
			if err := os.Rename(path+"/state", path+"/old"); err != nil {
				return err
			}
			return os.MkdirAll(path+"/state/pending", 0o755)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			s := openWith(t, path, holdfast.MinTTL, nil)
			w := begin(t, s)
			if err := remove(path); err != nil {
				t.Fatal(err)
			}
			select {
			case <-w.Context().Done():
			case <-time.After(20 * time.Second):
				t.Fatal("the writer's context does not end")
			}
			if cause := context.Cause(w.Context()); !isLost(cause) || !strings.Contains(cause.Error(), "removed") {
				t.Errorf("its context's cause is %v, want ErrLost and why", cause)
			}
			if err := w.End(t.Context()); !isLost(err) {
				t.Errorf("End: %v, want ErrLost", err)
			}
		})
	}
	path := t.TempDir()
	s := openDir(t, path, nil) // renewed each 10 s
	w := begin(t, s)
	if err := os.Remove(entries(t, path)[0]); err != nil {
		t.Fatal(err)
	}
	before := keyOf(t, s)
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
	if k := keyOf(t, s); k.Equal(before) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// K1: in a store, too, a writer that was taken for dead changes the key once
// more at its end.
func TestK1On(t *testing.T) {
	t.Parallel()
	store := &silent{Store: memory.New()}
	s := On(newClient(t, store), "refs")
	reader := On(newClient(t, store.Store), "refs")
	keyOf(t, reader)
	w := begin(t, s)
	store.set(true)
	buried := eventually(t, reader)
	if cause := context.Cause(w.Context()); !isLost(cause) {
		t.Errorf("when readers took it for dead the cause of the writer's context was %v", cause)
	}
	store.set(false)
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
	if k := keyOf(t, reader); k.Equal(buried) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// A silent store does not answer for a time.
type silent struct {
	driver.Store
	mu  sync.Mutex
	now bool
}

func (s *silent) set(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
}

func (s *silent) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	if now {
		return nil, errFault
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

// K2: whoever asks for the key before and after reading notices every write in
// between, whether it has ended, goes on or died.
func TestK2(t *testing.T) {
	kinds(t, func(t *testing.T, open func() *State) {
		s, other := open(), open()
		same := func(before Key) bool {
			after := anyKey(t, s)
			return !before.Writing && !after.Writing && after.Equal(before)
		}
		before := keyOf(t, s)
		if !same(before) {
			t.Error("a key changed without a write")
		}
		w := begin(t, other)
		if same(before) {
			t.Error("a write that goes on is not noticed")
		}
		if err := w.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		if same(before) {
			t.Error("a write that has ended is not noticed")
		}
	})
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	p := startRole(t, "write", path)
	p.line()
	p.kill()
	if k := eventually(t, s); k.Equal(before) {
		t.Error("a write that died is not noticed")
	}
}

// K2: a reader that finds no directory of writers makes it, so that none that is
// there is overlooked.
func TestK2Pending(t *testing.T) {
	path := t.TempDir()
	keyOf(t, openDir(t, path, nil))
	if _, err := os.Stat(filepath.Join(path, "state/pending")); err != nil {
		t.Error(err)
	}
}

// K3: what is not a whole key is never used: while someone writes there is no
// key, and else it is replaced.
func TestK3(t *testing.T) {
	for _, text := range []string{
		"", "\n", "short", strings.Repeat("\x00", 26), "QK3ZW7VJ\x00\x00\x00\x00", strings.Repeat("k", 129), strings.Repeat("k", 5000),
		"two words", "two\nlines\n", "seven77\n", "key12345\n\n", "key12345\r\n", " key12345", "ключключ", "key'12345", "\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8",
	} {
		path := t.TempDir()
		s := openDir(t, path, nil)
		plant(t, path, "key", text, 0)
		entry := plant(t, path, "pending/x", "", 0)
		if k := anyKey(t, s); k.ID != "" || !k.Writing {
			t.Errorf("%.40q is the key %+v while someone writes", text, k)
		}
		os.Remove(entry)
		k := keyOf(t, s)
		if id, ok := parseKey([]byte(k.ID)); !ok || id != k.ID || strings.HasPrefix(text, id) {
			t.Errorf("%.40q is the key %+v", text, k)
		}
	}
	for _, text := range []string{
		"yMjAwMFowZjE", "yMjAwMFowZjE\n", "0123456789abcdef", "3f2b8c1e-5a4d-4c3b-9e8f-7a6b5c4d3e2f", "ab+/cd==", "a_b-c.d=", strings.Repeat("k", 128), "12345678",
	} {
		path := t.TempDir()
		plant(t, path, "key", text, 0)
		if k := keyOf(t, openDir(t, path, nil)); k.ID != strings.TrimSuffix(text, "\n") {
			t.Errorf("%q is the key %+v", text, k)
		}
	}
}

// K3: whoever reads the key while it changes, however often, reads a whole one.
func TestK3Whole(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	keyOf(t, s)
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		for {
			text, err := os.ReadFile(filepath.Join(path, "state/key"))
			if _, ok := parseKey(text); !ok || err != nil {
				t.Errorf("the key is %q, error %v", text, err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 200 {
		if err := s.Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-done
}

// K4: readers are told of a writer from its first moment, of whatever program it
// is, and of a dead one for its own lease, not for the hour.
func TestK4(t *testing.T) {
	for _, test := range []struct {
		text    string
		age     time.Duration
		writing bool
	}{
		{"", 0, true},
		{"", time.Minute, true},
		{"", 59 * time.Minute, true},
		{"", 61 * time.Minute, false},
		{"my own text", 59 * time.Minute, true},
		{`{"lease_ms":30000}`, 20 * time.Second, true},
		{`{"lease_ms":30000}`, 40 * time.Second, false},
		{`{"lease_ms":7200000}`, 119 * time.Minute, true},
		{`{"lease_ms":7200000}`, 121 * time.Minute, false},
		{`{"lease_ms":0}`, 59 * time.Minute, true},
		{`{"lease_ms":-5}`, 59 * time.Minute, true},
		{`{"lease_ms":9223372036854775807}`, 61 * time.Minute, false},
		{`{"lease_ms":30000}` + strings.Repeat(" ", 5000), 59 * time.Minute, true},
		{`{"lease_ms":30000,"proof":"1:2"}`, 20 * time.Second, true},
		{`{"lease_ms":30000,"proof":"1:2"}`, 40 * time.Second, false},
	} {
		path := t.TempDir()
		s := openDir(t, path, nil)
		before := keyOf(t, s)
		plant(t, path, "pending/x", test.text, test.age)
		k := anyKey(t, s)
		if k.Writing != test.writing || k.Equal(before) != test.writing || len(entries(t, path)) == 1 != test.writing {
			t.Errorf("%.40q, %v old: the key is %+v, and was %+v; entries: %q", test.text, test.age, k, before, entries(t, path))
		}
	}
}

// K4: an entry that could not be read once is read again.
func TestK4Unread(t *testing.T) {
	path := t.TempDir()
	step, fail := failing()
	s := openWith(t, path, holdfast.MinTTL, step)
	before := keyOf(t, s)
	plant(t, path, "pending/x", `{"lease_ms":30000}`, time.Minute)
	fail("read entry")
	if k := anyKey(t, s); !k.Writing {
		t.Errorf("with an entry that cannot be read the key is %+v", k)
	}
	fail("")
	if k := anyKey(t, s); k.Writing || k.Equal(before) {
		t.Errorf("later the key is %+v, and was %+v", k, before)
	}
}

// K5: an entry's age is by the clock of the file server, whatever this host's
// own says, and by none if that clock steps or the entry is from the future.
func TestK5(t *testing.T) {
	t.Parallel()
	// A server whose clock is that far from ours.
	server := func(t *testing.T, path string, off *time.Duration) *State {
		s := openWith(t, path, holdfast.MinTTL, func(what string) error {
			if what == "probe" {
				probes, _ := filepath.Glob(filepath.Join(path, "state", temporary+"*"))
				for _, name := range probes {
					at := time.Now().Add(*off)
					if err := os.Chtimes(name, at, at); err != nil {
						t.Error(err)
					}
				}
			}
			return nil
		})
		return s
	}
	for _, off := range []time.Duration{-2 * time.Hour, 2 * time.Hour} {
		path := t.TempDir()
		s := server(t, path, &off)
		before := keyOf(t, s)
		name := plant(t, path, "pending/young", "", 10*time.Minute-off)
		if k := anyKey(t, s); !k.Writing {
			t.Errorf("on a server whose clock is %v ahead an entry of ten minutes is taken for dead", off)
		}
		os.Remove(name)
		plant(t, path, "pending/old", "", 90*time.Minute-off)
		if k := anyKey(t, s); k.Writing || k.Equal(before) {
			t.Errorf("on a server whose clock is %v ahead an entry of 90 minutes is taken for alive", off)
		}
	}

	// A step forward does not make the living look dead.
	path := t.TempDir()
	var off time.Duration
	s := server(t, path, &off)
	keyOf(t, s)
	name := plant(t, path, "pending/first", "", time.Minute)
	if k := anyKey(t, s); !k.Writing {
		t.Fatal("an entry of a minute is taken for dead")
	}
	off = 2 * time.Hour
	os.Remove(name)
	plant(t, path, "pending/second", "", time.Minute)
	if k := anyKey(t, s); !k.Writing {
		t.Error("after a step of the server's clock an entry of a minute is taken for dead")
	}

	// An entry from the future counts from when it was seen first.
	path = t.TempDir()
	s = openDir(t, path, &DirOptions{Limit: time.Second})
	before := keyOf(t, s)
	name = plant(t, path, "pending/x", "", -24*time.Hour)
	if k := anyKey(t, s); !k.Writing {
		t.Error("an entry from the future is taken for dead")
	}
	if info, err := os.Stat(name); err != nil || time.Until(info.ModTime()) > time.Minute {
		t.Errorf("it stays in the future for those who come later: %v, %v", info.ModTime(), err)
	}
	if k := eventually(t, s); k.Equal(before) {
		t.Errorf("after it the key is still %+v", k)
	}
}

// K5: an entry that is renewed while a reader looks is alive.
func TestK5Renewed(t *testing.T) {
	path := t.TempDir()
	name := ""
	s := openWith(t, path, holdfast.MinTTL, func(what string) error {
		if now := time.Now(); what == "probe" {
			return os.Chtimes(name, now, now)
		}
		return nil
	})
	before := keyOf(t, s)
	name = plant(t, path, "pending/x", "", 2*time.Hour)
	if k := anyKey(t, s); !k.Writing || !k.Equal(before) {
		t.Errorf("the key is %+v, and was %+v", k, before)
	}
}

// K5: where the server's time cannot be asked for, an entry that stands still
// for its limit before the eyes of one reader is dead, and one that is renewed
// is not.
func TestK5StandsStill(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	s := openWith(t, path, holdfast.MinTTL, func(what string) error {
		if what == "probe" {
			return errFault
		}
		return nil
	})
	before := keyOf(t, s)
	name := plant(t, path, "pending/x", `{"lease_ms":2000}`, 2*time.Hour)
	for i := range 25 {
		if k := anyKey(t, s); !k.Writing {
			t.Fatal("an entry that is renewed is taken for dead")
		}
		at := time.Now().Add(-2 * time.Hour).Add(time.Duration(i) * time.Second)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	anyKey(t, s)
	still := time.Now()
	if k := eventually(t, s); k.Equal(before) {
		t.Errorf("after it the key is still %+v", k)
	}
	if took := time.Since(still); took < 1500*time.Millisecond {
		t.Errorf("it was taken for dead after %v", took)
	}
}

// K6: whatever keeps End from changing the key leaves the entry, so that readers
// do it; a second End may succeed.
func TestK6(t *testing.T) {
	for _, what := range []string{"write key", "sync file", "rename key", "sync key"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			step, fail := failing()
			s := openWith(t, path, 3*time.Second, step)
			reader := openDir(t, path, nil)
			before := keyOf(t, reader)
			w, w2 := begin(t, s), begin(t, s)
			hide(t, path)
			fail(what)
			if err := w.End(t.Context()); !errors.Is(err, errFault) || isLost(err) {
				t.Errorf("%s fails: End: %v, want that error", what, err)
			}
			if n := len(entries(t, path)); n != 2 {
				t.Errorf("%s fails: %d entries, want both", what, n)
			}
			if k := anyKey(t, reader); !k.Writing {
				t.Errorf("%s fails: the key is %+v, want that someone writes", what, k)
			}
			if _, err := s.Key(t.Context()); err != nil {
				t.Errorf("%s fails: %v, though there is a key", what, err)
			}
			fail("")
			if err := w.End(t.Context()); err != nil {
				t.Errorf("a second End: %v", err)
			}
			if k := anyKey(t, reader); k.Equal(before) || len(entries(t, path)) != 1 {
				t.Errorf("after a second End the key is %+v, and was %+v; entries: %q", k, before, entries(t, path))
			}
			fail(what)
			w2.End(t.Context()) // and nobody repeats that
			fail("")
			before = anyKey(t, reader)
			if k := eventually(t, reader); k.Equal(before) {
				t.Errorf("%s fails: later the key is still %+v", what, k)
			}
		})
	}
}

// K6: a reader that cannot change the key for a dead writer says so, and leaves
// the entry.
func TestK6Reader(t *testing.T) {
	for _, what := range []string{"write key", "sync file", "rename key", "sync key"} {
		path := t.TempDir()
		step, fail := failing()
		s := openWith(t, path, holdfast.MinTTL, step)
		before := keyOf(t, s)
		plant(t, path, "pending/x", "", 2*time.Hour)
		fail(what)
		if k, err := s.Key(t.Context()); !errors.Is(err, errFault) {
			t.Errorf("%s fails: key %+v, error %v; want that error", what, k, err)
		}
		if len(entries(t, path)) != 1 {
			t.Errorf("%s fails: the entry is gone", what)
		}
		fail("")
		if k := keyOf(t, s); k.Equal(before) {
			t.Errorf("%s fails: later the key is still %+v", what, k)
		}
	}
}

// K6: a write is refused if its entry cannot be made, or not be put on disk, and
// nothing is left of it.
func TestK6Begin(t *testing.T) {
	for _, what := range []string{"write entry", "sync file", "rename entry", "sync entry"} {
		path := t.TempDir()
		step, fail := failing()
		s := openWith(t, path, holdfast.MinTTL, step)
		before := keyOf(t, s)
		fail(what)
		err := s.Write(t.Context(), func(context.Context) error { t.Errorf("%s fails: the write was begun", what); return nil })
		if !errors.Is(err, errFault) {
			t.Errorf("%s fails: Write: %v, want that error", what, err)
		}
		fail("")
		if k := keyOf(t, s); !k.Equal(before) {
			t.Errorf("%s fails: the key has changed", what)
		}
		if left, _ := os.ReadDir(filepath.Join(path, "state")); len(left) > 2 {
			t.Errorf("%s fails: %v is left", what, left)
		}
	}
	s := openDir(t, filepath.Join(t.TempDir(), "missing"), nil)
	if _, err := s.Begin(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Begin in a directory that is not there: %v", err)
	}
	if k, err := s.Key(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there has the key %+v, error %v", k, err)
	}
}

// K7: the new key is on disk before the entry goes, and the entry is before the
// write begins.
func TestK7(t *testing.T) {
	path := t.TempDir()
	var steps []string
	key := func() string { text, _ := os.ReadFile(filepath.Join(path, "state/key")); return string(text) }
	before := ""
	s := openWith(t, path, holdfast.MinTTL, func(what string) error {
		steps = append(steps, what)
		if what == "remove entry" && key() == before {
			t.Errorf("the entry goes before the key has changed")
		}
		return nil
	})
	expect := func(when, want string) {
		t.Helper()
		if got := strings.Join(steps, ", "); got != want {
			t.Errorf("%s: steps %s; want %s", when, got, want)
		}
		steps = nil
	}
	anyKey(t, s)
	steps = nil
	before = key()
	w := begin(t, s)
	expect("Begin", "write entry, sync file, rename entry, sync entry")
	if err := w.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("End", "write key, sync file, rename key, sync key, remove entry")
	before = key()
	plant(t, path, "pending/x", "", 2*time.Hour)
	anyKey(t, s)
	expect("Key after a death", "probe, read entry, write key, sync file, rename key, sync key, remove entry")
}

// K8: Clear changes the key and removes the dead; writers at work stay, whatever
// program they are.
func TestK8(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	w := begin(t, s)
	alive := plant(t, path, "pending/alive", "", 50*time.Minute)
	dead := plant(t, path, "pending/dead", "", 70*time.Minute)
	torn := plant(t, path, temporary+"torn", "", 70*time.Minute)
	fresh := plant(t, path, temporary+"fresh", "", 0)
	if err := s.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{alive: true, dead: false, torn: false, fresh: true} {
		if _, err := os.Stat(name); err == nil != want {
			t.Errorf("after Clear %s is there: %v", filepath.Base(name), err == nil)
		}
	}
	k := anyKey(t, s)
	if !k.Writing || k.ID == before.ID {
		t.Errorf("after Clear the key is %+v, and was %+v", k, before)
	}
	if err := w.End(t.Context()); err != nil {
		t.Errorf("a writer at work: %v", err)
	}
	os.Remove(alive)
	before = keyOf(t, s)
	if err := s.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k := keyOf(t, s); k.ID == before.ID {
		t.Errorf("after Clear the key is still %+v", k)
	}
}

// K9: a key that comes back with a backup is another, though it reads the same.
func TestK9(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	name := filepath.Join(path, "state/key")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	backup, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for _, restore := range []func() error{
		func() error { return os.WriteFile(name, backup, 0o644) },
		func() error { os.Remove(name); return os.WriteFile(name, backup, 0o644) },
		func() error { // where it was, as a program does that writes in place
			before = keyOf(t, s)
			time.Sleep(20 * time.Millisecond) // times of files may have that grain
			return errors.Join(os.WriteFile(name, []byte("another-key"), 0o644), os.WriteFile(name, backup, 0o644))
		},
	} {
		if err := restore(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		k := keyOf(t, s)
		if k.ID != before.ID {
			t.Fatalf("the restored key is %+v, want %q", k, before.ID)
		}
		if k.Equal(before) {
			t.Error("a key from a backup passes for the one that it was")
		}
		if !k.Equal(keyOf(t, openDir(t, path, nil))) {
			t.Error("two readers have different keys")
		}
	}
}

// K10: all who find no key get the same.
func TestK10(t *testing.T) {
	for range 30 {
		path := t.TempDir()
		var all sync.WaitGroup
		keys := make([]Key, 8)
		for i := range keys {
			s := openDir(t, path, nil)
			all.Go(func() { keys[i], _ = s.Key(context.Background()) })
		}
		all.Wait()
		for i, k := range keys {
			if k.ID == "" || k.Writing || !k.Equal(keys[0]) {
				t.Fatalf("reader %d has %+v, and the first has %+v", i, k, keys[0])
			}
		}
	}
}

// K11: what was planted as an entry or a key is no lease and no key, leads
// nowhere, and holds nobody up.
func TestK11(t *testing.T) {
	const secret = "do-not-read-me"
	planted := map[string]func(name, outside string) error{
		"FIFO":          func(name, _ string) error { return unix.Mkfifo(name, 0o666) },
		"symlink":       func(name, outside string) error { return os.Symlink(outside, name) },
		"dangling link": func(name, outside string) error { return os.Symlink(outside+"-not", name) },
		"link to FIFO": func(name, outside string) error {
			if err := unix.Mkfifo(outside+"-fifo", 0o666); err != nil {
				return err
			}
			return os.Symlink(outside+"-fifo", name)
		},
		"directory": func(name, _ string) error { return os.MkdirAll(name+"/full", 0o755) },
		"socket": func(name, _ string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name})
			if err == nil {
				l.SetUnlinkOnClose(false)
				l.Close()
			}
			return err
		},
	}
	for what, plantIt := range planted {
		t.Run(what, func(t *testing.T) {
			path, err := os.MkdirTemp("", "k11") // short, for the socket
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(path)
			outside := filepath.Join(path, "secret")
			if err := os.WriteFile(outside, []byte(secret), 0o600); err != nil {
				t.Fatal(err)
			}
			untouched, _ := os.Stat(outside)
			s := openDir(t, path, &DirOptions{Limit: time.Second})
			before := keyOf(t, s)
			if err := os.MkdirAll(path+"/state/pending", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := plantIt(path+"/state/pending/x", outside); err != nil {
				t.Fatal(err)
			}
			inTime(t, "Key with a planted entry", func() {
				if k := anyKey(t, s); k.Writing || !k.Equal(before) {
					t.Errorf("with it as an entry the key is %+v, and was %+v", k, before)
				}
				if err := s.Write(t.Context(), func(context.Context) error { return nil }); err != nil {
					t.Errorf("with it as an entry: %v", err)
				}
				if err := s.Clear(t.Context()); err != nil {
					t.Errorf("with it as an entry: Clear: %v", err)
				}
			})
			os.RemoveAll(outside + "-fifo")
			os.Remove(path + "/state/key")
			if err := plantIt(path+"/state/key", outside); err != nil {
				t.Fatal(err)
			}
			inTime(t, "Key with a planted key", func() {
				k, err := s.Key(t.Context())
				if what == "directory" {
					if err == nil || !strings.Contains(err.Error(), "remove it") {
						t.Errorf("with it as the key: %+v, error %v; want one that says what to do", k, err)
					}
				} else if err != nil || k.Writing || k.ID == secret || k.Equal(before) {
					t.Errorf("with it as the key: %+v, error %v", k, err)
				}
			})
			after, err := os.Stat(outside)
			if text, _ := os.ReadFile(outside); err != nil || string(text) != secret || !after.ModTime().Equal(untouched.ModTime()) {
				t.Errorf("what was outside is %q now, error %v", text, err)
			}
		})
	}
	for _, name := range []string{"state", "state/pending"} {
		path, elsewhere := t.TempDir(), t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(path, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
		s := openDir(t, path, nil)
		if k, err := s.Key(t.Context()); err == nil {
			t.Errorf("with a symbolic link as %s the key is %+v", name, k)
		}
		if _, err := s.Begin(t.Context()); err == nil {
			t.Errorf("with a symbolic link as %s a write begins", name)
		}
		if in, _ := os.ReadDir(elsewhere); len(in) > 0 {
			t.Errorf("%s led elsewhere: %v", name, in)
		}
	}
}

// K11: a file that can be changed under a second name is no key, and as an entry
// it ages like any other.
func TestK11HardLink(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	outside := filepath.Join(path, "outside")
	if err := os.WriteFile(outside, []byte("not-the-key"), 0o644); err != nil {
		t.Fatal(err)
	}
	keyOf(t, s)
	os.Remove(path + "/state/key")
	if err := os.Link(outside, path+"/state/key"); err != nil {
		t.Fatal(err)
	}
	if k := keyOf(t, s); k.ID == "not-the-key" {
		t.Errorf("the key is %+v", k)
	}
	if err := os.MkdirAll(path+"/state/pending", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(outside, path+"/state/pending/x"); err != nil {
		t.Fatal(err)
	}
	if k := anyKey(t, s); !k.Writing {
		t.Errorf("with a young entry the key is %+v", k)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(outside, old, old); err != nil {
		t.Fatal(err)
	}
	keyOf(t, openDir(t, path, nil))
	if text, err := os.ReadFile(outside); err != nil || string(text) != "not-the-key" {
		t.Errorf("what was outside is %q now, error %v", text, err)
	}
}

// K11: a crowd of entries takes no more than so many to be looked at in one go:
// of the dead all go in the end, and of what is none of a writer's it is said.
func TestK11Crowd(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	for i := range 2*maxPending + 10 {
		plant(t, path, fmt.Sprintf("pending/x%d", i), "", 2*time.Hour)
	}
	if k := keyOf(t, s); k.Equal(before) || len(entries(t, path)) > 0 {
		t.Errorf("after a crowd of the dead the key is %+v, and was %+v; %d entries", k, before, len(entries(t, path)))
	}
	if n := len(s.keeper.(*dir).seen); n > maxPending {
		t.Errorf("%d entries are remembered", n)
	}
	for i := range 2 * maxPending {
		if err := os.Symlink("x", filepath.Join(path, "state/pending", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if k, err := s.Key(t.Context()); err == nil || !strings.Contains(err.Error(), "remove them") {
		t.Errorf("in a crowd of links the key is %+v, error %v; want one that says what to do", k, err)
	}
	if err := s.Clear(t.Context()); err == nil || !strings.Contains(err.Error(), "remove them") {
		t.Errorf("in a crowd of links: Clear: %v; want one that says what to do", err)
	}
}

// Names and texts of others never reach a message as they are.
func TestHostileNames(t *testing.T) {
	s := openDir(t, filepath.Join(t.TempDir(), "a\x1b[31m\n"), nil)
	_, err := s.Key(t.Context())
	_, begun := s.Begin(t.Context())
	for _, err := range []error{err, begun, s.Clear(t.Context())} {
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("the error is %v", err)
		}
	}
}

//go:build linux || darwin

package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
)

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

// K4: readers see a writer from its first moment, of whatever program it
// is, and of a dead one for its own lease, not for the hour.
func TestK4(t *testing.T) {
	const name = "QRSTUVWXYZ234567ABCDEFGHIJ-"
	for _, test := range []struct {
		name, text string
		age        time.Duration
		writing    bool
	}{
		{"x", "", 0, true},
		{"x", "", time.Minute, true},
		{"x", "", 59 * time.Minute, true},
		{"x", "", 61 * time.Minute, false},
		{"x", "my own text", 59 * time.Minute, true},
		{"x", `{"proof":"1:2"}`, 59 * time.Minute, true},
		{name + "30000", "{}", 20 * time.Second, true},
		{name + "30000", "{}", 40 * time.Second, false},
		{name + "7200000", "{}", 119 * time.Minute, true},
		{name + "7200000", "{}", 121 * time.Minute, false},
		{name + "0", "{}", 59 * time.Minute, true},
		{name + "-5", "{}", 59 * time.Minute, true},
		{name + "9223372036854775807", "{}", 61 * time.Minute, false},
		{name + "30000", `{"proof":"1:2"}`, 20 * time.Second, true},
		{name + "30000", `{"proof":"1:2"}`, 40 * time.Second, false},
		{name + "30000", "", 20 * time.Second, true}, // whose text was lost
		{name + "30000", "", 40 * time.Second, false},
		{name + "30000", strings.Repeat(" ", 5000), 20 * time.Second, true},
		{name + "30000", strings.Repeat(" ", 5000), 40 * time.Second, false},
	} {
		path := t.TempDir()
		s := openDir(t, path, nil)
		before := keyOf(t, s)
		plant(t, path, "pending/"+test.name, test.text, test.age)
		k := anyKey(t, s)
		if k.Writing != test.writing || k.Equal(before) != test.writing || len(entries(t, path)) == 1 != test.writing {
			t.Errorf("%s %.40q, %v old: the key is %+v, and was %+v; entries: %q", test.name, test.text, test.age, k, before, entries(t, path))
		}
	}
}

// K4: an entry that could not be read once is read again.
func TestK4Unread(t *testing.T) {
	path := t.TempDir()
	step, fail := failing()
	s := openWith(t, path, holdfast.MinTTL, step)
	before := keyOf(t, s)
	plant(t, path, "pending/"+nameOf(30*time.Second), "{}", time.Minute)
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
	name := plant(t, path, "pending/"+nameOf(2*time.Second), "{}", 2*time.Hour)
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

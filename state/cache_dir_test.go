//go:build linux || darwin

package state

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A blob that is not as it was written is never served, whatever has happened to
// it: it is filled again.
func TestCacheTorn(t *testing.T) {
	c := newCache(t, nil)
	text := strings.Repeat("0123456789abcdef", 20000) // longer than a buffer
	other := &State{newFake("another")}
	get(t, c, other, "refs", says(text))
	from, _ := files(t, c)
	for name, harm := range map[string]func(path string, whole []byte) error{
		"emptied":           func(p string, b []byte) error { return os.Truncate(p, 0) },
		"cut in its header": func(p string, b []byte) error { return os.Truncate(p, int64(headerLen-1)) },
		"cut to its header": func(p string, b []byte) error { return os.Truncate(p, int64(headerLen)) },
		"cut":               func(p string, b []byte) error { return os.Truncate(p, int64(len(b)/2)) },
		"one byte short":    func(p string, b []byte) error { return os.Truncate(p, int64(len(b)-1)) },
		"one byte long":     func(p string, b []byte) error { return os.WriteFile(p, append(b, 'x'), 0) },
		"zeros at its end":  func(p string, b []byte) error { clear(b[len(b)-4096:]); return os.WriteFile(p, b, 0) },
		"zeros in a block":  func(p string, b []byte) error { clear(b[4096:8192]); return os.WriteFile(p, b, 0) },
		"all zeros":         func(p string, b []byte) error { clear(b); return os.WriteFile(p, b, 0) },
		"a bit":             func(p string, b []byte) error { b[len(b)-7]++; return os.WriteFile(p, b, 0) },
		"a bit of its sum":  func(p string, b []byte) error { b[headerLen-2] ^= 1; return os.WriteFile(p, b, 0) },
		"another format":    func(p string, b []byte) error { b[len(format)-1]++; return os.WriteFile(p, b, 0) },
		"another blob":      func(p string, b []byte) error { return os.Rename(filepath.Join(c.dir, from[0]), p) },
		"a link to a blob":  func(p string, b []byte) error { os.Remove(p); return os.Symlink(from[0], p) },
		"a negative length": func(p string, b []byte) error {
			return os.WriteFile(p, fmt.Appendf(nil, format+" -%015x %08x\n", 1, 0), 0)
		},
		"cut while it is up": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := &State{newFake(name)}
			get(t, c, other, "refs", says(text))
			get(t, c, s, "refs", says(text))
			path := filepath.Join(c.dir, blobName(name, "refs", Key{ID: "one", stamp: "1"}))
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			get(t, c, s, "refs", not(t)) // it was looked at while it was whole
			if harm == nil {
				harm = func(p string, b []byte) error { return os.Truncate(p, 100) }
			}
			if err := harm(path, whole); err != nil {
				t.Fatal(err)
			}
			filled := false
			got := get(t, c, s, "refs", func(ctx context.Context, w io.Writer) error {
				filled = true
				return says("anew")(ctx, w)
			})
			if !filled || got != "anew" {
				t.Errorf("served %d bytes: %.60q", len(got), got)
			}
			if got := get(t, c, s, "refs", not(t)); got != "anew" {
				t.Errorf("then %.60q", got)
			}
		})
	}
}

// What has another type than a file is not waited for.
func TestCacheStrangeBlobs(t *testing.T) {
	for name, plant := range map[string]func(path string) error{
		"a pipe":             func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a directory":        func(p string) error { return os.Mkdir(p, 0o700) },
		"a link to nothing":  func(p string) error { return os.Symlink("nothing", p) },
		"a link to a file":   func(p string) error { return os.Symlink("/etc/passwd", p) },
		"a link to a device": func(p string) error { return os.Symlink("/dev/zero", p) },
	} {
		for _, suffix := range []string{"", lockSuffix} {
			c := newCache(t, nil)
			s := &State{newFake("repo")}
			if err := plant(filepath.Join(c.dir, blobName("repo", "refs", Key{ID: "one", stamp: "1"})+suffix)); err != nil {
				t.Fatal(err)
			}
			if got := get(t, c, s, "refs", says("filled")); got != "filled" {
				t.Errorf("%s%s: got %q", name, suffix, got)
			}
			get(t, c, s, "refs", says("filled"))
		}
		c := newCache(t, nil)
		if err := plant(filepath.Join(c.dir, countName)); err != nil {
			t.Fatal(err)
		}
		if got := get(t, c, &State{newFake("repo")}, "refs", says("filled")); got != "filled" {
			t.Errorf("%s as the count: got %q", name, got)
		}
	}
}

// Blobs are served for a time that is counted from when they were made.
func TestCacheTTL(t *testing.T) {
	for _, test := range []struct {
		age time.Duration
		hit bool
	}{{0, true}, {50 * time.Minute, true}, {61 * time.Minute, false}, {-30 * time.Minute, true}, {-61 * time.Minute, false}, {-1 << 62, false}} {
		c := newCache(t, nil)
		s := &State{newFake("repo")}
		get(t, c, s, "refs", says("old"))
		blobs, _ := files(t, c)
		at := time.Now().Add(-test.age)
		if err := os.Chtimes(filepath.Join(c.dir, blobs[0]), at, at); err != nil {
			t.Fatal(err)
		}
		want := "new"
		if test.hit {
			want = "old"
		}
		for range 2 {
			if got := get(t, c, s, "refs", says("new")); got != want {
				t.Errorf("after %v the %s one is served", test.age, got)
			}
		}
	}
	if _, err := OpenCache(t.TempDir(), &CacheOptions{TTL: -1}); err == nil {
		t.Error("a negative TTL is accepted")
	}
	if _, err := OpenCache(t.TempDir(), &CacheOptions{MaxBytes: -1}); err == nil {
		t.Error("a negative size is accepted")
	}
}

// All blobs together never take more than they may, also if each is filled by
// another process, and the oldest go first.
func TestCacheSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	opts := &CacheOptions{MaxBytes: 40 * block}
	made := time.Now().Add(-10 * time.Minute)
	for i := range 100 {
		c, err := OpenCache(dir, opts) // a new process, as far as the cache can tell
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint(i)
		get(t, c, &State{newFake(name)}, "refs", says(strings.Repeat("x", i%3*block)))
		made = made.Add(time.Second)
		os.Chtimes(filepath.Join(dir, blobName(name, "refs", Key{ID: "one", stamp: "1"})), made, made)
		blobs, _ := files(t, c)
		used, oldest := int64(0), made
		for _, b := range blobs {
			info, err := os.Stat(filepath.Join(dir, b))
			if err != nil {
				t.Fatal(err)
			}
			used += (info.Size() + 4095) / 4096 * 4096
			if info.ModTime().Before(oldest) {
				oldest = info.ModTime()
			}
		}
		if used > opts.MaxBytes {
			t.Errorf("after %d fills the blobs take %d bytes of %d", i+1, used, opts.MaxBytes)
		}
		if gone := i + 1 - len(blobs); !oldest.Equal(made.Add(-time.Duration(i-gone) * time.Second)) {
			t.Errorf("after %d fills %d are gone, and the oldest is from %v before the last", i+1, gone, made.Sub(oldest))
		}
		if i > 50 && used < opts.MaxBytes/2 {
			t.Errorf("after %d fills the blobs take only %d bytes of %d", i+1, used, opts.MaxBytes)
		}
		c.Close()
	}
	c, err := OpenCache(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before, _ := files(t, c)
	if got := get(t, c, &State{newFake("giant")}, "refs", says(strings.Repeat("x", 41*block))); len(got) != 41*block {
		t.Errorf("a blob larger than the cache: got %d bytes", len(got))
	}
	if after, other := files(t, c); !slices.Equal(after, before) || other != nil {
		t.Errorf("a blob larger than the cache replaces others, and leaves %q", other)
	}
}

// A fill looks at the other blobs only when there is no room, once in a TTL, and
// where the count is lost.
func TestCacheSweepsSeldom(t *testing.T) {
	c := newCache(t, &CacheOptions{MaxBytes: 10 * block})
	get(t, c, &State{newFake("first")}, "refs", says("x"))
	old := filepath.Join(c.dir, strings.Repeat("ab", 32))
	fill := 0
	fills := func() {
		fill++
		get(t, c, &State{newFake(fmt.Sprint(fill))}, "refs", says("x"))
	}
	there := func() bool { _, err := os.Lstat(old); return err == nil }
	plant := func() {
		if err := os.WriteFile(old, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour))
	}
	plant()
	for range 9 {
		if fills(); !there() {
			t.Fatalf("fill %d went through all blobs", fill)
		}
	}
	if fills(); there() {
		t.Errorf("there was no room, and what had expired is still there")
	}
	size := filepath.Join(c.dir, countName)
	for name, do := range map[string]func() error{
		"no count":         func() error { return os.Remove(size) },
		"an empty count":   func() error { return os.Truncate(size, 0) },
		"a torn count":     func() error { return os.Truncate(size, 7) },
		"a count of zeros": func() error { return os.WriteFile(size, make([]byte, countLen), 0) },
		"a negative count": func() error { return os.WriteFile(size, fmt.Appendf(nil, count, -5, time.Now().Unix()), 0) },
		"an old count":     func() error { return os.WriteFile(size, fmt.Appendf(nil, count, 0, time.Now().Unix()-3601), 0) },
		"a future count":   func() error { return os.WriteFile(size, fmt.Appendf(nil, count, 0, time.Now().Unix()+3700), 0) },
	} {
		plant()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if fills(); there() {
			t.Errorf("%s: not counted anew", name)
		}
		text, err := os.ReadFile(size)
		blobs, _ := files(t, c)
		if want := fmt.Sprintf("%019d ", len(blobs)*block); err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: then it is %q, want %q", name, text, want)
		}
	}
}

// What is not the cache's stays, even when everything of the cache goes, and so
// does what a living fill writes; what dead ones left goes.
func TestCacheForeignFiles(t *testing.T) {
	c := newCache(t, nil)
	id := strings.Repeat("cd", 32)
	temp := id + "." + strings.Repeat("a2", tempLen/2)
	stay := []string{"notes", id[:63], id + "0", strings.ToUpper(id), "X" + id[1:], id + ".", id + ".old", id + ".lock2", id + ".x.lock",
		temp + "0", strings.Replace(temp, "2", "1", 1), ".hidden", id + "~"}
	go1 := []string{strings.Repeat("ef", 32), temp, id + lockSuffix}
	for _, name := range slices.Concat(stay, go1) {
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	special := []string{strings.Repeat("01", 32), strings.Repeat("02", 32), strings.Repeat("03", 32) + "." + strings.Repeat("b", tempLen)}
	os.Mkdir(filepath.Join(c.dir, special[0]), 0o700)
	os.Symlink("notes", filepath.Join(c.dir, special[1]))
	os.Mkdir(filepath.Join(c.dir, special[2]), 0o700)
	living := strings.Repeat("04", 32) + "." + strings.Repeat("c", tempLen)
	file, err := os.Create(filepath.Join(c.dir, living))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := lock(file); err != nil {
		t.Fatal(err)
	}
	if left, err := c.sweep(c.directory(), 0); left != 0 || err != nil {
		t.Errorf("%d bytes are left, %v", left, err)
	}
	for _, name := range slices.Concat(stay, special, []string{living, tagName}) {
		if _, err := os.Lstat(filepath.Join(c.dir, name)); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range go1 {
		if _, err := os.Lstat(filepath.Join(c.dir, name)); !os.IsNotExist(err) {
			t.Errorf("%q is still there: %v", name, err)
		}
	}
}

// A directory that is somebody else's, or can be changed by others, is no cache.
func TestOpenCacheRefuses(t *testing.T) {
	top := t.TempDir()
	dir := func(name string, mode os.FileMode) string {
		path := filepath.Join(top, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mine := dir("mine", 0o755)
	link := filepath.Join(top, "link")
	os.Symlink(mine, link)
	used := dir("used", 0o700)
	os.WriteFile(filepath.Join(used, "thesis.tex"), []byte("x"), 0o600)
	backup := dir("backup", 0o700)
	os.WriteFile(filepath.Join(backup, tagName), []byte("Signature: 8a477f597d28d172789f06886806bc55\n# of borg\n"), 0o600)
	file := filepath.Join(top, "file")
	os.WriteFile(file, nil, 0o600)
	pipe := filepath.Join(top, "pipe")
	unix.Mkfifo(pipe, 0o600)
	for path, want := range map[string]string{
		"":                         "no directory",
		link:                       "symbolic link",
		link + "/":                 "symbolic link",
		file:                       "not a directory",
		pipe:                       "not a directory",
		dir("theirs", 0o777):       "chmod go-w",
		dir("sticky", 0o1777):      "chmod go-w",
		dir("group", 0o770):        "chmod go-w",
		used:                       `"thesis.tex"`,
		backup:                     tagName,
		filepath.Join(file, "sub"): "not a directory",
	} {
		c, err := OpenCache(path, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), fmt.Sprintf("cache %q: ", path)) {
			t.Errorf("%q: got %v, want an error with %q", path, err, want)
		}
		if c != nil {
			c.Close()
		}
	}
	if _, err := os.Lstat(filepath.Join(used, tagName)); err == nil {
		t.Error("a directory that was refused got a tag")
	}
	if os.Geteuid() == 0 {
		theirs := dir("nobody's", 0o700)
		if err := os.Chown(theirs, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCache(theirs, nil); err == nil || !strings.Contains(err.Error(), "user 65534") {
			t.Errorf("a directory of another user: %v", err)
		}
	}
	c, err := OpenCache(mine, nil)
	if err != nil {
		t.Fatalf("an empty directory of one's own: %v", err)
	}
	c.Close()
	deep := filepath.Join(top, "a", "b", "c")
	if c, err = OpenCache(deep, nil); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	get(t, c, &State{newFake("repo")}, "refs", says("x"))
	err = filepath.Walk(filepath.Join(top, "a"), func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// A process that died while it made the tag is no reason to refuse.
	os.Truncate(filepath.Join(deep, tagName), 10)
	again, err := OpenCache(deep, nil)
	if err != nil {
		t.Fatalf("with half a tag: %v", err)
	}
	again.Close()
}

// A cache whose directory was removed under it makes a new one.
func TestCacheRemoved(t *testing.T) {
	c := newCache(t, nil)
	s := &State{newFake("repo")}
	get(t, c, s, "refs", says("x"))
	if err := os.RemoveAll(c.dir); err != nil {
		t.Fatal(err)
	}
	get(t, c, s, "refs", says("y"))
	if got := get(t, c, s, "refs", not(t)); got != "y" {
		t.Errorf("got %q", got)
	}
}

//go:build linux

package process

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/busy"
)

// refused checks that the command was refused with a status and a message that
// names cause and way out, that nothing was run, and nothing said on the side.
func (w *world) refused(p *process, status int, says ...string) {
	w.t.Helper()
	p.wantStatus(status)
	text := p.stderr.String()
	for _, want := range says {
		if !regexp.MustCompile(want).MatchString(text) {
			w.t.Errorf("%q says %q, which does not match %q", p.Args[1:], text, want)
		}
	}
	if !strings.HasPrefix(text, "holdfast: ") || strings.Count(text, "\n") != 1 {
		w.t.Errorf("%q says %q, which is not one line of ours", p.Args[1:], text)
	}
	if strings.Contains(text, "goroutine ") || strings.Contains(text, "panic") {
		w.t.Errorf("%q shows its insides: %s", p.Args[1:], text)
	}
	for _, r := range text {
		if r < ' ' && r != '\n' || r == 0xFFFD {
			w.t.Errorf("%q prints what is not for terminals: %q", p.Args[1:], text)
			break
		}
	}
	if _, err := os.Stat(filepath.Join(w.dir, "ran")); err == nil {
		w.t.Errorf("%q was run", p.Args)
	}
}

// Bad words are refused before anything is touched.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.contents()
	run := func(args ...string) []string { return slicesOf("run", args, "--", "touch", "ran") }
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{run(""), 64, `name is empty`},
		{run(strings.Repeat("a", 1025)), 64, `1025 bytes, at most 1024`},
		{run(strings.Repeat("ä", 513)), 64, `1026 bytes, at most 1024`},
		{run("a\nb"), 64, `name "a\\(n|x0a)b" has a control character`},
		{run("\x1b[31m"), 64, `control character`},
		{run("a\u0085"), 64, `control character`},
		{run("\xff\xfe"), 64, `name is not UTF-8: "\\xff`},
		{run("good", "a\x7f"), 64, `control character`},
		{run("-w", "-1", "x"), 64, `-1`},
		{run("-w=-5s", "x"), 64, `-5s`},
		{run("--ttl", "-5", "x"), 64, `-5`},
		{run("--ttl", "0", "x"), 64, `below 1s`},
		{run("--ttl", "99999999999999999999h", "x"), 64, `ttl`},
		{run("--ttl", "1000000h", "x"), 64, `1000000h|above|at most`},
		{run("--ttl", "NaN", "x"), 64, `NaN`},
		{run("--ttl", "1e400", "x"), 64, `1e400`},
		{run("-w", "1e300", "x"), 64, `1e300`},
		{run("-w", "", "x"), 64, `duration`},
		{run("--slots", "-1", "x"), 64, `at least 1`},
		{run("--slots", "99999999999999999999", "x"), 64, `slots`},
		{run("--slots", "3.5", "x"), 64, `slots`},
		{run("-E", "-1", "x"), 64, `0 to 255`},
		{run("--kill-after", "-1", "x"), 64, `-1`},
		{run("--reason", strings.Repeat("r", 201), "x"), 64, `at most 200`},
		{run("--nonsense", "x"), 64, `unknown flag: --nonsense`},
		{run("-Z", "x"), 64, `unknown shorthand flag.*Z`},
		{run("--store", "x", "y"), 64, `SCHEME`},
		{[]string{"acquire", "--for", "-1", "x"}, 64, `-1`},
		{[]string{"acquire", "--for", "99999999h", "x"}, 64, `99999999h|at most|above`},
		{[]string{"acquire", "--for", "0", "x"}, 64, `0`},
		{[]string{"release", "x", "--token", "-1"}, 64, `token`},
		{[]string{"release", "x", "--token", "abc"}, 64, `abc`},
		{[]string{"break", "x", "--token", "99999999999999999999", "--reason", "r"}, 64, `99999999999999999999`},
		{[]string{"config", "set", "ttl", "-1"}, 64, `-1`},
		{[]string{"config", "set", "ttl", "100000h"}, 64, `100000h|above|at most`},
	} {
		t.Run(strings.ToValidUTF8(strings.Join(c.args, " "), "?"), func(t *testing.T) {
			v := *w
			v.t = t
			v.refused(v.holdfast(c.args...), c.status, c.says)
		})
	}
	if after := w.contents(); after != before {
		t.Errorf("the records have changed: %s, now %s", before, after)
	}
}

// contents are all records, as text.
func (w *world) contents() string {
	w.t.Helper()
	rows, err := w.tables.Query(`select space || ' ' || hex(name) || ' ' || version || ' ' || hex(value) from holdfast_records order by 1`)
	must(w.t, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var line string
		must(w.t, rows.Scan(&line))
		all = append(all, line)
	}
	must(w.t, rows.Err())
	return strings.Join(all, "\n")
}

// A file that is none of ours is left as it is, and said to be none.
func TestBadFile(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("dear diary, "), 1000)
	for _, c := range []struct {
		name string
		make func(t *testing.T, path string)
		says []string
	}{
		{"text", func(t *testing.T, path string) { must(t, os.WriteFile(path, text, 0o600)) }, []string{"is not a database"}},
		{"of another program", otherProgram, []string{" schema apply"}},
		{"directory", func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)) }, []string{"is a directory"}},
		{"pipe", func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o600)) }, []string{"is not a database"}},
		{"head damaged", func(t *testing.T, path string) { damage(t, path, 0, 4096) }, []string{"not a database|damaged"}},
		{"body damaged", func(t *testing.T, path string) { damage(t, path, 100, 1<<20) }, []string{"damaged"}},
		{"cut off", func(t *testing.T, path string) { damage(t, path, -1, 0) }, []string{"damaged| schema apply"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			other := filepath.Join(w.dir, "other.db")
			c.make(t, other)
			before, _ := os.ReadFile(regular(other))
			for _, verb := range [][]string{{"run", "x", "--", "touch", "ran"}, {"list"}, {"acquire", "--for", "1m", "x"}} {
				w.refused(w.holdfast(append([]string{"--store", "sqlite:" + other}, verb...)...), 69, append(c.says, "other.db")...)
			}
			after, _ := os.ReadFile(regular(other))
			if !bytes.Equal(before, after) {
				t.Errorf("the file was %d bytes and is %d, or others", len(before), len(after))
			}
			if c.name == "missing" {
				if _, err := os.Lstat(other); err == nil {
					t.Error("the file was made")
				}
			}
		})
	}
}

// otherProgram makes a database of an application that knows nothing of us.
func otherProgram(t *testing.T, path string) {
	db, err := sql.Open("sqlite", "file:"+path)
	must(t, err)
	defer db.Close()
	_, err = db.Exec(`create table diary (text); insert into diary values ('dear diary')`)
	must(t, err)
}

// regular is the path if there is a regular file.
func regular(path string) string {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return os.DevNull
	}
	return path
}

// damage makes a database and overwrites so many bytes of it from an offset on,
// or cuts it to half.
func damage(t *testing.T, path string, from, n int) {
	t.Helper()
	w := &world{t: t, started: &started{}, dir: filepath.Dir(path), target: "sqlite:" + path, db: path, runtime: filepath.Dir(path)}
	w.holdfast("schema", "apply").wantStatus(0)
	text, err := os.ReadFile(path)
	must(t, err)
	if from < 0 {
		text = text[:len(text)/2]
	} else {
		for i := from; i < min(from+n, len(text)); i++ {
			text[i] = 0xA5
		}
	}
	must(t, os.WriteFile(path, text, 0o600))
}

// nobody runs the command without rights.
func (w *world) nobody(args ...string) *process {
	w.t.Helper()
	if os.Geteuid() != 0 {
		w.t.Skip("SKIPPED: needs root, to give up its rights: files that may not be used are not tested")
	}
	must(w.t, os.Chmod(w.dir, 0o755))
	for dir := filepath.Dir(w.dir); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		must(w.t, os.Chmod(dir, 0o755))
	}
	c := exec.Command(holdfastPath, args...)
	c.Env = append(w.env(), "XDG_RUNTIME_DIR="+w.dir+"/none")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return w.start(c)
}

// Files and directories that may not be used are named.
func TestNoPermission(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, "db")
	before := w.contents()
	dir := filepath.Dir(w.db)
	verb := []string{"run", "x", "--", "touch", "ran"}

	must(t, os.Chmod(dir, 0o700))
	w.refused(w.nobody(verb...), 69, "permission denied", "locks.db")
	must(t, os.Chmod(dir, 0o755))
	w.refused(w.nobody(verb...), 69, "permission denied", "locks.db")
	must(t, os.Chmod(w.db, 0o644))
	w.refused(w.nobody(verb...), 69, "permission denied", "locks.db")
	must(t, os.Chmod(w.db, 0o666)) // but its log cannot be written
	w.refused(w.nobody(verb...), 69, "permission denied", "log beside the database", dir)
	if after := w.contents(); after != before {
		t.Errorf("the records have changed: %s, now %s", before, after)
	}
}

// copied is a copy of the file and of its log, elsewhere: whether the log has gone into the
// file meanwhile depends on who closed it last.
func (w *world) copied() *world {
	w.t.Helper()
	c := *w
	c.db = filepath.Join(w.t.TempDir(), "copy.db")
	for _, part := range []string{"", "-wal"} {
		text, err := os.ReadFile(w.db + part)
		if os.IsNotExist(err) && part != "" {
			continue
		}
		must(w.t, err)
		must(w.t, os.WriteFile(c.db+part, text, 0o600))
	}
	var err error
	c.tables, err = sql.Open("sqlite", c.db)
	must(w.t, err)
	w.t.Cleanup(func() { c.tables.Close() })
	return &c
}

// A full disk is said to be full; what is in the file stays.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, inUse := range []bool{false, true} {
		t.Run(fmt.Sprintf("in use %v", inUse), func(t *testing.T) { fullDisk(t, inUse) })
	}
}

func fullDisk(t *testing.T, inUse bool) {
	w := newWorld(t)
	dir := filepath.Join(w.dir, "small")
	must(t, os.Mkdir(dir, 0o700))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("SKIPPED: no small disk can be had here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	v := *w
	v.db = filepath.Join(dir, "locks.db")
	v.target = "sqlite:" + v.db
	v.holdfast("schema", "apply").wantStatus(0)
	v.holdfast("run", "x", "--", "true").wantStatus(0)
	var user *process
	if inUse { // so that the log is there, and only has to grow
		user = v.runActor([]string{"--ttl", "10m", "other"}, "-stdin")
		v.after(0, 1)
		// It sends a second heartbeat when it is notified of changes, and no more for minutes.
		second := fmt.Sprintf("%X", `"beat":2,`)
		for end := time.Now().Add(busy.Times(20 * time.Second)); !strings.Contains(v.copied().contents(), second); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no second heartbeat: %s", v.copied().contents())
			}
		}
	}

	filler, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	for size := 4096; size > 0; {
		if _, err := filler.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	must(t, filler.Close())
	before := v.copied().contents()
	v.refused(v.holdfast("run", "--ttl", "1", "x", "--", "touch", "ran"), 69, "disk is full", "locks.db")
	if after := v.copied().contents(); after != before {
		t.Errorf("the records have changed: %s, now %s", before, after)
	}
	must(t, os.Remove(filler.Name()))
	v.holdfast("run", "x", "--", "true").wantStatus(0)
	if inUse {
		user.end()
		user.wantStatus(0)
	}
}

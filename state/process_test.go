//go:build linux || darwin

package state

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/directory"
)

// The test binary, started again with a role, is another process on the
// directory.
var roles = map[string]func(ctx context.Context, s *State) error{
	"key":    tellKey,
	"write":  write,
	"parent": writeWithChild,
}

// roleLease is the lease of writers that are other processes.
const roleLease = 2 * time.Second

func TestMain(m *testing.M) {
	role := os.Getenv("HOLDFAST_TEST_ROLE")
	if role == "" {
		os.Exit(m.Run())
	}
	path := os.Getenv("HOLDFAST_TEST_DIR")
	s, err := Dir(path, &DirOptions{Lease: roleLease})
	if onStore, ok := strings.CutSuffix(role, " on"); ok && err == nil {
		role = onStore
		var c *holdfast.Client
		if c, err = openStore(path, ""); err == nil {
			defer c.Close()
			s = On(c, "refs")
		}
	}
	if err == nil {
		err = roles[role](context.Background(), s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// openStore opens a client on the store in a directory.
func openStore(path, proofs string) (*holdfast.Client, error) {
	store, err := directory.New(path)
	if err != nil {
		return nil, err
	}
	return holdfast.New(store, &holdfast.Options{TTL: roleLease, RuntimeDir: proofs})
}

// tellKey waits for a line, so that many can begin at once, and prints the key.
func tellKey(ctx context.Context, s *State) error {
	bufio.NewScanner(os.Stdin).Scan()
	k, err := s.Key(ctx)
	fmt.Println(k.ID, k.stamp, k.Writing)
	return err
}

// write begins, waits for a line, and ends.
func write(ctx context.Context, s *State) error {
	w, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	fmt.Println("begun")
	bufio.NewScanner(os.Stdin).Scan()
	err = w.Context().Err()
	fmt.Println(err, "|", context.Cause(w.Context()), "|", w.End(ctx))
	return nil
}

// writeWithChild has a child write, as a command would.
func writeWithChild(ctx context.Context, s *State) error {
	w, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	child := exec.Command("cat")
	child.Stdin = os.Stdin
	child.ExtraFiles = []*os.File{w.Proof()}
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Println("begun")
	return child.Wait()
}

// A process is another process, and what it says.
type process struct {
	t *testing.T
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, Cmd: cmd}
	cmd.Stderr = os.Stderr
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

func startRole(t *testing.T, role, path string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE="+role, "HOLDFAST_TEST_DIR="+path)
	return start(t, cmd)
}

// line is the next that the process prints.
func (p *process) line() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("%s has ended: %v", p.Path, p.out.Err())
	}
	return p.out.Text()
}

func (p *process) kill() {
	p.Process.Kill()
	p.Process.Signal(syscall.SIGCONT)
	p.Wait()
}

// scriptKey runs the script as a reader.
func scriptKey(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("testdata/seed.sh", path, "read").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// scriptWriter starts the script as a writer that waits for the end of its input.
func scriptWriter(t *testing.T, path string) *process {
	t.Helper()
	p := start(t, exec.Command("testdata/seed.sh", path, "write", "sh", "-c", "echo begun; cat"))
	p.line()
	return p
}

// entries are the pending entries, by their paths.
func entries(t testing.TB, path string) (found []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(path, "state/pending/*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// hide makes all entries what a writer on another host would have left, whose
// lock cannot be seen here.
func hide(t testing.TB, path string) {
	t.Helper()
	for _, name := range entries(t, path) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if e := parseEntry(text); e.Proof != "" {
			e.Proof = ""
			if err := os.WriteFile(name, e.encode(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// age makes all entries that old, with the command that people use.
func age(t testing.TB, path string, by time.Duration) {
	t.Helper()
	for _, name := range entries(t, path) {
		at := time.Now().Add(-by).Format("2006-01-02T15:04:05")
		if out, err := exec.Command("touch", "-d", at, name).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: touch -d: %v\n%s", err, out)
		}
	}
}

// eventually waits for a key at which nobody writes.
func eventually(t testing.TB, s *State) Key {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if k := anyKey(t, s); !k.Writing {
			return k
		}
		if time.Now().After(deadline) {
			t.Fatal("for 30 s someone writes")
		}
	}
}

// A script that follows the seed and Holdfast have the same key, whoever makes
// it first.
func TestScriptAndKey(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	k := keyOf(t, s)
	if got := scriptKey(t, path); got != k.ID {
		t.Errorf("the script reads %q, and Holdfast %q", got, k.ID)
	}
	path = t.TempDir()
	got := scriptKey(t, path)
	if k := keyOf(t, openDir(t, path, nil)); k.ID != got {
		t.Errorf("Holdfast reads %q, and the script has made %q", k.ID, got)
	}
}

// While a script writes, Holdfast says so, and after it the key is another.
func TestScriptWrites(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	p := scriptWriter(t, path)
	for range 3 {
		if k := anyKey(t, s); !k.Writing || k.ID != before.ID {
			t.Fatalf("while a script writes the key is %+v, want %q and that someone writes", k, before.ID)
		}
	}
	p.in.Close()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	k := keyOf(t, s)
	if k.Equal(before) || k.ID != scriptKey(t, path) {
		t.Errorf("after it the key is %+v, and was %+v; the script reads %q", k, before, scriptKey(t, path))
	}
}

// While Holdfast writes, a script reads the key that was, leaves the entry
// alone, and reads another key as soon as End has returned.
func TestScriptReads(t *testing.T) {
	path := t.TempDir()
	before := scriptKey(t, path)
	w := begin(t, openDir(t, path, nil))
	if got := scriptKey(t, path); got != before {
		t.Errorf("during the write the script reads %q, and before it %q", got, before)
	}
	if n := len(entries(t, path)); n != 1 {
		t.Fatalf("%d entries are pending, want one", n)
	}
	if err := w.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scriptKey(t, path); got == before {
		t.Errorf("after the write the script still reads %q", got)
	}
	if left := entries(t, path); len(left) > 0 {
		t.Errorf("entries are left: %q", left)
	}
}

// The entry of a script that was killed is respected for an hour, and then the
// key changes before it goes.
func TestScriptKilled(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	p := scriptWriter(t, path)
	p.kill()
	age(t, path, 50*time.Minute)
	for _, s := range []*State{s, openDir(t, path, nil)} {
		if k := anyKey(t, s); !k.Writing {
			t.Fatalf("50 minutes after the script was killed the key is %+v", k)
		}
	}
	age(t, path, 61*time.Minute)
	k := keyOf(t, openDir(t, path, nil))
	if k.Equal(before) || len(entries(t, path)) > 0 {
		t.Errorf("after an hour the key is %+v, and was %+v; entries: %q", k, before, entries(t, path))
	}
	if k := eventually(t, openDir(t, path, nil)); k.ID != scriptKey(t, path) {
		t.Errorf("Holdfast reads %q, and the script %q", k.ID, scriptKey(t, path))
	}
}

// A script does the same for a writer of ours that was killed.
func TestScriptDeclaresDead(t *testing.T) {
	path := t.TempDir()
	before := scriptKey(t, path)
	p := startRole(t, "write", path)
	p.line()
	p.kill()
	age(t, path, 61*time.Minute)
	after := scriptKey(t, path)
	if after == before || len(entries(t, path)) > 0 {
		t.Errorf("the script reads %q, and before %q; entries: %q", after, before, entries(t, path))
	}
	if k := keyOf(t, openDir(t, path, nil)); k.ID != after {
		t.Errorf("Holdfast reads %q, and the script %q", k.ID, after)
	}
}

// A writer of ours whose entry a script has removed notices, and changes the
// key at its end.
func TestScriptBuriesTheLiving(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, &DirOptions{Lease: roleLease})
	w := begin(t, s)
	age(t, path, 61*time.Minute)
	after := scriptKey(t, path)
	if len(entries(t, path)) > 0 {
		t.Skip("NOT TESTED: the writer has renewed its entry in between")
	}
	select {
	case <-w.Context().Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the writer's context does not end")
	}
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
	if got := scriptKey(t, path); got == after {
		t.Errorf("after the end of the lost writer the key is still %q", got)
	}
}

// On one host the death of a writer is known at once.
func TestKilled(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	p := startRole(t, "write", path)
	p.line()
	if k := anyKey(t, s); !k.Writing {
		t.Fatalf("while it lives the key is %+v", k)
	}
	local(t, path)
	p.kill()
	if k := keyOf(t, s); k.Equal(before) {
		t.Errorf("after its death the key is still %+v", k)
	}
	if left := entries(t, path); len(left) > 0 {
		t.Errorf("entries are left: %q", left)
	}
}

// local skips where the proof of a death cannot be given.
func local(t *testing.T, path string) {
	t.Helper()
	for _, name := range entries(t, path) {
		if text, err := os.ReadFile(name); err == nil && !strings.Contains(string(text), `"proof"`) {
			t.Skip("NOT TESTED: this file system is not known to be local")
		}
	}
}

// Elsewhere a writer that was killed is dead after its lease, whether a reader
// has watched it or comes later.
func TestKilledElsewhere(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	p := startRole(t, "write", path)
	p.line()
	p.kill()
	hide(t, path)
	died := time.Now()
	if k := anyKey(t, s); !k.Writing && time.Since(died) < roleLease {
		t.Fatalf("before the lease is over the key is %+v", k)
	}
	if k := eventually(t, s); k.Equal(before) {
		t.Errorf("after its death the key is still %+v", k)
	}
	if took := time.Since(died); took < roleLease-100*time.Millisecond {
		t.Errorf("it was taken for dead after %v, before its lease was over", took)
	}
}

// A command that goes on after its holdfast was killed still counts as a
// writer.
func TestKilledParent(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	p := startRole(t, "parent", path)
	p.line()
	local(t, path)
	p.Process.Kill()
	p.Process.Wait()
	for begun := time.Now(); time.Since(begun) < roleLease*3/2; time.Sleep(50 * time.Millisecond) {
		for _, s := range []*State{s, openDir(t, path, nil)} {
			if k := anyKey(t, s); !k.Writing {
				t.Fatalf("%v after its parent's death the command's key is %+v", time.Since(begun), k)
			}
		}
	}
	p.in.Close() // ends the command
	if k := eventually(t, s); k.Equal(before) {
		t.Errorf("after the command's end the key is still %+v", k)
	}
}

// A writer that was frozen until readers took it for dead changes the key again
// when it ends.
func TestFrozen(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	keyOf(t, s)
	p := startRole(t, "write", path)
	p.line()
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	hide(t, path)
	replaced := eventually(t, s)
	p.Process.Signal(syscall.SIGCONT)
	fmt.Fprintln(p.in)
	if said := p.line(); !strings.HasPrefix(said, context.Canceled.Error()) || strings.Count(said, " lost: ") != 2 {
		t.Errorf("it says %q, want that its context has ended and its lease is lost", said)
	}
	if k := keyOf(t, s); k.Equal(replaced) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// On its own host a frozen writer is known to live: readers wait for it, up to
// the limit.
func TestFrozenHere(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	p := startRole(t, "write", path)
	p.line()
	local(t, path)
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	age(t, path, 59*time.Minute)
	if k := anyKey(t, s); !k.Writing {
		t.Errorf("while it is frozen the key is %+v", k)
	}
	age(t, path, 61*time.Minute)
	k := keyOf(t, openDir(t, path, nil))
	p.Process.Signal(syscall.SIGCONT)
	fmt.Fprintln(p.in)
	p.line()
	if after := keyOf(t, s); after.Equal(k) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// In a store, too, a writer that was killed is made up for, and one that was
// frozen until it was taken for dead changes the key again when it ends.
func TestKilledAndFrozenWriters(t *testing.T) {
	path := t.TempDir()
	if err := directory.Migrate(path); err != nil {
		t.Fatal(err)
	}
	c, err := openStore(path, os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := On(c, "refs")
	before := keyOf(t, s)
	p := startRole(t, "write on", path)
	p.line()
	if k := anyKey(t, s); !k.Writing {
		t.Fatalf("while it lives the key is %+v", k)
	}
	p.kill()
	k := eventually(t, s)
	if k.Equal(before) {
		t.Errorf("after its death the key is still %+v", k)
	}
	p = startRole(t, "write on", path)
	p.line()
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	replaced := eventually(t, s)
	p.Process.Signal(syscall.SIGCONT)
	fmt.Fprintln(p.in)
	if said := p.line(); !strings.HasPrefix(said, context.Canceled.Error()) || strings.Count(said, " lost: ") != 2 {
		t.Errorf("it says %q, want that its context has ended and its lock is lost", said)
	}
	if k := eventually(t, s); k.Equal(replaced) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// Of many processes that find no key all get the same.
func TestFirstKey(t *testing.T) {
	path := t.TempDir()
	var readers []*process
	for range 6 {
		readers = append(readers, startRole(t, "key", path))
	}
	var all sync.WaitGroup
	said := make([]string, len(readers))
	for i, p := range readers {
		all.Go(func() {
			fmt.Fprintln(p.in)
			if p.out.Scan() {
				said[i] = p.out.Text()
			}
		})
	}
	all.Wait()
	for i, text := range said {
		if text == "" || text != said[0] || !strings.HasSuffix(text, " false") {
			t.Errorf("reader %d has %q, and the first has %q", i, text, said[0])
		}
	}
}

package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
)

func TestClients(t *testing.T) {
	t.Parallel()
	clienttest.Run(t, func(t *testing.T) driver.Store { return reopener{fresh(t)} })
}

func init() {
	roles["hold"] = func(ctx context.Context, s *Store) error { return keep(ctx, s, false) }
	roles["hand on"] = func(ctx context.Context, s *Store) error { return keep(ctx, s, true) }
	roles["linger"] = func(context.Context, *Store) error { time.Sleep(30 * time.Second); return nil }
}

// runtimeDir is where the processes of a test prove their deaths.
func runtimeDir(s *Store) string { return filepath.Join(filepath.Dir(s.path), "run") }

const childTTL = 3 * time.Second

// keep takes a lock, prints its token and keeps it. Asked to, it first starts a
// child that inherits the proof of life, and prints its process id, too.
func keep(ctx context.Context, s *Store, handOn bool) error {
	c, err := holdfast.New(s, &holdfast.Options{TTL: childTTL, RuntimeDir: runtimeDir(s)})
	if err != nil {
		return err
	}
	l, err := c.Acquire(ctx, "a")
	if err != nil {
		return err
	}
	pid := 0
	if handOn {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE=linger")
		child.ExtraFiles = []*os.File{l.Proof()}
		if err := child.Start(); err != nil {
			return err
		}
		pid = child.Process.Pid
	}
	fmt.Println(l.Token())
	fmt.Println(pid)
	<-l.Context().Done()
	return context.Cause(l.Context())
}

// held starts a process that holds "a".
func held(t *testing.T, s *Store, role string) (p *exec.Cmd, token int64, child *os.Process) {
	t.Helper()
	p, out := process(t, role, s.path)
	scan := func() int64 {
		t.Helper()
		if !out.Scan() {
			t.Fatalf("the process ended: %v", p.Wait())
		}
		n, err := strconv.ParseInt(out.Text(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	token = scan()
	if pid := scan(); pid != 0 {
		var err error
		if child, err = os.FindProcess(int(pid)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { child.Kill() })
	}
	go drain(out)
	return p, token, child
}

func drain(out *bufio.Scanner) {
	for out.Scan() {
	}
}

// waiter is a client on the same host, and its place in the queue for "a".
func waiter(t *testing.T, s *Store) (*holdfast.Client, <-chan *holdfast.Lock) {
	t.Helper()
	c, err := holdfast.New(open(t, s.path, nil), &holdfast.Options{TTL: childTTL, RuntimeDir: runtimeDir(s)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	granted := make(chan *holdfast.Lock, 1)
	go func() {
		l, err := c.Acquire(context.Background(), "a")
		if err != nil && !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("acquire: %v", err)
		}
		granted <- l
	}()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		info, err := c.Show(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if len(info.Waiters) == 1 {
			return c, granted
		}
		if time.Now().After(end) {
			t.Fatalf("the waiter does not queue: %+v", info)
		}
	}
}

func proofs(t *testing.T, s *Store) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(runtimeDir(s), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// provable skips the test where the kernel proves no deaths.
func provable(t *testing.T) {
	t.Helper()
	s := fresh(t)
	c, err := holdfast.New(s, &holdfast.Options{RuntimeDir: runtimeDir(s)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if l.Proof() == nil {
		t.Skip("the temporary directory is on a file system where there is no proof of death")
	}
}

// A client that waits for a process of the same host that is killed has the lock at once,
// and the file that proved the death is gone with the tombstone.
func TestProofOfDeath(t *testing.T) {
	provable(t)
	best := time.Hour
	for range 3 {
		s := fresh(t)
		p, token, _ := held(t, s, "hold")
		c, granted := waiter(t, s)
		if n := len(proofs(t, s)); n != 2 {
			t.Errorf("%d files of two sessions", n)
		}
		p.Process.Kill()
		killed := time.Now()
		select {
		case l := <-granted:
			best = min(best, time.Since(killed))
			if l.Token() <= token {
				t.Errorf("token %d after %d", l.Token(), token)
			}
			if n := len(proofs(t, s)); n != 1 {
				t.Errorf("%d files, want that of the living", n)
			}
		case <-time.After(childTTL / 2):
			t.Fatal("the waiter did not hear of the death before the TTL")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if n := len(proofs(t, s)); n != 0 {
			t.Errorf("%d files after Close", n)
		}
	}
	if best > 100*time.Millisecond { // of three, as the machine may be busy
		t.Errorf("it took %v at best", best)
	}
}

// A child that inherited the proof keeps the lock of its dead parent for as long
// as it lives.
func TestProofInherited(t *testing.T) {
	provable(t)
	s := fresh(t)
	p, _, child := held(t, s, "hand on")
	_, granted := waiter(t, s)
	p.Process.Kill()
	p.Wait()
	select {
	case <-granted:
		t.Fatal("the lock was given on while a process lived that had inherited it")
	case <-time.After(childTTL / 5):
	}
	child.Kill()
	select {
	case <-granted:
	case <-time.After(childTTL / 3): // before the TTL, which counts from the parent's last heartbeat
		t.Error("the lock was not given on when the last process had died")
	}
}

// And not for longer than the TTL.
func TestProofOutlived(t *testing.T) {
	provable(t)
	s := fresh(t)
	p, _, child := held(t, s, "hand on")
	_, granted := waiter(t, s)
	p.Process.Kill()
	killed := time.Now()
	p.Wait()
	select {
	case <-granted:
		if took := time.Since(killed); took < childTTL/2 {
			t.Errorf("the lock was given on after %v, with a TTL of %v", took, childTTL)
		}
	case <-time.After(2 * childTTL):
		t.Error("a process that inherited the proof keeps the lock for ever")
	}
	if err := child.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the child did not live: %v", err)
	}
}

// A client that does not share the runtime directory learns nothing from it, and waits for
// the TTL.
func TestProofOfStranger(t *testing.T) {
	provable(t)
	s := fresh(t)
	p, _, _ := held(t, s, "hold")
	c, err := holdfast.New(open(t, s.path, nil), &holdfast.Options{TTL: childTTL, RuntimeDir: filepath.Join(t.TempDir(), "other")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	p.Process.Kill()
	p.Wait()
	if _, err := c.Acquire(t.Context(), "a", holdfast.MaxWait(childTTL/3)); !errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("it acquired, error %v, what only the TTL can tell it is free", err)
	}
	l, err := c.Acquire(t.Context(), "a", holdfast.MaxWait(2*childTTL))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

//go:build linux

package process

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// A signal to `holdfast run` is one to the command: which ends of it, and the
// status tells so, or does as it likes.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.holdfast("run", "x", "--", "sh", "-c", "touch begun; exec sleep 1000")
			w.begun()
			p.signal(sig)
			p.wantStatus(128 + int(sig))

			p = w.holdfast("run", "x", "--", "sh", "-c", fmt.Sprintf(`trap 'echo caught; exit 9' %d; %s & wait`, int(sig), strings.Join(w.actor(), " ")))
			w.after(0, 1)
			p.signal(sig)
			p.wantStatus(9)
			if got := p.stdout.String(); got != "caught\n" {
				t.Errorf("the command printed %q", got)
			}
			if info := w.show("x"); len(info.Holders) != 0 {
				t.Errorf("still held: %+v", info)
			}
		})
	}
}

// begun is until a command has left a file of that name.
func (w *world) begun() {
	w.t.Helper()
	await(w.t, "the command begins", func() bool { _, err := os.Stat(w.dir + "/begun"); return err == nil })
}

// What is started with a signal ignored, as by nohup, ignores it.
func TestIgnoredSignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start(exec.Command("sh", "-c", fmt.Sprintf(`trap '' HUP; exec %s run x -- %s -stdin`, holdfastPath, strings.Join(w.actor(), " "))))
	w.after(0, 1)
	p.signal(syscall.SIGHUP)
	began := life.Now()
	await(t, "the command lives on", func() bool { return w.lastOf(w.spans()[0].Token) > began+int64(200*time.Millisecond) })
	p.end()
	p.wantStatus(0)
}

// Where there is no terminal, a stop for job control stops the command too, and
// the lease is kept or lost by the clock as always.
func TestStopWithoutTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.runActor([]string{"--ttl", twoSeconds(), "x"}, "-stdin")
	first := w.after(0, 1)
	p.signal(syscall.SIGTSTP)
	await(t, "run and command stand still", func() bool { return state(p.Process.Pid) == 'T' && state(first.PID) == 'T' })
	p.signal(syscall.SIGCONT)
	began := life.Now()
	await(t, "the command goes on", func() bool { return w.lastOf(first.Token) > began })
	p.end()
	p.wantStatus(0)
}

// Standard input and output are the command's own, byte for byte.
func TestFilesOfCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	data := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{}).Read(data)
	c := exec.Command(holdfastPath, "run", "x", "--", "cat")
	c.Stdin = bytes.NewReader(data)
	p := w.start(c)
	p.wantStatus(0)
	if !bytes.Equal(p.stdout.Bytes(), data) {
		t.Errorf("%d bytes came out of %d, or others", p.stdout.Len(), len(data))
	}

	// A reader that goes away ends the command as it would without us.
	c = exec.Command("bash", "-c", fmt.Sprintf(`set -o pipefail; %s run x -- yes | head -1`, holdfastPath))
	p = w.start(c)
	p.wantStatus(128 + int(syscall.SIGPIPE))
}

// terminal starts a command as the first of a session on a terminal of its own.
func (w *world) terminal(argv ...string) (p *process, hangUp func(), press func(keys string)) {
	w.t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	master, slave, err := pty.Open()
	must(w.t, err)
	w.t.Cleanup(func() { master.Close() })
	c.Stdin, c.Stdout = slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setctty: true}
	p = w.start(c)
	slave.Close()
	return p, func() { master.Close() }, func(keys string) {
		_, err := master.Write([]byte(keys))
		must(w.t, err)
	}
}

// When the terminal goes away everything ends and the lock is free.
func TestHangUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, hangUp, _ := w.terminal(slicesOf(holdfastPath, "run", "--ttl", twoSeconds(), "x", "--", w.actor("-brood", "-alone", w.dir))...)
	token := w.after(0, members).Token
	next := w.runActor([]string{"-q", "x"}, "-for", "1ms", "-alone", w.dir)
	w.queued("x", 1)
	began := life.Now()
	hangUp()
	p.wantStatus(128 + int(syscall.SIGHUP))
	next.wantStatus(0)
	inTurn(t, w.spans())
	t.Logf("figure: the terminal went away: the next held the lock after %v", time.Duration(w.after(token, 1).Begin-began).Round(time.Millisecond))
}

// The quit key ends the command, and so the lock.
func TestQuitKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, _, press := w.terminal(holdfastPath, "run", "x", "--", "sh", "-c", "touch begun; exec sleep 1000")
	w.begun()
	press("\x1c")
	p.wantStatus(128 + int(syscall.SIGQUIT))
	if info := w.show("x"); len(info.Holders) != 0 {
		t.Errorf("still held: %+v", info)
	}
}

// slicesOf joins strings and lists of them.
func slicesOf(parts ...any) (all []string) {
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			all = append(all, p)
		case []string:
			all = append(all, p...)
		}
	}
	return all
}

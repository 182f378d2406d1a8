//go:build linux

package command

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/holdfast-lock/holdfast/internal/asjson"
)

// A screen is a terminal with a shell that has job control, and what it shows.
type screen struct {
	t    *testing.T
	dir  string
	tty  *os.File
	mu   sync.Mutex
	text strings.Builder
	from int
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash, which has job control")
	}
	c := exec.Command(shell, "--norc", "--noprofile", "-i")
	dir := t.TempDir()
	c.Dir = dir
	c.Env = append(os.Environ(), "PS1=$ ", "TERM=dumb", "HISTFILE=", "XDG_STATE_HOME="+dir, "XDG_RUNTIME_DIR="+dir, "USER=ana", "LOGNAME=ana")
	tty, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: 200})
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, dir: dir, tty: tty}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := tty.Read(buf)
			s.mu.Lock()
			s.text.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { tty.Close(); c.Process.Kill(); c.Wait() })
	s.expect("$ ")
	s.enter("stty -echo")
	s.expect("$ ")
	return s
}

func (s *screen) enter(line string) { s.press(line + "\n") }

func (s *screen) press(keys string) {
	if _, err := s.tty.Write([]byte(keys)); err != nil {
		s.t.Fatal(err)
	}
}

// expect waits for text on the screen, after what was last expected, and
// returns all up to its end.
func (s *screen) expect(want string) string {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		text := s.text.String()[s.from:]
		if i := strings.Index(text, want); i >= 0 {
			s.from += i + len(want)
			s.mu.Unlock()
			return text[:i+len(want)]
		}
		s.mu.Unlock()
		if time.Now().After(end) {
			s.t.Fatalf("%q does not appear; there is %q", want, text)
		}
	}
}

// At a terminal the keys do what they do without us.
func TestInterruptKey(t *testing.T) {
	s := newScreen(t)
	s.enter(`holdfast run x -- sh -c 'trap "echo caught; exit 9" INT; test -t 0 && echo "rea""dy"; while :; do sleep 0.1; done'; echo "sta""tus $?"`)
	s.expect("ready")
	s.press("\x03")
	s.expect("caught")
	s.expect("status 9")

	// A shell's loop ends with a command that was interrupted.
	s.enter(`for i in 1 2 3; do holdfast run x -- sh -c 'echo "beg""un"; exec sleep 1000'; done; echo "loop $?"`)
	s.expect("begun")
	s.press("\x03")
	s.expect("$ ")
	s.enter(`echo "en""ded $?"`)
	if text := s.expect("ended 130"); strings.Contains(text, "begun") {
		t.Errorf("the loop went on: %q", text)
	}
}

// A signal that somebody sends to run alone is passed on, at a terminal as elsewhere,
// and a key interrupts the command once.
func TestInterruptSent(t *testing.T) {
	s := newScreen(t)
	for _, sig := range []string{"INT", "QUIT"} {
		s.enter(`holdfast run x -- sh -c 'n=0; trap "n=\$((n+1)); echo cau""ght \$n" ` + sig + `; trap "exit 9" USR1; echo "rea""dy $PPID"; while :; do sleep 0.05; done'; echo "sta""tus $?"`)
		s.expect("ready")
		pid := s.holder()
		for n := 1; n < 6; n++ {
			if n%2 == 0 {
				s.press(map[string]string{"INT": "\x03", "QUIT": "\x1c"}[sig])
			} else {
				s.taken(pid) // the kernel keeps only one signal of a kind for a process
				syscall.Kill(pid, map[string]syscall.Signal{"INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT}[sig])
			}
			s.expect(fmt.Sprintf("caught %d", n))
		}
		syscall.Kill(pid, syscall.SIGUSR1)
		if text := s.expect("status 9"); strings.Contains(text, "caught") {
			t.Errorf("one came more than once: %q", text)
		}
	}
}

// A signal that somebody sends to a leader ends elect, also if its term ends before it is
// known that no key has sent it: the command of a next term does not begin.
func TestInterruptAtTheEndOfATerm(t *testing.T) {
	s := newScreen(t)
	s.enter(`holdfast elect x -- sh -c 'echo "lea""ding"; exec sleep 1000'; echo "sta""tus $?"`)
	s.expect("leading")
	claim := s.claim()
	c := exec.Command("holdfast", "break", "x", "--token", fmt.Sprint(claim.Token), "--yes", "--reason", "a new term")
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+s.dir, "XDG_RUNTIME_DIR="+s.dir)
	syscall.Kill(claim.Owner.PID, syscall.SIGINT)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.expect(`lost "x"`)
	if text := s.expect("status "); strings.Contains(text, "leading") {
		t.Errorf("a command began after the signal: %q", text)
	}
}

func TestSuspendKey(t *testing.T) {
	s := newScreen(t)
	s.enter("holdfast run x -- cat; echo \"sta\"\"tus $?\"")
	s.enter("one")
	s.expect("one")
	s.press("\x1a")
	s.expect("Stopped")
	s.expect("$ ")
	s.enter("jobs")
	s.expect("holdfast run x")
	s.expect("$ ")
	s.enter("fg")
	s.expect("holdfast run x")
	s.enter("two")
	s.expect("two")
	s.press("\x04")
	s.expect("$ ")
	s.enter("holdfast list; echo \"a\"\"fter $?\"")
	if text := s.expect("after 0"); strings.Contains(text, "held") {
		t.Errorf("still held: %q", text)
	}
}

// A command that stops itself stops the job.
func TestSuspendItself(t *testing.T) {
	s := newScreen(t)
	s.enter(`holdfast run x -- sh -c 'kill -STOP $$; echo "wo""ken"'`)
	s.expect("Stopped")
	s.expect("$ ")
	s.enter("fg")
	s.expect("woken")
}

// What is stopped for longer than its lease lasts has lost it, and goes on to say so and
// to end.
func TestSuspendTooLong(t *testing.T) {
	s := newScreen(t)
	s.enter("holdfast run --ttl 1 x -- sleep 1000")
	s.awaitHolder()
	s.press("\x1a")
	if said := s.expect("Stopped") + s.expect("$ "); !strings.Contains(said, `lost "x"`) {
		s.expect(`lost "x"`)
	}
	s.enter(`holdfast run -q x -- true; echo "ne""xt $?"`)
	if text := s.expect("next 0"); !strings.Contains(text, "Exit 75") {
		s.enter("true")
		s.expect("Exit 75")
	}
}

// holder is the process that holds x in the screen's store.
// taken waits until a process has taken what was sent to it, and sleeps.
func (s *screen) taken(pid int) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil || len(files) == 0 {
			s.t.Fatalf("process %d: %v", pid, err)
		}
		busy := 0
		for _, name := range files {
			text, _ := os.ReadFile(name)
			if !regexp.MustCompile(`(?m)^State:\tS`).Match(text) || !regexp.MustCompile(`(?m)^ShdPnd:\t0+$`).Match(text) {
				busy++
			}
		}
		if busy == 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("process %d does not come to rest", pid)
		}
	}
}

func (s *screen) holder() int {
	s.t.Helper()
	return s.claim().Owner.PID
}

// claim is that of the one who holds x.
func (s *screen) claim() asjson.Claim {
	s.t.Helper()
	c := exec.Command("holdfast", "show", "--json", "x")
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+s.dir, "XDG_RUNTIME_DIR="+s.dir)
	out, err := c.Output()
	var info asjson.Info
	if err == nil {
		err = json.Unmarshal(out, &info)
	}
	if err != nil || len(info.Holders) != 1 {
		s.t.Fatalf("%v: %s", err, out)
	}
	return info.Holders[0]
}

// awaitHolder is until somebody holds x in the screen's store.
func (s *screen) awaitHolder() {
	s.t.Helper()
	t, dir := s.t, s.dir
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c := exec.Command("holdfast", "show", "x")
		c.Env = append(os.Environ(), "XDG_STATE_HOME="+dir, "XDG_RUNTIME_DIR="+dir)
		out, _ := c.CombinedOutput()
		if strings.Contains(string(out), "held by") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nobody holds x: %s", out)
		}
	}
}

// One line tells what is waited for; it is rewritten, and erased when it is our turn.
func TestWaitingLine(t *testing.T) {
	s := newScreen(t)
	s.enter(`holdfast run --reason backup x -- sh -c 'touch in; until test -e go; do sleep 0.05; done' & until test -e in; do sleep 0.02; done; holdfast run x -- true & until holdfast show x | grep -q waiting; do sleep 0.02; done; echo "rea""dy"`)
	s.expect("ready")
	s.enter(`holdfast run x -- echo "our ""turn"`)
	s.expect(`for "x": held by ana@`)
	s.expect(`, "backup"; 1 before you`)
	for n := 1; n < 2; { // 1s, 2s, or later where others want the processors
		s.expect("\x1b[K\rwaiting ")
		fmt.Sscanf(s.expect(`s for "x"`), "%d", &n)
	}
	s.press("\x03")
	s.expect("\r\x1b[K")
	s.expect("$ ")
	s.enter(`echo "sta""tus $?"`)
	s.expect("status 130")
	s.enter(`holdfast run x -- echo "our ""turn"`)
	s.expect("waiting")
	f, err := os.Create(s.dir + "/go")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	s.expect("\r\x1b[K")
	s.expect("our turn")
}

// break asks.
func TestBreakConfirms(t *testing.T) {
	s := newScreen(t)
	s.enter(`holdfast acquire -q --for 10m x >token; echo "rea""dy"`)
	s.expect("ready")
	s.enter(`holdfast break x --token $(cat token) --reason why; echo "sta""tus $?"`)
	s.expect(`"x" is held by ana@`)
	s.expect("Break it? [y/N] ")
	s.enter("n")
	s.expect("nothing was broken")
	s.expect("status 1")
	s.enter(`holdfast break x --now --token $(cat token) --reason why; echo "sta""tus $?"`)
	s.expect("Type the name to go on: ")
	s.enter("x")
	s.expect("holdfast: broken:")
	s.expect("status 0")
}

//go:build unix

package guard

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lock/holdfast/internal/busy"
)

// The test binary is also the guard, the program and the commands.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if act := acts[os.Args[1]]; act != nil {
			act(os.Args[2:])
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

var acts = map[string]func(args []string){
	"act-program":  program,
	"act-stubborn": func([]string) { signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP); tick() },
	"act-polite":   polite,
	"act-tree":     func([]string) { signal.Ignore(syscall.SIGTERM); grow(2); tick() },
	"act-branch":   branch,
	"act-storm":    storm,
	"act-leave":    func([]string) { grow(1); fmt.Println("left") },
}

// tick writes the time each millisecond for as long as this process lives.
func tick() {
	for {
		fmt.Println(Now())
		time.Sleep(time.Millisecond)
	}
}

// storm starts more and more processes, each in a session of its own where that is no way out.
func storm([]string) {
	signal.Ignore(syscall.SIGTERM)
	for range 400 {
		c := exec.Command("sleep", "1000")
		c.Stdout = os.Stdout
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: sessions}
		if c.Start() == nil {
			fmt.Println(Now())
			go c.Wait()
		}
	}
	tick()
}

func polite([]string) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGUSR1)
	fmt.Println("ready")
	fmt.Println((<-c).(syscall.Signal) == syscall.SIGTERM)
	os.Exit(3)
}

// grow starts n processes that leave for sessions of their own, where that is no way out, lose
// their parent and ignore requests.
func grow(n int) {
	for range n {
		c := exec.Command(os.Args[0], "act-branch", "1")
		c.Stdout = os.Stdout
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: sessions}
		c.Run()
	}
}

func branch(args []string) {
	if depth, _ := strconv.Atoi(args[0]); depth > 0 {
		c := exec.Command(os.Args[0], "act-branch", strconv.Itoa(depth-1))
		c.Stdout = os.Stdout
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: sessions}
		out, _ := c.StdinPipe()
		_ = out
		c.Start()
		return // and c is an orphan
	}
	signal.Ignore(syscall.SIGTERM)
	tick()
}

// program is a program that holds a lease of args[0] and runs the rest.
func program(args []string) {
	lease, _ := time.ParseDuration(args[0])
	g, err := Start(args[1], args[1:], os.Environ())
	fmt.Fprintln(os.Stderr, "guard deadline", Now().Add(lease))
	if err == nil {
		err = g.Run(nil, nil, Now().Add(lease), lease/4)
	}
	if err != nil {
		panic(err)
	}
	for e := range g.Events() {
		if !e.Killing {
			fmt.Fprintln(os.Stderr, describe(e))
		}
	}
}

func describe(e Event) string {
	switch {
	case e.Started:
		return "started"
	case e.Stopping:
		return fmt.Sprint("stopping ", e.Why)
	case e.Ended:
		return fmt.Sprintf("ended why %d killed %v late %v", e.Why, e.Killed, e.Late > 0)
	}
	return "stopped"
}

// start starts a guarded command in this process; what it writes comes out of
// the pipe, which ends when all that could write are gone.
func start(t *testing.T, lease, killAfter time.Duration, act ...string) (*Guard, *output, Instant) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	saved, _ := unix.Dup(1)
	unix.Dup2(int(w.Fd()), 1)
	args := append([]string{os.Args[0]}, act...)
	g, err := Start(os.Args[0], args, os.Environ())
	unix.Dup2(saved, 1)
	unix.Close(saved)
	os.Stdout = stdout
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	deadline := Now().Add(lease)
	if err := g.Run([]string{"HOLDFAST_TOKEN=17"}, nil, deadline, killAfter); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	if e := next(t, g); !e.Started {
		t.Fatalf("got %+v, want Started", e)
	}
	t.Cleanup(func() { r.Close() })
	return g, &output{bufio.NewReader(r), r}, deadline
}

// An output is what a command and all it started write.
type output struct {
	*bufio.Reader
	file *os.File
}

func next(t *testing.T, g *Guard) Event {
	t.Helper()
	select {
	case e, ok := <-g.Events():
		if !ok {
			t.Fatal("no more events")
		}
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event for 20s")
	}
	panic("unreachable")
}

func end(t *testing.T, g *Guard) Event {
	t.Helper()
	for {
		if e := next(t, g); e.Ended {
			return e
		}
	}
}

// last reads to the end of the pipe and returns the latest time in it.
func last(t *testing.T, out *output) (at Instant) {
	t.Helper()
	if err := out.file.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	for s.Scan() {
		if n, err := strconv.ParseInt(s.Text(), 10, 64); err == nil {
			at = max(at, Instant(n))
		}
	}
	if s.Err() != nil {
		t.Fatalf("something still lives: %v", s.Err())
	}
	return at
}

func TestStatus(t *testing.T) {
	for _, test := range []struct {
		script string
		want   func(syscall.WaitStatus) bool
	}{
		{"exit 0", func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 0 }},
		{"exit 7", func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 7 }},
		{"kill -9 $$", func(s syscall.WaitStatus) bool { return s.Signaled() && s.Signal() == syscall.SIGKILL }},
		{`test "$HOLDFAST_TOKEN" = 17`, func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 0 }},
	} {
		g, err := Start("/bin/sh", []string{"sh", "-c", test.script}, os.Environ())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run([]string{"HOLDFAST_TOKEN=17"}, nil, Now().Add(time.Minute), time.Second); err != nil {
			t.Fatal(err)
		}
		if e := end(t, g); !test.want(e.Status) || e.Why != Itself || e.Late > 0 || e.Left != 0 {
			t.Errorf("%s: got %+v", test.script, e)
		}
	}
}

func TestCannotBeStarted(t *testing.T) {
	g, err := Start("/nonexistent/x", []string{"x"}, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	g.Run(nil, nil, Now().Add(time.Minute), time.Second)
	if e := end(t, g); e.Errno != syscall.ENOENT {
		t.Errorf("got %+v, want ENOENT", e)
	}
}

func TestUnneededGuardGoes(t *testing.T) {
	g, err := Start("/bin/true", []string{"true"}, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	for range g.Events() {
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(g.pid, &status, 0, nil); err != nil || !status.Exited() {
		t.Errorf("the guard: %v, %v", status, err)
	}
}

// Everything is dead before the lease is over, whatever it does about it.
func TestDeadline(t *testing.T) {
	for _, act := range []string{"act-stubborn", "act-tree", "act-storm"} {
		g, out, deadline := start(t, busy.Times(3*time.Second), busy.Times(400*time.Millisecond), act) // it has to have begun
		if e := next(t, g); !e.Stopping || e.Why != Deadline {
			t.Errorf("%s: got %+v, want Stopping", act, e)
		}
		e, at := end(t, g), last(t, out)
		var slack time.Duration
		if e.Late > 0 || at >= deadline { // to kill a storm takes processors, which others may have
			slack = time.Duration(busy.Now()-1) * 200 * time.Millisecond
		}
		if e.Why != Deadline || !e.Killed || e.Late > slack {
			t.Errorf("%s: got %+v", act, e)
		}
		if at == 0 || at >= deadline.Add(slack) {
			t.Errorf("%s: lived until %v after the deadline", act, at.Sub(deadline))
		}
	}
}

func TestPoliteEndAtDeadline(t *testing.T) {
	g, out, _ := start(t, busy.Times(3*time.Second), busy.Times(1500*time.Millisecond), "act-polite")
	e := end(t, g)
	if e.Why != Deadline || e.Killed || !e.Status.Exited() || e.Status.ExitStatus() != 3 {
		t.Errorf("got %+v", e)
	}
	last(t, out)
}

func TestExtend(t *testing.T) {
	g, out, first := start(t, busy.Times(700*time.Millisecond), busy.Times(200*time.Millisecond), "act-stubborn")
	second := Now().Add(busy.Times(2 * time.Second))
	g.Extend(second, busy.Times(200*time.Millisecond))
	end(t, g)
	if at := last(t, out); at <= first || at >= second {
		t.Errorf("lived until %v of %v", at.Sub(second), busy.Times(2*time.Second))
	}
}

func TestStop(t *testing.T) {
	g, out, _ := start(t, time.Hour, 300*time.Millisecond, "act-tree")
	out.ReadString('\n')
	g.Stop(Now().Add(time.Hour))
	if e := end(t, g); e.Why != Told || !e.Killed || e.After < 250*time.Millisecond {
		t.Errorf("got %+v", e)
	}
	last(t, out)
}

func TestSignal(t *testing.T) {
	g, out, _ := start(t, time.Hour, time.Second, "act-polite")
	out.ReadString('\n')
	g.Signal(syscall.SIGTERM)
	if e := end(t, g); e.Why != Itself || e.Status.ExitStatus() != 3 {
		t.Errorf("got %+v", e)
	}
}

// What a command leaves running is ended before End is reported.
func TestLeftovers(t *testing.T) {
	g, out, _ := start(t, time.Hour, 300*time.Millisecond, "act-leave")
	e := end(t, g)
	if e.Why != Itself || e.Left != 1 || !e.Killed || e.Status.ExitStatus() != 0 {
		t.Errorf("got %+v", e)
	}
	last(t, out)
}

// What ends by itself soon after the command is not asked to.
func TestShortLeftovers(t *testing.T) {
	g, err := Start("/bin/sh", []string{"sh", "-c", "sleep 0.1 & exit 4"}, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	g.Run(nil, nil, Now().Add(time.Hour), time.Second)
	if e := end(t, g); e.Left != 0 || e.Status.ExitStatus() != 4 {
		t.Errorf("got %+v", e)
	}
}

// When the guard is killed the program kills everything, also where there is no control
// group that finds for it what the command has left behind.
func TestGuardKilled(t *testing.T) {
	for _, boxed := range []bool{true, false} {
		g, out, _ := start(t, time.Hour, 300*time.Millisecond, "act-tree")
		out.ReadString('\n')
		g.mu.Lock() // the program learns of it once the kernel has given away the guard's children
		if !boxed {
			unused := g.box
			g.box = nil
			defer unused.remove()
		}
		syscall.Kill(g.pid, syscall.SIGKILL)
		for p, ok := look(g.pid); ok && !p.dead(); p, ok = look(g.pid) {
			time.Sleep(time.Millisecond)
		}
		g.mu.Unlock()
		if e := end(t, g); e.Why != NoGuard {
			t.Errorf("boxed: %v: got %+v", boxed, e)
		}
		last(t, out)
	}
}

// When the guard does not do its work the program does, before the lease is over.
func TestGuardStopped(t *testing.T) {
	g, out, deadline := start(t, 1500*time.Millisecond, 400*time.Millisecond, "act-tree")
	syscall.Kill(g.pid, syscall.SIGSTOP)
	if e := end(t, g); e.Why != NoGuard || e.Late > 0 {
		t.Errorf("got %+v", e)
	}
	if at := last(t, out); at >= deadline {
		t.Errorf("lived until %v after the deadline", at.Sub(deadline))
	}
}

// launch starts a program in a process of its own.
func launch(t *testing.T, lease, act string) (c *exec.Cmd, out *output, log *bufio.Reader) {
	t.Helper()
	r, w, _ := os.Pipe()
	lr, lw, _ := os.Pipe()
	c = exec.Command(os.Args[0], "act-program", lease, os.Args[0], act)
	c.Stdout, c.Stderr = w, lw
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	lw.Close()
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	lr.SetReadDeadline(time.Now().Add(time.Minute))
	return c, &output{bufio.NewReader(r), r}, bufio.NewReader(lr)
}

// When the program is killed -9 everything dies at once.
func TestProgramKilled(t *testing.T) {
	c, out, log := launch(t, "1h", "act-tree")
	expect(t, log, "started")
	if n, err := out.Read(make([]byte, 1)); n != 1 {
		t.Fatal(err)
	}
	c.Process.Kill()
	at := Now()
	if late := last(t, out).Sub(at); late > 2*time.Second {
		t.Errorf("lived %v longer than the program", late)
	}
}

// A program that stands still does not keep its command alive, and goes on when its
// lease is over: it may have been stopped with a lock of the database in its hand.
func TestProgramStopped(t *testing.T) {
	c, out, log := launch(t, "1500ms", "act-tree")
	line, _ := log.ReadString('\n')
	var deadline Instant
	if _, err := fmt.Sscanf(line, "guard deadline %d", &deadline); err != nil {
		t.Fatal(err)
	}
	expect(t, log, "started")
	c.Process.Signal(syscall.SIGSTOP)
	for !standing(c.Process.Pid) {
		time.Sleep(time.Millisecond)
	}
	done := make(chan Instant, 1)
	go func() {
		var latest Instant
		for s := bufio.NewScanner(out); s.Scan(); {
			n, _ := strconv.ParseInt(s.Text(), 10, 64)
			latest = max(latest, Instant(n))
		}
		done <- latest
	}()
	// The program still holds the pipe, but nobody writes any more.
	for end := time.Now().Add(10 * time.Second); len(children(c.Process.Pid)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still alive: %v", children(c.Process.Pid))
		}
	}
	for end := time.Now().Add(10 * time.Second); standing(c.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.Process.Signal(syscall.SIGCONT)
			t.Error("the program still stands still")
		}
	}
	expect(t, log, "stopping 1")
	expect(t, log, "ended why 1 killed true late false")
	if latest := <-done; latest == 0 || latest > deadline.Add(10*time.Millisecond) { // it got the order a moment after
		t.Errorf("lived until %v after the deadline", latest.Sub(deadline))
	}
}

func expect(t *testing.T, log *bufio.Reader, want string) {
	t.Helper()
	for {
		line, err := log.ReadString('\n')
		if strings.TrimSpace(line) == want {
			return
		}
		if err != nil || !strings.HasPrefix(line, "guard") {
			t.Fatalf("got %q (%v), want %q", line, err, want)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		g, err := Start("/bin/true", []string{"true"}, os.Environ())
		if err != nil {
			b.Fatal(err)
		}
		g.Run(nil, nil, Now().Add(time.Minute), time.Second)
		for range g.Events() {
		}
	}
}

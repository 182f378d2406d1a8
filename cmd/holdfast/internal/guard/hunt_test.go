//go:build linux && !portableguard

package guard

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lock/holdfast/internal/busy"
)

// sessions of their own are no way out for what a command starts.
const sessions = true

const resumed = 8 // times

func init() {
	if len(os.Args) > 1 && os.Args[1] == "act-headless" {
		runtime.LockOSThread() // main runs on the first thread
	}
	acts["act-crowd"], acts["act-threads"], acts["act-tracer"] = crowd, threads, tracer
	acts["act-headless"], acts["act-hides"], acts["act-blind"] = headless, hides, blind
}

// headless is, in a session of its own, a process that lives on when its first thread
// has ended.
func headless(args []string) {
	if len(args) == 0 {
		c := exec.Command(os.Args[0], "act-headless", "child")
		c.Stdout = os.Stdout
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		c.Run()
		return
	}
	signal.Ignore(syscall.SIGTERM)
	go tick()
	syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

// A process whose first thread has ended looks dead, and is killed all the same.
func TestFirstThreadGone(t *testing.T) {
	g, out, _ := start(t, time.Hour, 300*time.Millisecond, "act-headless")
	out.ReadString('\n')
	g.Stop(Now().Add(time.Hour))
	if e := end(t, g); e.Why != Told || !e.Killed {
		t.Errorf("got %+v", e)
	}
	last(t, out)
}

// children lists the live processes below pid.
func children(pid int) (live []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		id, _ := strconv.Atoi(filepath.Base(name))
		if p, ok := look(id); ok && p.parent == pid && !p.dead() {
			live = append(live, id)
		}
	}
	return live
}

// The command keeps the proof of life for as long as any of it lives, and the
// files that the user gave it under their numbers.
func TestFiles(t *testing.T) {
	proof, err := os.CreateTemp(t.TempDir(), "proof")
	if err != nil {
		t.Fatal(err)
	}
	script := `test "$(readlink /proc/self/fd/60)" = /dev/null || exit 8; ls -l /proc/self/fd | grep -q "` + proof.Name() + `" || exit 9`
	null, _ := os.Open(os.DevNull)
	unix.Dup3(int(null.Fd()), 60, 0)
	defer unix.Close(60)
	g, err := Start("/bin/bash", []string{"bash", "-c", script}, os.Environ())
	if err != nil {
		t.Skip(err)
	}
	g.Run(nil, proof, Now().Add(time.Minute), time.Second)
	if e := end(t, g); e.Status.ExitStatus() != 0 {
		t.Errorf("got %d: 8: a file of the user is gone; 9: the proof was not inherited", e.Status.ExitStatus())
	}
}

// crowd starts many processes, each in a session of its own.
func crowd(args []string) {
	n, _ := strconv.Atoi(args[0])
	for range n {
		c := exec.Command("sleep", "1000")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// It takes longer to clear away many processes than to kill them: what was killed in
// time is not late. Of what could not be killed only its end is known.
func TestLate(t *testing.T) {
	const deadline = Instant(1000)
	for _, test := range []struct {
		name  string
		h     *hunt
		gone  Instant
		late  time.Duration
		stood bool
	}{
		{"ended by itself in time", nil, 900, 0, false},
		{"ended by itself a little later", nil, 1010, 0, false},
		{"ended by itself later", nil, 1100, 100, true},
		{"killed in time, cleared away later", &hunt{began: 800, last: 900}, 5000, 0, false},
		{"killed later than it should", &hunt{began: 990, last: 1020}, 5000, 20, false},
		{"killed when somebody came to", &hunt{began: 1500, last: 1510}, 1600, 510, true},
		{"ended by itself when it was to be killed", &hunt{began: 990}, 1020, 20, false},
		{"could not be killed", &hunt{began: 800, last: 900, stuck: true}, 5000, 4000, false},
	} {
		if late, stood := test.h.late(test.gone, deadline, 10); late != test.late || stood != test.stood {
			t.Errorf("%s: late %d, stood still %v; want %d, %v", test.name, late, stood, test.late, test.stood)
		}
	}
}

func TestCrowd(t *testing.T) {
	g, out, _ := start(t, time.Hour, time.Minute, "act-crowd", "1500")
	if line, err := out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	g.Extend(Now().Add(2*time.Second), 400*time.Millisecond)
	e := end(t, g)
	if e.Why != Deadline || e.Late > busy.Times(time.Second) {
		t.Errorf("got %+v", e)
	}
	t.Logf("figure: 1500 processes were dead %v after the deadline, %v after they were asked to end", e.Late, e.After)
	last(t, out)
}

// threads is a process of many threads.
func threads(args []string) {
	n, _ := strconv.Atoi(args[0])
	var ready sync.WaitGroup
	for range n {
		ready.Add(1)
		go func() {
			runtime.LockOSThread()
			ready.Done()
			unix.Pause()
		}()
	}
	ready.Wait()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// Processes of many threads are found without a look at each thread, which takes longer
// than there is to kill them.
func TestThreads(t *testing.T) {
	c := exec.Command(os.Args[0], "act-threads", "2000")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	each, all := time.Hour, time.Hour
	for range 20 { // by turns, so that what else wants the processors slows both
		began := time.Now()
		kids(c.Process.Pid)
		each = min(each, time.Since(began))
		began = time.Now()
		found := below(nil)
		all = min(all, time.Since(began))
		if !slices.ContainsFunc(found, func(p process) bool { return p.pid == c.Process.Pid }) {
			t.Fatalf("%v was not found in %v", c.Process.Pid, found)
		}
	}
	if all > each/2 {
		t.Errorf("all processes were found in %v, the children of each thread in %v", all, each)
	}
	t.Logf("figure: all processes were found in %v, the children of each of 2000 threads in %v", all, each)
}

// tracer traces a process, as a debugger does whose user is away.
func tracer(args []string) {
	pid, _ := strconv.Atoi(args[0])
	runtime.LockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		panic(err)
	}
	if len(args) > 1 { // and has it stand still, until it is killed
		if err := unix.PtraceInterrupt(pid); err != nil {
			panic(err)
		}
		for said := false; ; said = true {
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &status, syscall.WALL, nil); err != nil || status.Exited() || status.Signaled() {
				os.Exit(0)
			}
			if !said {
				fmt.Println("ready")
			}
		}
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// trace has a debugger look at a process.
func trace(t *testing.T, pid int, still ...string) (stop func()) {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"act-tracer", strconv.Itoa(pid)}, still...)...)
	c.Stderr = os.Stderr
	said, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { c.Process.Kill(); c.Wait() })
	t.Cleanup(stop)
	if line, _ := bufio.NewReader(said).ReadString('\n'); line != "ready\n" {
		t.Skip("NOT TESTED: nothing can be traced here")
	}
	return stop
}

// A guard that a debugger holds is not waited for when the lease ends, though it had begun
// to kill.
func TestGuardTraced(t *testing.T) {
	g, out, _ := start(t, time.Hour, 300*time.Millisecond, "act-stubborn")
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	pid := g.command
	g.mu.Unlock()
	letGo := trace(t, pid) // so that the guard goes on killing
	g.Stop(Now().Add(time.Hour))
	for e := next(t, g); e.Alive == nil; e = next(t, g) {
	}
	trace(t, g.pid, "still")
	letGo()
	g.Stop(Now().Add(time.Second))
	if e := end(t, g); e.Why != NoGuard {
		t.Errorf("got %+v", e)
	}
	last(t, out)
}

// A process that a debugger keeps is named by its number. A guard that is stopped meanwhile is not
// waited for when the lease ends.
func TestTraced(t *testing.T) {
	g, out, _ := start(t, time.Hour, 300*time.Millisecond, "act-stubborn")
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	pid := g.command
	g.mu.Unlock()
	letGo := trace(t, pid)
	g.Stop(Now().Add(time.Hour))
	for {
		e := next(t, g)
		if e.Ended {
			t.Fatalf("got %+v while it is traced", e)
		}
		if e.Alive != nil {
			if len(e.Alive) != 1 || e.Alive[0].PID != pid || e.Alive[0].State != "Z" {
				t.Errorf("alive is %+v, want pid %d, dead", e.Alive, pid)
			}
			break
		}
	}
	syscall.Kill(g.pid, syscall.SIGSTOP)
	letGo()
	g.Stop(Now().Add(time.Second))
	if e := end(t, g); e.Why != NoGuard {
		t.Errorf("got %+v", e)
	}
	last(t, out)
}

// The listener is seen by its name.
func TestListenerName(t *testing.T) {
	if Listen() == nil {
		t.Fatal("no listener was started")
	}
	var names []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		names = nil
		for _, p := range near(os.Getpid()) {
			names = append(names, p.name)
		}
		if slices.Contains(names, listener) {
			return
		}
	}
	t.Errorf("the children are called %q, none %s", names, listener)
}

// Children that the program had before an exec made it what it is are not the
// command's: they live on when the program does the guard's work, and do not keep
// it waiting.
func TestChildrenFromBefore(t *testing.T) {
	r, w, _ := os.Pipe()
	c := exec.Command("sh", "-c", `sleep 1000 & echo "guard child $!" >&2; exec "$@"`, "sh", os.Args[0], "act-program", "1h", os.Args[0], "act-tree")
	c.Stderr = w
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	r.SetReadDeadline(time.Now().Add(time.Minute))
	log := bufio.NewReader(r)
	line, _ := log.ReadString('\n')
	child, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), "guard child "))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(child, syscall.SIGKILL) })
	expect(t, log, "started")
	if n, err := out.Read(make([]byte, 1)); n != 1 {
		t.Fatal(err)
	}
	for _, pid := range children(c.Process.Pid) {
		if pid != child {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	expect(t, log, "ended why 3 killed true late false")
	if p, ok := look(child); !ok || p.dead() {
		t.Error("a child from before was killed")
	}
}

// That no process is seen does not say that there is none: a child that is not
// reaped is there, whatever /proc shows.
func TestUnseenIsNotGone(t *testing.T) {
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	h := newHunt(0, nil, nil, func(int, syscall.WaitStatus) {})
	if h.gone() {
		t.Error("with a child that was not looked at all is gone")
	}
	h.better = Now().Add(-patience)
	if alive, news := h.survivors(); !news || len(alive) != 1 || alive[0] != (Survivor{}) {
		t.Errorf("got %v, %v, want one that is not seen", alive, news)
	}
	if _, news := h.survivors(); news {
		t.Error("it is told twice")
	}
	stranger := Survivor{}
	h.seen, h.refused = []process{{pid: c.Process.Pid, state: '?', hidden: true}}, true
	if alive, news := h.survivors(); !news || len(alive) != 1 || alive[0].PID != c.Process.Pid || alive[0] == stranger {
		t.Errorf("got %v, %v, want the child by its number", alive, news)
	}
}

// blind has a child from before the command's time and one of the command's, and a /proc
// that goes away. It prints whether it takes all to be gone, first with both, then with none.
func blind([]string) {
	before, of := exec.Command("sleep", "1000"), exec.Command("sleep", "1000")
	for _, c := range []*exec.Cmd{before, of} {
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	h := newHunt(0, map[process]bool{child(before.Process.Pid).identity(): true}, nil, func(int, syscall.WaitStatus) {})
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		panic(err)
	}
	if err := unix.Unmount("/proc", unix.MNT_DETACH); err != nil {
		panic(err)
	}
	fmt.Println(h.pass())
	for _, c := range []*exec.Cmd{before, of} {
		c.Process.Kill()
	}
	for !h.pass() {
	}
	fmt.Println(true)
}

// Where /proc goes away a program that does the guard's work takes nothing for gone that it
// cannot see. The listener for the terminal's keys is such a child from before.
func TestProcGoesAway(t *testing.T) {
	c := exec.Command(os.Args[0], "act-blind")
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Skipf("SKIPPED: no /proc can be taken away here: %v", err)
	}
	text, _ := io.ReadAll(out)
	if err := c.Wait(); err != nil || string(text) != "false\ntrue\n" {
		t.Errorf("all is gone: %q, want first not and then; error %v", text, err)
	}
}

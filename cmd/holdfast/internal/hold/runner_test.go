//go:build linux

package hold

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
)

// A pretence is a holding whose window is what a test says.
type pretence struct {
	ctx  context.Context
	ttl  time.Duration
	lose context.CancelCauseFunc

	mu  sync.Mutex
	end time.Time
}

func pretend(left time.Duration) *pretence {
	p := &pretence{ttl: time.Hour, end: time.Now().Add(left)}
	p.ctx, p.lose = context.WithCancelCause(context.Background())
	return p
}

func (p *pretence) Context() context.Context { return p.ctx }
func (p *pretence) TTL() time.Duration       { return p.ttl }
func (p *pretence) Proof() *os.File          { return nil }

func (p *pretence) Deadline() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end
}

func (p *pretence) move(left time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = time.Now().Add(left)
}

// guarded is a runner of a shell's script whose guard is ready.
func guarded(t *testing.T, script string) *runner {
	t.Helper()
	r := newRunner([]string{"sh", "-c", script}, []string{"x"}, &lease{})
	ready, over := r.startGuard("/bin/sh", os.Environ())
	t.Cleanup(over)
	if err := ready(); err != nil {
		t.Fatal(err)
	}
	return r
}

// pretendRun runs a shell's script under a pretence; before is called when the guard
// is ready, after when the command runs.
func pretendRun(t *testing.T, p *pretence, script string, before, after func(r *runner)) error {
	t.Helper()
	dir := t.TempDir()
	r := guarded(t, script+"; >"+dir+"/runs; exec sleep 1000")
	before(r)
	done := make(chan error, 1)
	go func() { done <- r.under(p, nil) }()
	begun := make(chan bool)
	go func() {
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if _, err := os.Stat(dir + "/runs"); err == nil {
				close(begun)
				return
			}
		}
	}()
	for {
		select {
		case <-begun:
			begun = nil
			after(r)
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			t.Fatal("it does not end")
		}
	}
}

func nothing(*runner) {}

// children are those of this process.
func children(t *testing.T) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 {
		t.Fatal("there is no list of children", err)
	}
	for _, name := range lists {
		text, _ := os.ReadFile(name) // of a thread that may have ended
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

const deaf = `trap "" TERM`

var broken = &holdfast.LostError{Name: "x", Token: 17, Reason: "broken by a test"}

// After a break the command has the window of that moment: heartbeats that come
// later move the session's, and the lock is given back when that of the break ends.
// The guard stands still, so that it is the window that ends the command.
func TestBrokenNotExtended(t *testing.T) {
	p := pretend(1500 * time.Millisecond)
	p.ttl = 2 * time.Second
	var began time.Time
	err := pretendRun(t, p, deaf, nothing, func(r *runner) {
		began = time.Now()
		if time.Until(p.Deadline()) < 500*time.Millisecond {
			t.Skip("SKIPPED: this machine took longer to start a command than the window of this test")
		}
		for _, pid := range children(t) {
			if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) == "hf-guard\n" {
				syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		r.lostOne(t.Context(), holdfast.Event{}) // as the library does, before the next heartbeat
		p.move(time.Hour)
		r.beat(t.Context(), holdfast.Event{})
		p.lose(broken)
	})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it was killed %v after the break, and the window of then had 1.5s", took)
	}
	if !isLost(err) || !strings.Contains(err.Error(), "stood still") {
		t.Errorf("got %v", err)
	}
}

// A window that gets shorter binds the command, also after a break, and a smaller TTL
// means less time from TERM to KILL.
func TestShortened(t *testing.T) {
	for _, lost := range []bool{false, true} {
		p := pretend(time.Hour)
		var began time.Time
		err := pretendRun(t, p, deaf, nothing, func(r *runner) {
			began = time.Now()
			if lost {
				r.lostOne(t.Context(), holdfast.Event{})
				p.lose(broken)
			}
			p.move(time.Second)
			r.shortened(t.Context(), holdfast.Event{TTL: 2 * time.Second})
		})
		if took := time.Since(began); !isLost(err) || took > 1500*time.Millisecond {
			t.Errorf("lost %v: it ended after %v with %v, and the window had 1s", lost, took, err)
		}
	}
}

// A window that gets shorter before the command is started binds it as well.
func TestShortenedBefore(t *testing.T) {
	p := pretend(time.Hour)
	p.ttl = time.Hour // still: the heartbeat with the smaller one is not answered
	var began time.Time
	err := pretendRun(t, p, ":", func(r *runner) {
		p.move(4 * time.Second)
		r.shortened(t.Context(), holdfast.Event{TTL: 6 * time.Second})
	}, func(*runner) { began = time.Now() })
	if began.IsZero() || !isLost(err) || !strings.Contains(err.Error(), "stopped in time (signal TERM)") {
		t.Errorf("it began at %v and ended with %v", began, err)
	}
	if took := time.Since(began); took < 2*time.Second { // of four, and a fifth of the TTL is for the end
		t.Errorf("it was ended after %v", took)
	}
}

// No command is started when its lease has ended, or was lost. The guard is not asked to: it
// might start the command before it hears of the loss.
func TestNotStarted(t *testing.T) {
	for name, p := range map[string]*pretence{
		"the lease had ended before sh could be started; nothing was run": pretend(0),
		"broken by a test; nothing was run":                               pretend(time.Hour),
	} {
		if strings.HasPrefix(name, "broken") {
			p.lose(broken)
		}
		begun, err := guarded(t, ":").begin(p, nil)
		if begun || !isLost(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("begun %v, error %v, want %s", begun, err, name)
		}
	}
}

// What could not be killed of a command is reported as what it is.
func TestSurvivors(t *testing.T) {
	var crowd []guard.Survivor
	for pid := range 12 {
		crowd = append(crowd, guard.Survivor{PID: pid + 1, Name: "x"})
	}
	for want, list := range map[string][]guard.Survivor{
		"pid 1 (sudo)":                                                   {{PID: 1, Name: "sudo", State: "S"}},
		"pid 1 (dd, which a debugger holds)":                             {{PID: 1, Name: "dd", State: "Z"}},
		`pid 1 (\x1b[2J) and pid 2 (which /proc does not show)`:          {{PID: 1, Name: "\x1b[2J"}, {PID: 2}},
		"pid 1 (a), pid 2 (dd, which hangs in the kernel) and pid 3 (c)": {{PID: 1, Name: "a"}, {PID: 2, Name: "dd", State: "D"}, {PID: 3, Name: "c"}},
		"a process that /proc does not show":                             {{}},
		"pid 1 (x), pid 2 (x), pid 3 (x), pid 4 (x), pid 5 (x), pid 6 (x), pid 7 (x), pid 8 (x), pid 9 (x), pid 10 (x) and 2 more": crowd,
	} {
		if got := survivors(list); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Each end of a command has its status and its words.
func TestVerdict(t *testing.T) {
	r := &runner{argv: []string{"./cmd"}, names: []string{"x"}}
	exit := func(n int) syscall.WaitStatus { return syscall.WaitStatus(n << 8) }
	for _, test := range []struct {
		e      guard.Event
		lost   error
		status int
		text   string
	}{
		{guard.Event{PID: 1, Status: exit(7)}, nil, 7, ""},
		{guard.Event{PID: 1, Why: guard.Told, Status: exit(0)}, broken, 75, `lost "x": broken by a test; ./cmd stopped (exit status 0)`},
		{guard.Event{PID: 1, Why: guard.Deadline, Killed: true, After: time.Second}, nil, 75, `lost "x": ./cmd stopped in time (signal KILL after 1s); run it again when the store is back: holdfast doctor`},
		{guard.Event{PID: 1, Why: guard.Deadline, Killed: true, After: time.Second, Late: time.Second, Stood: true}, nil, 75,
			`lost "x": this machine stood still, and ./cmd may have run on beside the next holder, and only what is fenced was protected`},
		{guard.Event{PID: 1, Why: guard.Deadline, Killed: true, After: 2 * time.Second, Late: time.Second}, nil, 75,
			`lost "x": ./cmd was dead only 1s after the lease had ended (signal KILL after 2s); it may have run on beside the next holder, and only what is fenced was protected`},
		{guard.Event{PID: 1, Status: exit(0), Late: time.Second}, nil, 75,
			`lost "x": ./cmd was dead only 1s after the lease had ended (exit status 0); it may have run on beside the next holder, and only what is fenced was protected`},
		{guard.Event{Why: guard.Told, Alive: []guard.Survivor{{PID: 9, Name: "sudo"}}}, broken, 75,
			`lost "x": broken by a test; pid 9 (sudo) could not be killed and may run on beside the next holder, and only what is fenced is protected`},
		{guard.Event{Why: guard.Deadline}, nil, 75, `lost "x": the lease had ended before ./cmd could be started; nothing was run`},
		{guard.Event{PID: 1, Why: guard.NoGuard, Killed: true}, nil, 75, `lost "x": the guard of ./cmd is gone or stood still; ./cmd was killed with all it started`},
	} {
		err := r.judge(test.e, test.lost)
		f, ok := err.(*cli.Failure)
		if !ok || f.Status != test.status || f.Text != test.text {
			t.Errorf("%+v:\n got %v\nwant %d %s", test.e, err, test.status, test.text)
		}
	}
}

// A run that stood still says so, also where its lease is short, and does not blame the store.
func TestStoodStill(t *testing.T) {
	p := pretend(time.Second)
	p.ttl = time.Second
	r := &runner{argv: []string{"./cmd"}, names: []string{"x"}, lease: &lease{}, log: new(cli.EventLog), held: p, tick: tick(p.ttl)}
	end := guard.Event{Ended: true, PID: 1, Why: guard.Deadline, Status: syscall.WaitStatus(syscall.SIGTERM)}
	for _, test := range []struct {
		still time.Duration
		want  string
	}{
		{300 * time.Millisecond, `lost "x": this process stood still for 3`},
		{0, `lost "x": ./cmd stopped in time (signal TERM); run it again when the store is back: holdfast doctor`},
	} {
		r.why, r.stood = "", time.Time{}
		r.ticked, r.beaten = time.Now().Add(-test.still), time.Now().Add(-650*time.Millisecond)
		told := stderrOf(t, func() { r.losing(150 * time.Millisecond) })
		err := r.judge(end, nil)
		if !strings.HasPrefix(err.Error(), test.want) || strings.Contains(told, "stood still") != (test.still > 0) {
			t.Errorf("stood still for %s: %v, after %s", test.still, err, told)
		}
	}
}

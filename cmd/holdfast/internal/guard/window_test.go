//go:build unix

package guard

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A command is not started when its lease has no time left in which it could be
// killed again.
func TestStartTooLate(t *testing.T) {
	for _, left := range []time.Duration{-time.Hour, 0, 90 * time.Millisecond} {
		g, err := Start("/bin/sh", []string{"sh", "-c", "exit 3"}, os.Environ())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(nil, nil, Now().Add(left), time.Second); err != nil {
			t.Fatal(err)
		}
		if e := next(t, g); !e.Ended || e.PID != 0 || e.Errno != 0 || e.Why != Deadline {
			t.Errorf("%v before the end of its lease: got %+v, want that nothing is run", left, e)
		}
	}
}

// What the program says before its guard has started the command is not lost.
func TestSaidBeforeTheStart(t *testing.T) {
	for _, test := range []struct {
		name string
		say  func(g *Guard)
		want func(e Event) bool
	}{
		{"a signal", func(g *Guard) { g.Signal(syscall.SIGTERM) },
			func(e Event) bool {
				return e.Why == Itself && e.Status.Signaled() && e.Status.Signal() == syscall.SIGTERM
			}},
		{"stop", func(g *Guard) { g.Stop(Now().Add(time.Hour)) }, func(e Event) bool { return e.Why == Told && e.PID == 0 }},
	} {
		g, err := Start("/bin/sleep", []string{"sleep", "1000"}, os.Environ())
		if err != nil {
			t.Fatal(err)
		}
		syscall.Kill(g.pid, syscall.SIGSTOP)
		for !standing(g.pid) {
			time.Sleep(time.Millisecond)
		}
		if err := g.Run(nil, nil, Now().Add(time.Hour), time.Minute); err != nil {
			t.Fatal(err)
		}
		test.say(g)
		syscall.Kill(g.pid, syscall.SIGCONT)
		if e := end(t, g); !test.want(e) {
			t.Errorf("%s: got %+v", test.name, e)
		}
	}
}

// A lease that ends earlier than it was said is obeyed.
func TestLower(t *testing.T) {
	g, out, _ := start(t, time.Hour, 10*time.Minute, "act-stubborn")
	out.ReadString('\n')
	end1 := Now().Add(time.Second)
	g.Extend(end1, 200*time.Millisecond)
	if e := next(t, g); !e.Stopping || e.Why != Deadline || e.Within > 200*time.Millisecond {
		t.Errorf("got %+v, want Stopping within 200ms", e)
	}
	end2 := Now().Add(100 * time.Millisecond) // again, when the command has been asked to end
	g.Extend(end2, 200*time.Millisecond)
	if e := end(t, g); e.Why != Deadline || !e.Killed || e.Late > 0 {
		t.Errorf("got %+v", e)
	}
	if at := last(t, out); at >= end2 {
		t.Errorf("lived until %v after the deadline", at.Sub(end2))
	}
}

// A command whose lease has ended at this moment is killed at once, however long it
// would have had after a break.
func TestStopAtTheEnd(t *testing.T) {
	g, out, _ := start(t, time.Hour, 10*time.Minute, "act-tree")
	out.ReadString('\n')
	over := Now()
	g.Stop(over)
	if e := end(t, g); e.Why != Told || !e.Killed {
		t.Errorf("got %+v", e)
	}
	if late := last(t, out).Sub(over); late > time.Second {
		t.Errorf("lived for %v after its lease had ended", late)
	}
	g.Stop(over.Add(time.Hour)) // and nothing extends it
}

// A stop that comes with a later end than is known extends nothing: the guard kills before
// the end that was known, and the program does where the guard stands still.
func TestStopExtendsNothing(t *testing.T) {
	for want, halt := range map[Why]func(guard int){
		Told: func(int) {},
		NoGuard: func(guard int) {
			syscall.Kill(guard, syscall.SIGSTOP)
			for !standing(guard) {
				time.Sleep(time.Millisecond)
			}
		},
	} {
		g, out, deadline := start(t, time.Second, 300*time.Millisecond, "act-stubborn")
		out.ReadString('\n')
		halt(g.pid)
		g.Stop(Now().Add(time.Hour))
		if e := end(t, g); e.Why != want || e.Late > 0 {
			t.Errorf("got %+v, want why %d, in time", e, want)
		}
		if at := last(t, out); at >= deadline {
			t.Errorf("why %d: lived until %v after the deadline", want, at.Sub(deadline))
		}
	}
}

// A guard that stood still goes by the lease as it is, not as it was when it was
// stopped.
func TestGuardResumed(t *testing.T) {
	for range resumed {
		t.Run("", func(t *testing.T) {
			g, out, first := start(t, time.Second, 100*time.Millisecond, "act-polite")
			out.ReadString('\n')
			syscall.Kill(g.pid, syscall.SIGSTOP)
			g.Extend(Now().Add(time.Hour), 100*time.Millisecond)
			time.Sleep(first.Sub(Now()) + pollInterval)
			syscall.Kill(g.pid, syscall.SIGCONT)
			select {
			case e := <-g.Events():
				t.Errorf("got %+v, though the lease goes on", e)
			case <-time.After(2 * pollInterval):
			}
			g.Signal(syscall.SIGTERM)
			if e := end(t, g); e.Why != Itself || e.Status.ExitStatus() != 3 {
				t.Errorf("got %+v", e)
			}
		})
	}
}

// handmade is a program's side whose guard is this test, and a process that lives.
func handmade(t *testing.T) (g *Guard, guard *conn) {
	t.Helper()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	past := Now() - 1
	return &Guard{pid: c.Process.Pid, events: make(chan Event, 16), skip: present(),
		conn: newConn(ours), running: true, deadline: past, due: past, killAfter: time.Second}, newConn(theirs)
}

// What the guard has said counts, though the program hears of it only when the lease
// is over and the guard still there: it stood still meanwhile.
func TestProgramResumed(t *testing.T) {
	for range 20 {
		g, guard := handmade(t)
		guard.send(Event{Killing: true}, nil)
		guard.send(Event{Ended: true, Why: Deadline, PID: 4711}, nil)
		go g.watch()
		if e := end(t, g); e.Why != Deadline || e.PID != 4711 {
			t.Fatalf("got %+v, want what the guard has said", e)
		}
		unix.Close(guard.fd)
	}
}

// A guard that has asked the command to end, and gets no processor to kill it in time, is neither
// gone nor does it stand still: the program kills, and the reason stays what the guard has said.
func TestGuardSlow(t *testing.T) {
	for _, want := range []Why{Deadline, NoGuard} {
		g, guard := handmade(t)
		c := exec.Command("sleep", "1000")
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		guard.send(Event{Started: true, PID: c.Process.Pid}, nil)
		guard.send(Event{Stopping: true, Why: Deadline}, nil)
		if want == NoGuard {
			unix.Close(guard.fd)
		} else {
			defer unix.Close(guard.fd)
		}
		go g.watch()
		e := end(t, g)
		if e.Why != want || !e.Killed || want == Deadline && e.After <= 0 {
			t.Errorf("got %+v, want why %d", e, want)
		}
		if c.Wait() == nil {
			t.Error("the command has ended by itself")
		}
	}
}

// What the guard has said counts, though it ends before it has heard all that it
// was told.
func TestGuardDiesMidway(t *testing.T) {
	g, guard := handmade(t)
	g.due = Now().Add(time.Hour)
	guard.send(Event{Ended: true, Why: Itself, PID: 4711}, nil)
	g.conn.send(order{Signal: syscall.SIGWINCH}, nil)
	unix.Close(guard.fd)
	go g.watch()
	if e := end(t, g); e.Why != Itself || e.PID != 4711 {
		t.Errorf("got %+v, want what the guard has said", e)
	}
}

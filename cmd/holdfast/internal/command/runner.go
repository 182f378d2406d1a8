package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
)

// A holding is what a command runs under: a lock, or a write of a state.
type holding interface {
	Context() context.Context // ends when it is lost
	Deadline() time.Time      // when it ends unless it is renewed
	TTL() time.Duration       // how long each renewal is good for
	Proof() *os.File          // what the command inherits; may be nil
}

// A runner runs one command under a holding.
type runner struct {
	argv    []string
	names   []string
	files   bool   // it is about files, not a store
	last    string // what is done when the command has ended, and all it started
	lease   *lease
	guard   *guard.Guard
	shared  bool // the command shares our process group and terminal
	signals chan os.Signal

	asked *killed // to end, while the command ran

	mu      sync.Mutex
	held    holding         // of a set of locks the first; nil before
	lost    context.Context // ends when it is lost; nil before
	until   time.Time       // end of the trust window
	beaten  time.Time       // when the last heartbeat that was answered was sent
	silence error           // why the ones since then were not
	ticked  time.Time       // when this process last ran, nearly
}

func newRunner(argv, names []string, l *lease) *runner {
	shared := guard.Terminal()
	return &runner{argv: argv, names: names, last: quoteAll(names) + " is released", lease: l, shared: shared, signals: catch(shared)}
}

// endOnSignal ends the wait for the lock by a signal, until stop is called.
func (r *runner) endOnSignal(cancel context.CancelCauseFunc) (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case sig := <-r.signals:
				if isStop(sig) {
					standStill()
				}
				if ends(sig) {
					cancel(&killed{sig.(syscall.Signal), sig == os.Interrupt && r.shared})
					return
				}
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(done); <-gone })
}

// beat is told of each heartbeat.
func (r *runner) beat(took time.Duration, until time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.silence = err
		return
	}
	r.silence, r.beaten, r.until = nil, time.Now().Add(-took), until
	// A lock that was broken is given back when the window of that moment ends,
	// although the session lives on.
	if r.lost != nil && r.lost.Err() == nil {
		r.guard.Extend(until, r.killAfter(r.held.TTL()))
	}
}

// killAfter is the time from TERM to KILL.
func (r *runner) killAfter(ttl time.Duration) time.Duration {
	if r.lease.killAfter.set {
		return min(r.lease.killAfter.Duration, ttl/3)
	}
	return ttl / 5
}

// startGuard starts the guard of the command while something else is done: ready
// waits for it, over ends it.
func (r *runner) startGuard(path string, env []string) (ready func() error, over func()) {
	started := make(chan error, 1)
	go func() {
		g, err := guard.Start(path, r.argv, env)
		r.guard = g
		started <- err
	}()
	ready = sync.OnceValue(func() error { return <-started })
	return ready, func() {
		if ready() == nil {
			r.guard.Close()
		}
	}
}

// hold runs the command under the locks and returns how it ended: nil, a
// failure with its status, or killed.
func (r *runner) hold(locks holdfast.Locks) error {
	tokens := make(map[string]int64)
	for i, name := range r.names {
		tokens[name] = locks[i].Token()
	}
	return r.under(locks[0], tokenEnvironment(r.names[0], tokens))
}

// tokenEnvironment is what a command finds of its locks, the first and all.
func tokenEnvironment(name string, tokens map[string]int64) []string {
	text, err := json.Marshal(tokens)
	if err != nil {
		panic(err)
	}
	return []string{
		"HOLDFAST_NAME=" + name,
		"HOLDFAST_TOKEN=" + strconv.FormatInt(tokens[name], 10),
		"HOLDFAST_LOCKS=" + string(text),
	}
}

// under is hold for any holding.
func (r *runner) under(h holding, env []string) error {
	r.mu.Lock()
	deadline := h.Deadline()
	if deadline.After(r.until) {
		r.until = deadline
	}
	if r.beaten.IsZero() {
		r.beaten = time.Now()
	}
	// The guard is told under the lock, so that no older deadline comes after a newer.
	r.held, r.lost = h, h.Context()
	err := r.guard.Run(env, h.Proof(), deadline, r.killAfter(h.TTL()))
	r.mu.Unlock()
	if err != nil {
		return fail(exitFault, "the guard does not answer: %v; nothing was run", err)
	}
	end := r.supervise(r.lost)
	return r.judge(end, context.Cause(r.lost))
}

// supervise is what happens while the command runs.
func (r *runner) supervise(lost context.Context) guard.Event {
	over := lost.Done()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	r.ticked = time.Now()
	for {
		select {
		case <-ticks.C:
			if len(r.guard.Events()) == 0 { // else it is told of first
				r.ticked = time.Now()
			}
		case e, ok := <-r.guard.Events():
			switch {
			case !ok:
				return guard.Event{Ended: true, Why: guard.NoGuard}
			case e.Stopping && e.Why == guard.Deadline:
				r.losing(e.Within)
			case e.Stopped && r.shared:
				r.standWith()
			case e.Ended:
				return e
			}
		case <-over:
			over = nil
			r.guard.Stop()
		case sig := <-r.signals:
			switch {
			case typed(sig) && r.shared: // the terminal has sent it to the command, too
			case isStop(sig):
				r.guard.Signal(sig.(syscall.Signal))
				standStill()
			default:
				if ends(sig) {
					r.asked = &killed{sig: sig.(syscall.Signal)}
				}
				r.guard.Signal(sig.(syscall.Signal))
			}
		}
	}
}

// tick is how often it is noted that this process is not standing still.
const tick = 250 * time.Millisecond

// standWith stops us if the command stands still, so that the shell knows and
// its fg continues both. One that fg has just continued, or is about to, does not.
func (r *runner) standWith() {
	for range 3 {
		if !r.guard.Standing() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	standStill()
}

func (r *runner) losing(left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	whoever := "the store has"
	if r.files {
		whoever = "the files have"
	}
	why := whoever + " not answered for " + brief(time.Since(r.beaten))
	switch still := time.Since(r.ticked); {
	case still > 4*tick:
		why = "this process stood still for " + brief(still)
	case r.silence != nil:
		why += " (" + redactURL(escape(r.silence.Error())) + ")"
	}
	say("losing %s: %s; stopping %s, %s left", quoteAll(r.names), why, escape(r.argv[0]), brief(left))
}

// judge turns the end of the command into ours.
func (r *runner) judge(e guard.Event, lost error) error {
	command, names := escape(r.argv[0]), quoteAll(r.names)
	if e.Errno != 0 {
		return cannotRun(r.argv[0], e.Errno)
	}
	if len(e.Alive) > 0 {
		say("%s: could not be killed and may still run: %s", command, pids(e.Alive))
	}
	switch {
	case e.Why == guard.NoGuard:
		return fail(exitLost, "lost %s: the guard of %s is gone or stood still; %s was killed with all it started", names, command, command)
	case e.Late:
		return fail(exitLost, "lost %s: this machine stood still, and %s may have run on beside the next holder; only what is fenced was protected", names, command)
	case e.Why == guard.Deadline && r.files:
		return fail(exitLost, "lost %s: %s stopped in time (%s); run it again when the files can be written", names, command, manner(e))
	case e.Why == guard.Deadline:
		return fail(exitLost, "lost %s: %s stopped in time (%s); run it again when the store is back: holdfast doctor", names, command, manner(e))
	case e.Why == guard.Told:
		return fail(exitLost, "lost %s: %s; %s stopped (%s)", names, reasonOf(lost), command, manner(e))
	}
	if e.Left > 0 {
		how := "asked to end"
		if e.Killed {
			how = "killed"
		}
		say("%s left %d of its processes running; %s before %s", command, e.Left, how, r.last)
	}
	switch s := e.Status; {
	case s.Signaled():
		return &killed{s.Signal(), s.Signal() == syscall.SIGINT && r.shared}
	case s.ExitStatus() != 0:
		return &failure{s.ExitStatus(), ""}
	}
	return nil
}

// manner is how a command ended that was asked to.
func manner(e guard.Event) string {
	switch {
	case e.Killed:
		return fmt.Sprintf("signal KILL after %s", brief(e.After))
	case e.Status.Signaled():
		return "signal " + signalName(e.Status.Signal())
	}
	return fmt.Sprintf("exit status %d", e.Status.ExitStatus())
}

// reasonOf is a loss as the library tells it, without the name and token that
// stand in front of it.
func reasonOf(err error) string {
	if err == nil || !errors.Is(err, holdfast.ErrLost) {
		return "it was given back"
	}
	text := redactURL(err.Error())
	if _, why, ok := strings.Cut(text, " lost: "); ok {
		text = why
	}
	return escape(text)
}

func pids(list []int) string {
	s := "pid"
	for i, pid := range list {
		if i == 10 {
			return s + fmt.Sprintf(" and %d more", len(list)-i)
		}
		s += " " + strconv.Itoa(pid)
	}
	return s
}

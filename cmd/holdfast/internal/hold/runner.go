package hold

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
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
	argv     []string
	names    []string
	files    bool   // it is about files, not a store
	last     string // what is done when the command and all it started have ended
	kept     string // what is true until then
	again    bool   // after a loss the command is run again
	started  func() // called when the command runs; may be nil
	lease    *lease
	guard    *guard.Guard
	log      *cli.EventLog
	terminal bool // there is one
	shared   bool // the command shares our process group and terminal
	keys     *guard.Keys
	signals  chan os.Signal
	decided  chan decision
	deciding int // signals that may have come from a key, not decided yet

	asked *cli.Killed // the signal that asked it to end, while the command ran
	rest  *rest       // processes that could not be killed; nil: there are none

	tick   time.Duration // how often ticked is set
	ticked time.Time     // when this process last ran, roughly
	still  time.Duration // how long it last stood still
	stood  time.Time     // when that ended
	why    string        // set if that is why the lease was not renewed

	mu      sync.Mutex
	held    holding         // the first of a set of locks; nil: none
	lost    context.Context // ends when it is lost
	until   guard.Instant   // end of the trust window, once the lock is lost; 0: it is not
	ttl     time.Duration   // to which the trust window was shortened; 0: that of held
	beaten  time.Time       // when the last heartbeat that was answered was sent
	silence error           // why later ones were not answered
}

// guardable returns an error if commands cannot be guarded here, before anybody has to wait.
func guardable() error {
	if err := guard.Usable(); err != nil {
		return cli.Fail(cli.ExitFault, "%v%s", err, nothingRun)
	}
	return nil
}

func newRunner(argv, names []string, l *lease) *runner {
	terminal := guard.Terminal()
	shared := terminal && guard.Joins
	var keys *guard.Keys
	if shared {
		keys = guard.Listen()
	}
	return &runner{
		keys: keys, decided: make(chan decision, 16), log: new(cli.EventLog),
		argv: argv, names: names, last: cli.QuoteAll(names) + " is released", kept: cli.QuoteAll(names) + " stays held",
		lease: l, terminal: terminal, shared: shared,
	}
}

// endOnSignal makes a signal end the wait for the lock, until stop is called.
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
					cancel(&cli.Killed{Signal: sig.(syscall.Signal), Really: sig == os.Interrupt && r.terminal})
					return
				}
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(done); <-gone })
}

// beat is called after each heartbeat. It sends the guard the window as it is now, not as it was
// when the heartbeat was answered, so that a late call does no harm.
func (r *runner) beat(_ context.Context, e holdfast.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Err != nil {
		r.silence = e.Err
		return
	}
	r.silence, r.ttl, r.beaten = nil, 0, time.Now().Add(-e.Took)
	if r.held != nil && r.until == 0 {
		r.guard.Extend(r.window(), r.killAfter())
	}
}

// shortened is called with a smaller TTL before the heartbeat that carries it is sent, and tells
// the guard. From that heartbeat on others go by the smaller TTL.
func (r *runner) shortened(_ context.Context, e holdfast.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ttl = e.TTL
	switch {
	case r.held == nil: // begin will see it
	case r.until != 0:
		r.until = min(r.until, r.window())
		r.guard.Stop(r.until)
	default:
		r.guard.Extend(r.window(), r.killAfter())
	}
}

// lostOne is called for each lock that is lost. A broken lock is given back when the window of that
// moment ends, although the session lives on. The next heartbeat moves the window, so the guard has
// to learn of the loss before it.
func (r *runner) lostOne(context.Context, holdfast.Event) { r.stop() }

// stop makes the guard end a command that has lost its lock, within the window as it was when the
// loss was first known.
func (r *runner) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held != nil && r.until == 0 {
		r.until = r.window()
		r.guard.Stop(r.until)
	}
}

// window is the end of the trust window as it is now; r.mu is held.
func (r *runner) window() guard.Instant {
	now := guard.Now() // first: if the machine sleeps here, the end is too early, not too late
	return now.Add(time.Until(r.held.Deadline()))
}

// killAfter is the time from TERM to KILL; r.mu is held.
func (r *runner) killAfter() time.Duration {
	ttl := r.held.TTL()
	if r.lease.atLeast.Given { // the TTL of such a lease is what is left of its time
		ttl = min(ttl, max(r.lease.ttl.Duration, holdfast.DefaultTTL))
	}
	if r.ttl != 0 {
		ttl = min(ttl, r.ttl)
	}
	if r.lease.killAfter.Given {
		return min(r.lease.killAfter.Duration, ttl/3)
	}
	return ttl / 5
}

// startGuard starts the guard of the command while it catches signals, each of which takes two
// threads a turn. The caller goes on: ready waits for the guard, over ends it.
func (r *runner) startGuard(path string, env []string) (ready func() error, over func()) {
	started := make(chan error, 1)
	go func() {
		g, err := guard.Start(path, r.argv, env)
		r.guard = g
		started <- err
	}()
	r.signals = catch(r.shared)
	ready = sync.OnceValue(func() error { return <-started })
	return ready, func() {
		if ready() == nil {
			r.guard.Close()
		}
	}
}

// hold runs the command under the locks and returns how it ended: nil, a
// failure with its status, or killed.
func (r *runner) hold(locks []*holdfast.Lock) error {
	tokens := make(map[string]int64)
	for i, name := range r.names {
		tokens[name] = locks[i].Token()
	}
	return r.under(locks[0], tokenEnvironment(r.names[0], tokens))
}

// tokenEnvironment is what a command's environment says of its locks: the first, and all.
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
	begun, err := r.begin(h, env)
	if begun {
		end := r.supervise()
		err = r.judge(end, context.Cause(r.lost))
	}
	r.mu.Lock()
	r.held, r.lost, r.until = nil, nil, 0
	r.mu.Unlock()
	return err
}

// begin makes the guard start the command, unless the lease is over.
func (r *runner) begin(h holding, env []string) (begun bool, err error) {
	r.mu.Lock()
	r.held, r.lost = h, h.Context() // from here on a loss is noted
	r.tick, r.why = tick(h.TTL()), ""
	if r.beaten.IsZero() {
		r.beaten = time.Now()
	}
	r.mu.Unlock()
	lost := r.lost.Err() != nil // this may itself find the loss, and report it
	r.mu.Lock()
	defer r.mu.Unlock()
	if lost || r.until != 0 {
		return false, r.notStarted(context.Cause(r.lost))
	}
	until, killAfter := r.window(), r.killAfter()
	if !guard.Startable(guard.Now(), until, killAfter) {
		return false, r.notStarted(nil)
	}
	// The deadline is sent under r.mu, so that no older deadline comes after a newer one.
	if err := r.guard.Run(env, h.Proof(), until, killAfter); err != nil {
		return false, cli.Fail(cli.ExitFault, "the guard does not answer: %v; nothing was run", err)
	}
	return true, nil
}

// notStarted is the failure of a command whose lease was over before it could be started.
func (r *runner) notStarted(lost error) error {
	if errors.Is(lost, holdfast.ErrLost) {
		return cli.Fail(cli.ExitLost, "lost %s: %s; nothing was run", cli.QuoteAll(r.names), reasonOf(lost))
	}
	return cli.Fail(cli.ExitLost, "lost %s: the lease had ended before %s could be started; nothing was run", cli.QuoteAll(r.names), cli.Escape(r.argv[0]))
}

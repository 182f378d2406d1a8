package hold

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-lock/holdfast/driver"
)

// tick is how often this process notes that it runs: often enough, for a lease of ttl, to
// tell a process that stood still from a store that did not answer.
func tick(ttl time.Duration) time.Duration {
	return max(min(250*time.Millisecond, ttl/12), 20*time.Millisecond)
}

// supervise handles what happens while the command runs. It returns how the command ended,
// or, with processes that are still alive, that the lease ended.
func (r *runner) supervise() guard.Event {
	over := r.lost.Done()
	ticks := time.NewTicker(r.tick)
	defer ticks.Stop()
	r.ticked = time.Now()
	for {
		select {
		case <-ticks.C:
			r.stillness()
			r.ticked = time.Now()
			r.rest.remind()
		case e, ok := <-r.guard.Events():
			if !ok {
				return guard.Event{Ended: true, Why: guard.NoGuard}
			}
			if e.Ended {
				r.rest = nil
				return e
			}
			r.heard(e)
		case <-over:
			over = nil
			r.stop()
		case sig := <-r.signals:
			r.signalled(sig)
		case d := <-r.decided:
			if r.deciding--; !d.typed {
				r.pass(d.sig)
			}
		}
		if r.rest != nil && r.rest.hopeless() && !r.again {
			return guard.Event{Ended: true, Why: guard.Told, Alive: r.rest.alive}
		}
	}
}

// heard acts on what the guard says, except for the end.
func (r *runner) heard(e guard.Event) {
	switch {
	case e.Started && r.started != nil:
		r.started()
	case e.Stopping && e.Why == guard.Deadline:
		r.losing(e.Within)
	case e.Stopped && r.shared:
		r.standWith()
	case e.Alive != nil:
		if r.rest == nil {
			r.rest = &rest{r: r, since: time.Now()}
		}
		r.rest.alive = e.Alive
		r.rest.tell()
	}
}

func (r *runner) signalled(sig os.Signal) {
	switch {
	case r.rest != nil && ends(sig):
		r.rest.insist(sig.(syscall.Signal))
	case r.shared && isKey(sig): // from the terminal, which has sent it to the command, too?
		r.deciding++
		go func() {
			sig := sig.(syscall.Signal)
			r.decided <- decision{sig, r.keys.Typed(sig)}
		}()
	case isStop(sig):
		r.guard.Signal(sig.(syscall.Signal))
		standStill()
	default:
		r.pass(sig.(syscall.Signal))
	}
}

// A decision says whether a signal came from a key, which has sent it to the command, too.
type decision struct {
	sig   syscall.Signal
	typed bool
}

// settle waits, after the command has ended, for decisions about signals that came while it
// ran. They belong to that command, and not to the one of the next term.
func (r *runner) settle() {
	for ; r.deciding > 0; r.deciding-- {
		if d := <-r.decided; !d.typed && ends(d.sig) {
			r.asked = &cli.Killed{Signal: d.sig}
		}
	}
}

// pass passes a signal on.
func (r *runner) pass(sig syscall.Signal) {
	if ends(sig) {
		r.asked = &cli.Killed{Signal: sig}
	}
	r.guard.Signal(sig)
}

// standWith stops this process if the command is stopped, so that the shell knows and its fg
// continues both. It does not if fg has just continued the command, or is about to.
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
	why := whoever + " not answered for " + cli.Brief(time.Since(r.beaten))
	switch r.stillness(); {
	case time.Since(r.stood) < 4*r.tick:
		r.why = "this process stood still for " + cli.Brief(r.still)
		why = r.why
	case r.silence != nil:
		why += " (" + driver.Redact(cli.Escape(r.silence.Error())) + ")"
	}
	for _, name := range r.names {
		r.log.Event("losing", "name", name, "reason", why, "left", left)
	}
	cli.Say("losing %s: %s; stopping %s, %s left", cli.QuoteAll(r.names), why, cli.Escape(r.argv[0]), cli.Brief(left))
}

// stillness notes that this process has stood still, if it just has.
func (r *runner) stillness() {
	if still := time.Since(r.ticked); still > 3*r.tick {
		r.still, r.stood = still, time.Now()
	}
}

// A rest is the processes of a command that could not be killed. The lock is kept for as long
// as they live and the lease lasts: nobody else may begin beside them.
type rest struct {
	r      *runner
	alive  []guard.Survivor
	since  time.Time
	told   time.Time
	warned bool // a signal has asked to end the wait
}

func (s *rest) tell() {
	s.told = time.Now()
	when := ""
	if d := time.Since(s.since); d > time.Second {
		when = " after " + cli.Brief(d)
	}
	command := cli.Escape(s.r.argv[0])
	if s.lost() {
		cli.Say("%s: %s cannot be killed, and may run on beside the next holder", command, survivors(s.alive))
		return
	}
	cli.Say("%s: %s cannot be killed, and still runs%s; %s until it has ended", command, survivors(s.alive), when, s.r.kept)
}

// lost reports whether the lock is lost, hopeless whether it may have gone to another holder.
func (s *rest) lost() bool {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.r.until != 0
}

func (s *rest) hopeless() bool {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return s.r.until != 0 && guard.Now() >= s.r.until
}

// remind repeats each minute what is still there.
func (s *rest) remind() {
	if s != nil && time.Since(s.told) >= time.Minute {
		s.tell()
	}
}

// insist handles a signal that is meant to end the wait for them. The second one does, and
// then nothing is given back: the lease ends by itself.
func (s *rest) insist(sig syscall.Signal) {
	if !s.warned {
		s.warned = true
		cli.Say("waiting for %s, so that nobody begins beside it; a second signal gives up, and %s until its lease ends by itself", survivors(s.alive), s.r.kept)
		return
	}
	if cause := context.Cause(s.r.lost); cause != nil {
		cli.Say("lost %s: %s; gave up on %s, which may still run", cli.QuoteAll(s.r.names), reasonOf(cause), survivors(s.alive))
	} else {
		cli.Say("gave up on %s, which may still run; %s until its lease ends by itself, in %s at most", survivors(s.alive), s.r.kept, cli.Brief(s.r.held.TTL()))
	}
	os.Exit(cli.StatusOf(&cli.Killed{Signal: sig}))
}

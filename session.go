package holdfast

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// A session is this client's life in the store: one record, kept by one
// heartbeat for all its locks. It is trusted until the moment before its last
// successful heartbeat was sent, plus TTL, less the margin; at that moment,
// without any I/O in the way, all its locks are lost. Nobody may bury it
// earlier than the TTL. Loss is final: the client goes on with a new session.
//
// The trust window counted from before sending is River's; one session for all
// locks of a process is etcd's.
type session struct {
	c     *Client
	id    string
	until atomic.Int64 // end of the trust window, an instant; never: not open
	moved chan struct{}
	wake  chan struct{} // beat now
	ended chan struct{} // closed by end: no more beats
	ready chan struct{} // closed once open, or over before it opened
	idle  chan struct{} // closed when the beat loop has returned
	proof *proof        // this host's proof of its life, or nil

	// Guarded by c.mu.
	opening  bool
	opened   bool
	ending   bool   // no more beats
	over     bool   // lost or ended
	claims   int64  // claim numbers used
	why      string // of the loss
	ttl      time.Duration
	last     core.SessionRecord // as last known to stand in the store
	version  int64              // of last; 0: not known to be written
	attempts []attempt          // beats sent since
	lastSent core.Instant       // of the latest attempt
	failing  error              // why the latest attempt was not answered
	asking   bool               // an attempt is under way
	detach   time.Duration      // the last beat makes it a hold without a process for that long
	alone    chan struct{}      // closed when that beat has won
}

// An attempt is one beat that was sent. Its nonce tells it from every other.
type attempt struct {
	record core.SessionRecord
	sent   core.Instant
}

// current returns the client's session, a new one if there is none; c.mu is
// held.
func (c *Client) current() *session {
	if c.sess == nil {
		c.sess = &session{
			c: c, id: c.newID(),
			moved: make(chan struct{}, 1), wake: make(chan struct{}, 1),
			ended: make(chan struct{}), ready: make(chan struct{}), idle: make(chan struct{}),
		}
		c.sess.until.Store(int64(core.Never))
	}
	return c.sess
}

// left is how much of the trust window is left; it is not positive when it is
// over.
func (s *session) left() time.Duration {
	until := core.Instant(s.until.Load())
	if until == core.Never {
		return 0
	}
	return until.Sub(s.c.now())
}

func (s *session) trusted() bool { return s.trustedAt(s.c.now()) }

func (s *session) trustedAt(t core.Instant) bool { return t < core.Instant(s.until.Load()) }

// open writes the session's first record in one call with the first claim, and
// returns what became of the claim. If the session did not open in that call it
// goes on trying by itself.
func (s *session) open(claim func() (Write, bool)) *swap {
	c := s.c
	own := c.proof.make(s.id) // before anyone can see the session
	ttl := c.opts.TTL
	if ttl == 0 {
		ctx, cancel := context.WithTimeout(c.ctx, DefaultTTL)
		var err error
		if ttl, err = c.readTTL(ctx, c.glance); err != nil {
			ttl = DefaultTTL
		}
		cancel()
	}
	sw := &swap{err: ErrClosed}
	c.mu.Lock()
	if s.over { // the client was closed meanwhile
		c.mu.Unlock()
		c.proof.drop(own)
		return sw
	}
	s.proof, s.ttl = own, ttl
	beat, first, _ := s.next(ttl)
	sw.sent = first.sent
	writes := []Write{beat}
	w, ok := claim()
	if ok {
		writes = append(writes, w)
	}
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(c.ctx, ttl/3)
	defer cancel()
	outs, err := c.store.CompareAndSwap(ctx, writes)
	var out Outcome
	if sw.err = err; err == nil {
		out, err = outs[0], outs[0].Err
		if ok {
			sw.out, sw.err = outs[1], outs[1].Err
		}
	}
	s.answer(first, out, err)
	s.trace(first.sent, err)
	c.spawn(s.beats)
	c.spawn(s.guardWindow)
	return sw
}

// next is a fresh attempt and its write; c.mu is held. A smaller TTL shrinks
// the window before the attempt is sent: waiters go by that TTL as soon as the
// store has it, whether or not its answer arrives. The caller reports a window
// that was shortened before it sends the attempt.
func (s *session) next(ttl time.Duration) (w Write, a attempt, shortened bool) {
	t := s.c.now()
	if s.detach > 0 {
		ttl = core.DetachedTTL(s.detach)
	}
	ttl = ttl.Truncate(time.Millisecond) // others go by what the record says
	if ttl < s.ttl && s.opened {
		until := t.Add(ttl - Margin(ttl))
		if shortened = until < core.Instant(s.until.Load()); shortened {
			s.until.Store(int64(until))
			signal(s.moved)
		}
	}
	rec := core.SessionRecord{
		Owner: &s.c.owner, TTL: ttl.Milliseconds(), Grace: s.c.opts.Grace.Milliseconds(),
		Beat: s.last.Beat + 1, Nonce: s.c.newNonce(), At: time.Now().UnixMicro(), Detached: s.detach > 0,
	}
	if s.detach > 0 && s.c.machine == nil {
		rec.Boot, rec.Up = bootID(), up().Microseconds()
	}
	old := s.version
	if old == 0 {
		old = IfEmpty
	}
	a = attempt{rec, t}
	s.attempts = append(s.attempts, a)
	s.lastSent = t
	return Write{Key: Key{Sessions, s.id}, Old: old, Value: rec.Encode()}, a, shortened
}

// beats sends the heartbeats until the session is over.
func (s *session) beats() {
	defer close(s.idle)
	c := s.c
	for {
		c.mu.Lock()
		again := s.failing != nil
		wait := s.ttl / 3
		over := s.over
		c.mu.Unlock()
		if over {
			return
		}
		if again {
			wait = c.jitter(min(max(wait/10, 50*time.Millisecond), time.Second))
		}
		t := c.machine.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.wake:
		case <-s.ended:
			t.Stop()
			return
		case <-c.ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
		if !s.beat() {
			return
		}
	}
}

// beat sends heartbeats until one is answered and leaves nothing to be read,
// or one is not answered. It says whether the session goes on.
func (s *session) beat() bool {
	c := s.c
	for {
		c.mu.Lock()
		ttl := s.ttl
		if s.ending {
			c.mu.Unlock()
			return false
		}
		if s.over || s.opened && !s.trusted() {
			c.mu.Unlock()
			s.lose("", nil)
			return false
		}
		bound, opened := ttl/3, s.opened
		if opened {
			bound = min(bound, s.left())
		}
		s.asking = true
		c.mu.Unlock()

		ctx, cancel := context.WithTimeout(c.ctx, bound)
		if c.opts.TTL == 0 && opened {
			ask, cancel := context.WithTimeout(ctx, bound/3)
			if set, err := c.readTTL(ask, c.glance); err == nil {
				ttl = set
			}
			cancel()
		}
		c.mu.Lock()
		if s.over || s.opened && !s.trusted() { // a store may answer later than it was given time for
			c.mu.Unlock()
			cancel()
			s.lose("", nil)
			return false
		}
		w, a, shortened := s.next(ttl)
		late, failing := !s.opened && a.sent.Sub(s.attempts[0].sent) >= s.ttl, s.failing
		c.mu.Unlock()
		if late { // it may have opened and been declared dead, and its tombstone been swept
			cancel()
			s.lose("no answer to its first heartbeat", failing)
			return false
		}
		if t := c.opts.Trace; shortened && t != nil && t.Shortened != nil {
			t.Shortened(time.Now().Add(s.left()), ttl)
		}
		ctx, done := context.WithTimeout(ctx, a.record.Duration()/3) // a smaller TTL leaves less time
		outs, err := c.store.CompareAndSwap(ctx, []Write{w})
		cancel()
		done()
		var out Outcome
		if err == nil {
			out = outs[0]
		}
		again := s.answer(a, out, err)
		s.trace(a.sent, err)
		c.mu.Lock()
		over := s.over
		c.mu.Unlock()
		if over {
			return false
		}
		if !again {
			if err == nil {
				c.afterBeat(a.sent)
			}
			return true
		}
	}
}

func (s *session) trace(sent core.Instant, err error) {
	if t := s.c.opts.Trace; t != nil && t.Beat != nil {
		t.Beat(s.c.now().Sub(sent), time.Now().Add(s.left()), err)
	}
}

// answer takes in what became of an attempt and reports whether another beat
// is wanted at once.
func (s *session) answer(a attempt, out Outcome, err error) (again bool) {
	c := s.c
	c.mu.Lock()
	s.asking = false
	if s.over {
		c.unlock()
		return false
	}
	if s.failing = err; err != nil {
		gone := !s.opened && s.c.now().Sub(s.attempts[0].sent) >= s.ttl
		c.unlock()
		c.log.Warn("heartbeat not answered", "session", s.id, "left", s.left(), "err", err)
		if gone {
			s.lose("no answer to its first heartbeat", err)
		}
		return false
	}
	if out.Won {
		s.accept(a, out.Record.Version)
		c.unlock()
		return false
	}
	rec, err := core.DecodeSession(out.Record.Value)
	if err != nil {
		c.unlock()
		s.lose("its record was overwritten", err)
		return false
	}
	why := ""
	switch {
	case rec.Dead != 0:
		why = "declared dead by " + rec.By
		if rec.Why != "" {
			why += " (" + rec.Why + ")"
		}
	case len(out.Record.Value) == 0 && s.version == 0:
		// Emptied before our first record came: try again.
		c.unlock()
		return true
	case len(out.Record.Value) == 0:
		why = "its record has vanished from the store"
	case s.version != 0 && rec.SameBeat(s.last):
		s.version = out.Record.Version // a mark or a revocation on our last beat
		again = true
	default:
		mine := false
		for _, a := range s.attempts {
			if rec.SameBeat(a.record) {
				s.accept(a, out.Record.Version)
				again, mine = s.detach == 0, true
				break
			}
		}
		switch {
		case mine:
		case rec.Beat < s.last.Beat:
			why = "the store has lost a heartbeat that it had confirmed"
		case rec.Beat == 0:
			why = "declared missing by " + suspectedBy(rec)
		default:
			why = "another process uses this session: cloned machine?"
		}
	}
	suspected := rec.Suspected != nil
	c.unlock()
	if why != "" {
		s.lose(why, nil)
		return false
	}
	if suspected {
		c.log.Info("suspected, answering with a heartbeat", "session", s.id, "by", rec.Suspected.By)
	}
	for _, r := range rec.Revoked {
		c.revoke(s, r)
	}
	return again
}

func suspectedBy(r core.SessionRecord) string {
	if r.Suspected == nil {
		return "another process"
	}
	return r.Suspected.By
}

// accept takes an attempt for the record that stands; c.mu is held. The window
// never moves backwards, and never after it has ended.
func (s *session) accept(a attempt, version int64) {
	s.last, s.version = a.record, version
	s.attempts = nil
	s.ttl = time.Duration(a.record.TTL) * time.Millisecond
	until := a.sent.Add(s.ttl - Margin(s.ttl))
	if !s.opened {
		s.opened = true
		s.c.wrote = s.ttl
		s.until.Store(int64(until))
		close(s.ready)
		for _, p := range s.c.places {
			if p.known {
				s.c.compare(p) // what was seen granted before could not be believed
			}
		}
		s.c.kickAll()
	} else if s.trusted() {
		s.until.Store(max(s.until.Load(), int64(until)))
	}
	signal(s.moved)
	if a.record.Detached && s.alone != nil {
		close(s.alone)
		s.alone = nil
	}
}

// guardWindow ends the session when its window does. It looks at least once a
// second, since a timer does not run while the machine sleeps.
func (s *session) guardWindow() {
	select {
	case <-s.ready:
	case <-s.ended:
		return
	case <-s.c.ctx.Done():
		return
	}
	timer := s.c.machine.NewTimer(0)
	defer timer.Stop()
	for {
		left := s.left()
		if left <= 0 {
			s.lose("", nil)
			return
		}
		timer.Reset(min(left, time.Second))
		select {
		case <-timer.C:
			if _, costs := s.c.store.(CostlyWatcher); !costs {
				s.c.mu.Lock()
				s.c.startHints() // a session that lasts wants to hear at once of a break
				s.c.mu.Unlock()
			}
		case <-s.moved:
		case <-s.ended:
			return
		case <-s.c.ctx.Done():
			return
		}
	}
}

// lose ends belief in everything this session holds, for ever. The reason is
// worked out if none is given.
func (s *session) lose(why string, err error) {
	c := s.c
	c.mu.Lock()
	if s.over {
		c.mu.Unlock()
		return
	}
	s.over = true
	if why == "" {
		silent := s.ttl - Margin(s.ttl) - s.left()
		switch {
		case s.failing != nil || s.asking && s.left() > -Margin(s.ttl)/2: // else it came late to see it
			why, err = fmt.Sprintf("no heartbeat answered for %s", core.Short(silent)), s.failing
		default:
			why = fmt.Sprintf("this process stood still for %s", core.Short(silent))
		}
	}
	s.why = why
	opened := s.opened
	s.until.Store(int64(core.Never))
	if c.sess == s {
		c.sess = nil
	}
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
	if opened || len(s.attempts) > 0 {
		c.deaths.Lose(s.id, s.lastSent.Add(s.ttl+c.opts.Grace))
	}
	for _, p := range c.places {
		c.sessionOver(p, s, why, err)
	}
	c.unlock()
	if opened {
		c.log.Warn("session lost", "session", s.id, "why", why, "err", err)
	}
	c.proof.drop(s.proof)
}

// answered reports whether the store has answered the latest heartbeat, or may still do so.
func (s *session) answered() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.opened && s.failing == nil && !(s.asking && s.c.now().Sub(s.lastSent) >= time.Second)
}

// end ends the session of a client that closes, within limit. If clean, no claim of
// it can be left anywhere, and its record is emptied; else it leaves a tombstone,
// which voids whatever is left once grace is over.
func (s *session) end(clean bool, grace, limit time.Duration) error {
	c := s.c
	c.mu.Lock()
	if s.over {
		c.mu.Unlock()
		return nil
	}
	s.ending = true
	close(s.ended)
	if !s.opened && len(s.attempts) == 0 {
		s.over = true
		c.mu.Unlock()
		c.proof.drop(s.proof)
		return nil
	}
	c.mu.Unlock()
	began := c.now()
	timer := c.machine.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-s.idle: // with the answer to a beat that is on its way
	case <-timer.C:
	}
	c.mu.Lock()
	if s.over {
		c.mu.Unlock()
		return nil // lost meanwhile
	}
	s.over = true
	old := s.version
	clean = clean && s.opened && len(s.attempts) == 0
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(c.ctx, max(limit-c.now().Sub(began), 100*time.Millisecond))
	defer cancel()
	var err error
	if clean {
		var outs []Outcome
		outs, err = c.store.CompareAndSwap(ctx, []Write{{Key: Key{Sessions, s.id}, Old: old, Lazy: true}})
		if err == nil && outs[0].Won {
			c.proof.drop(s.proof)
			return nil
		}
	}
	err = c.buryOwn(ctx, s, grace)
	if err != nil && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("holdfast: close: the session is not confirmed as ended, it ends by itself in %s: %w", core.Short(s.ttl), err)
	}
	c.proof.drop(s.proof)
	return err
}

// signal wakes whoever waits on a channel of one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

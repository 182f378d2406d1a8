package holdfast

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/liveness"

	"github.com/holdfast-lock/holdfast/driver"
)

// A session is this client's lease.Session with the goroutines that keep it: one sends its
// heartbeats, one ends it when its window does.
type session struct {
	c     *Client
	id    string
	life  lease.Session   // guarded by c.mu
	until atomic.Int64    // the end of its window, readable without c.mu
	due   atomic.Int64    // when the next heartbeat is sent; Never: one is being sent
	moved chan struct{}   // the window has moved
	wake  chan struct{}   // beat now
	ended chan struct{}   // closed by end: no more beats
	ready chan struct{}   // closed once open, or over before it opened
	idle  chan struct{}   // closed when the beat loop has returned
	broke bool            // guarded by c.mu: a claim of it was broken
	proof *liveness.Proof // this host's proof of its life, or nil
	alone chan struct{}   // guarded by c.mu: closed when the beat that detaches it has won

	labels     record.ClaimLabels // guarded by c.mu: of claims whose labels differ from their records
	labelsSize int                // of all
}

// current returns the client's session, a new one if there is none; c.mu is
// held.
func (c *Client) current() *session {
	if c.sess == nil {
		id := c.newID()
		c.sess = &session{
			c: c, id: id, life: lease.Session{ID: id},
			moved: make(chan struct{}, 1), wake: make(chan struct{}, 1),
			ended: make(chan struct{}), ready: make(chan struct{}), idle: make(chan struct{}),
		}
		c.sess.until.Store(int64(lease.Never))
		c.sess.due.Store(int64(lease.Never))
	}
	return c.sess
}

// left is how much of the trust window is left; it is not positive when it is
// over.
func (s *session) left() time.Duration {
	until := lease.Instant(s.until.Load())
	if until == lease.Never {
		return 0
	}
	return until.Sub(s.c.now())
}

func (s *session) trusted() bool { return s.trustedAt(s.c.now()) }

func (s *session) trustedAt(t lease.Instant) bool { return t < lease.Instant(s.until.Load()) }

// open writes the session's first record in one call with the first claim, and
// returns what became of the claim. If the session did not open in that call it
// goes on trying by itself.
func (s *session) open(claim func() (driver.Write, bool)) *batch.Swap {
	c := s.c
	own := c.proof.Make(s.id) // before anyone can see the session
	ttl := c.opts.TTL
	if ttl == 0 {
		ctx, cancel := context.WithTimeout(c.ctx, DefaultTTL)
		var err error
		if ttl, err = c.readTTL(ctx, driver.Stale); err != nil {
			ttl = DefaultTTL
		}
		cancel()
	}
	sw := &batch.Swap{Err: ErrClosed}
	c.mu.Lock()
	if s.life.Over() { // the client was closed meanwhile
		c.mu.Unlock()
		c.proof.Drop(own)
		return sw
	}
	s.proof = own
	s.life.Begin(ttl)
	beat, first, _ := s.next(ttl)
	sw.Sent = first.Sent
	writes := []driver.Write{beat}
	w, ok := claim()
	if ok {
		writes = append(writes, w)
	}
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(c.ctx, ttl/3)
	defer cancel()
	outs, err := c.store.CompareAndSwap(ctx, writes)
	var out driver.Outcome
	if sw.Err = err; err == nil {
		out, err = outs[0], outs[0].Err
		if ok {
			sw.Out, sw.Err = outs[1], outs[1].Err
		}
	}
	s.answer(first, out, err)
	s.trace(first.Sent, err)
	c.spawn(s.beats)
	c.spawn(s.guardWindow)
	return sw
}

// next is a fresh attempt and its write; c.mu is held.
func (s *session) next(ttl time.Duration) (w driver.Write, a lease.Attempt, shortened bool) {
	c := s.c
	b := lease.BeatOf{TTL: ttl, Owner: &c.owner, Grace: c.opts.Grace, Nonce: c.newNonce(), Labels: s.labels, Clocks: c.clocks()}
	a, shortened = s.life.Beat(b, c.now())
	if shortened {
		s.until.Store(int64(s.life.Until()))
		signal(s.moved)
	}
	return driver.Write{Key: driver.Sessions.Key(s.id), Old: int64(a.Old), Value: a.Record.Encode()}, a, shortened
}

// beats sends the heartbeats until the session is over.
func (s *session) beats() {
	defer close(s.idle)
	c := s.c
	for {
		c.mu.Lock()
		again := s.life.Failing() != nil
		wait := s.life.Pace()
		over := s.life.Over()
		c.mu.Unlock()
		if over {
			return
		}
		if again {
			wait = c.jitter(min(max(wait/10, 50*time.Millisecond), time.Second))
		}
		s.due.Store(int64(c.now().Add(wait)))
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
		s.due.Store(int64(lease.Never))
		if !s.beat() {
			return
		}
	}
}

// beat sends heartbeats until one is answered and no other is wanted at once, or one is
// not answered. It reports whether the session goes on.
func (s *session) beat() bool {
	c := s.c
	for {
		c.mu.Lock()
		if s.life.Ending() {
			c.mu.Unlock()
			return false
		}
		ttl, follows := s.life.Usual(), s.life.Follows()
		bound, ok := s.life.Asking(c.now())
		c.mu.Unlock()
		if !ok {
			s.lose("", nil)
			return false
		}

		ctx, cancel := context.WithTimeout(c.ctx, bound)
		if c.opts.TTL == 0 && follows {
			ttl = c.followTTL(ctx, ttl, bound/3)
		}
		c.mu.Lock()
		if _, ok := s.life.Asking(c.now()); !ok { // a store may answer later than its time limit
			c.mu.Unlock()
			cancel()
			s.lose("", nil)
			return false
		}
		w, a, shortened := s.next(ttl)
		late, failing := s.life.TooLate(a.Sent), s.life.Failing()
		c.mu.Unlock()
		if late {
			cancel()
			s.lose("no answer to its first heartbeat", failing)
			return false
		}
		s.traceShortened(shortened, ttl)
		if a.Record.Least != record.LeastKept {
			bound = a.Record.Duration() / 3 // a smaller TTL leaves less time
		}
		ctx, done := context.WithTimeout(ctx, bound)
		outs, err := c.store.CompareAndSwap(ctx, []driver.Write{w})
		cancel()
		done()
		var out driver.Outcome
		if err == nil {
			out = outs[0]
		}
		again := s.answer(a, out, err)
		s.trace(a.Sent, err)
		if s.over() {
			return false
		}
		if !again {
			if err == nil {
				c.afterBeat(a.Sent)
			}
			return true
		}
	}
}

// over says whether the session was lost or has ended.
func (s *session) over() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.life.Over()
}

// followTTL is the store's setting of the TTL, or the present one if it cannot be read in time.
func (c *Client) followTTL(ctx context.Context, ttl, within time.Duration) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if set, err := c.readTTL(ctx, driver.Stale); err == nil {
		ttl = set
	}
	return ttl
}

func (s *session) traceShortened(shortened bool, ttl time.Duration) {
	if f := s.c.trace.Shortened; shortened && f != nil {
		f(s.c.ctx, Event{Session: s.id, TTL: ttl, Until: time.Now().Add(s.left())})
	}
}

func (s *session) trace(sent lease.Instant, err error) {
	if f := s.c.trace.Heartbeat; f != nil {
		s.c.mu.Lock()
		ttl := s.life.TTL()
		s.c.mu.Unlock()
		f(s.c.ctx, Event{Session: s.id, TTL: ttl, Took: s.c.now().Sub(sent), Until: time.Now().Add(s.left()), Err: err})
	}
}

// traceEnded emits SessionEnded; why is empty unless the session was lost.
func (s *session) traceEnded(why string, err error) {
	emit(s.c.ctx, s.c.trace.SessionEnded, Event{Session: s.id, Reason: why, Err: err})
}

// answer handles what became of an attempt and reports whether another beat
// is wanted at once.
func (s *session) answer(a lease.Attempt, out driver.Outcome, err error) (again bool) {
	c := s.c
	o := lease.Outcome{Won: out.Won, Version: record.Version(out.Record.Version), Absent: len(out.Record.Value) == 0, Err: err}
	if err == nil && !out.Won {
		o.Record, o.Bad = record.DecodeSession(out.Record.Value)
	}
	c.mu.Lock()
	eff := s.life.Answered(a, o, c.now())
	s.perform(eff)
	for _, r := range eff.Revoked {
		c.revoke(s, r) // before AcquireFor can take the lock for a detached one
	}
	c.unlock()
	if err != nil {
		c.log.Warn("heartbeat not answered", "session", s.id, "left", s.left(), "err", err)
	}
	s.report(eff)
	if eff.Asked != "" {
		c.log.Info("suspected, answering with a heartbeat", "session", s.id, "by", eff.Asked)
	}
	return eff.Again
}

// perform applies the effects of an event to the local queues and the goroutines of the
// session. c.mu is held; after it is released, report has to be called.
func (s *session) perform(eff lease.Effects) {
	c := s.c
	s.until.Store(int64(s.life.Until()))
	if eff.Opened {
		c.wrote = s.life.TTL()
		close(s.ready)
		for p := range c.active {
			c.perform(p, p.n.SessionOpened(c.env()))
			p.rest()
		}
	}
	if eff.Moved {
		signal(s.moved)
	}
	if eff.Alone && s.alone != nil {
		close(s.alone)
		s.alone = nil
	}
	if !eff.Lost {
		return
	}
	if c.sess == s {
		c.sess = nil
	}
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
	if at, ok := s.life.Void(c.opts.Grace); ok {
		c.deaths.Lose(s.id, at)
	}
	for p := range c.active {
		c.perform(p, p.n.SessionLost(s.id, eff.Why, eff.Err, c.env()))
	}
}

// report logs and traces a loss, after perform.
func (s *session) report(eff lease.Effects) {
	if !eff.Lost {
		return
	}
	if s.life.Opened() { // it does not change any more
		s.c.log.Warn("session lost", "session", s.id, "why", eff.Why, "err", eff.Err)
	}
	s.c.proof.Drop(s.proof)
	s.traceEnded(eff.Why, eff.Err)
}

// overslept says whether the next heartbeat is late, as after the machine has slept.
func (s *session) overslept() bool {
	due := lease.Instant(s.due.Load())
	return due != lease.Never && s.c.now().Sub(due) > 100*time.Millisecond
}

// guardWindow ends the session when its window does. It looks at least once a second,
// since no timer, not even that of heartbeats, runs while the machine sleeps.
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
			if s.overslept() {
				signal(s.wake)
			}
			if !s.c.notes.watch.Costs {
				s.c.mu.Lock()
				s.c.startWatching() // a session that lasts should hear of a break at once
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
	s.c.mu.Lock()
	eff := s.life.Lose(why, err, s.c.now())
	if eff.Lost {
		s.perform(eff)
	}
	s.c.unlock()
	s.report(eff)
}

// answered reports whether the store has answered the latest heartbeat, or may still do so.
func (s *session) answered() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.life.Answers(s.c.now())
}

// end ends the session of a client that closes, within limit. If clean, no claim of
// it can be left anywhere, and its record is emptied; else it leaves a tombstone,
// which voids whatever is left once grace is over.
func (s *session) end(clean bool, grace, limit time.Duration) error {
	c := s.c
	c.mu.Lock()
	if s.life.Over() {
		c.mu.Unlock()
		return nil
	}
	close(s.ended)
	if !s.life.Stop() {
		c.mu.Unlock()
		c.proof.Drop(s.proof)
		s.traceEnded("", nil)
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
	if s.life.Over() {
		c.mu.Unlock()
		return nil // lost meanwhile
	}
	old, known := s.life.End()
	clean = clean && known
	ttl := s.life.TTL()
	c.mu.Unlock()
	s.traceEnded("", nil)

	ctx, cancel := context.WithTimeout(c.ctx, max(limit-c.now().Sub(began), 100*time.Millisecond))
	defer cancel()
	var err error
	if clean {
		var outs []driver.Outcome
		outs, err = c.store.CompareAndSwap(ctx, []driver.Write{{Key: driver.Sessions.Key(s.id), Old: int64(old), Lazy: true}})
		if err == nil && outs[0].Won {
			c.proof.Drop(s.proof)
			return nil
		}
	}
	err = c.writeTombstone(ctx, s, grace)
	if err != nil && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("holdfast: close: the session is not confirmed as ended, it ends by itself in %s: %w", record.Short(ttl), err)
	}
	c.proof.Drop(s.proof)
	return err
}

// signal wakes the goroutine that waits on ch, which buffers one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

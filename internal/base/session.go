package base

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/liveness"
)

// A Session is this client's lease.Session with the goroutines that keep it: one sends its
// heartbeats, one ends it when its window does.
type Session struct {
	c     *Base
	ID    string
	Life  lease.Session   // guarded by c.Mu
	until atomic.Int64    // the end of its window, readable without c.Mu
	due   atomic.Int64    // when the next heartbeat is sent; Never: one is being sent
	moved chan struct{}   // the window has moved
	Wake  chan struct{}   // beat now
	ended chan struct{}   // closed by end: no more beats
	Ready chan struct{}   // closed once open, or over before it opened
	idle  chan struct{}   // closed when the beat loop has returned
	Broke bool            // guarded by c.Mu: a claim of it was broken
	Proof *liveness.Proof // this host's proof of its life, or nil
	alone chan struct{}   // guarded by c.Mu: closed when the beat that detaches it has won

	labels     record.ClaimLabels // guarded by c.Mu: of claims whose labels differ from their records
	labelsSize int                // of all
}

// Current returns the client's session, a new one if there is none; c.Mu is
// held.
func (c *Base) Current() *Session {
	if c.Sess == nil {
		id := c.newID()
		c.Sess = &Session{
			c: c, ID: id, Life: lease.Session{ID: id},
			moved: make(chan struct{}, 1), Wake: make(chan struct{}, 1),
			ended: make(chan struct{}), Ready: make(chan struct{}), idle: make(chan struct{}),
		}
		c.Sess.until.Store(int64(lease.Never))
		c.Sess.due.Store(int64(lease.Never))
	}
	return c.Sess
}

// Left is how much of the trust window is left; it is not positive when it is
// over.
func (s *Session) Left() time.Duration {
	until := lease.Instant(s.until.Load())
	if until == lease.Never {
		return 0
	}
	return until.Sub(s.c.Now())
}

// Trusted says whether the session is in its window now.
func (s *Session) Trusted() bool { return s.TrustedAt(s.c.Now()) }

// TrustedAt says whether the session is in its window at t.
func (s *Session) TrustedAt(t lease.Instant) bool { return t < lease.Instant(s.until.Load()) }

// Open writes the session's first record in one call with the first claim, and
// returns what became of the claim. If the session did not open in that call it
// goes on trying by itself.
func (s *Session) Open(claim func() (driver.Write, bool)) *batch.Swap {
	c := s.c
	own := c.Proof.Make(s.ID) // before anyone can see the session
	ttl := c.Opts.TTL
	if ttl == 0 {
		ctx, cancel := context.WithTimeout(c.Ctx, record.DefaultTTL)
		var err error
		if ttl, err = c.ReadTTL(ctx, driver.Stale); err != nil {
			ttl = record.DefaultTTL
		}
		cancel()
	}
	sw := &batch.Swap{Err: ErrClosed}
	c.Mu.Lock()
	if s.Life.Over() { // the client was closed meanwhile
		c.Mu.Unlock()
		c.Proof.Drop(own)
		return sw
	}
	s.Proof = own
	s.Life.Begin(ttl)
	beat, first, _ := s.next(ttl)
	sw.Sent = first.Sent
	writes := []driver.Write{beat}
	w, ok := claim()
	if ok {
		writes = append(writes, w)
	}
	c.Mu.Unlock()

	ctx, cancel := context.WithTimeout(c.Ctx, ttl/3)
	defer cancel()
	outs, err := c.Store.CompareAndSwap(ctx, writes)
	var out driver.Outcome
	if sw.Err = err; err == nil {
		out, err = outs[0], outs[0].Err
		if ok {
			sw.Out, sw.Err = outs[1], outs[1].Err
		}
	}
	s.answer(first, out, err)
	s.trace(first.Sent, err)
	c.Spawn(s.beats)
	c.Spawn(s.guardWindow)
	return sw
}

// next is a fresh attempt and its write; c.Mu is held.
func (s *Session) next(ttl time.Duration) (w driver.Write, a lease.Attempt, shortened bool) {
	c := s.c
	b := lease.BeatOf{TTL: ttl, Owner: &c.Owner, Grace: c.Opts.Grace, Nonce: c.NewNonce(), Labels: s.labels, Clocks: c.Clocks()}
	a, shortened = s.Life.Beat(b, c.Now())
	if shortened {
		s.until.Store(int64(s.Life.Until()))
		Signal(s.moved)
	}
	return driver.Write{Key: driver.Sessions.Key(s.ID), Old: int64(a.Old), Value: a.Record.Encode()}, a, shortened
}

// beats sends the heartbeats until the session is over.
func (s *Session) beats() {
	defer close(s.idle)
	c := s.c
	for {
		c.Mu.Lock()
		again := s.Life.Failing() != nil
		wait := s.Life.Pace()
		over := s.Life.Over()
		c.Mu.Unlock()
		if over {
			return
		}
		if again {
			wait = c.Jitter(min(max(wait/10, 50*time.Millisecond), time.Second))
		}
		s.due.Store(int64(c.Now().Add(wait)))
		t := c.Machine.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.Wake:
		case <-s.ended:
			t.Stop()
			return
		case <-c.Ctx.Done():
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
func (s *Session) beat() bool {
	c := s.c
	for {
		c.Mu.Lock()
		if s.Life.Ending() {
			c.Mu.Unlock()
			return false
		}
		ttl, follows := s.Life.Usual(), s.Life.Follows()
		bound, ok := s.Life.Asking(c.Now())
		c.Mu.Unlock()
		if !ok {
			s.Lose("", nil)
			return false
		}

		ctx, cancel := context.WithTimeout(c.Ctx, bound)
		if c.Opts.TTL == 0 && follows {
			ttl = c.followTTL(ctx, ttl, bound/3)
		}
		c.Mu.Lock()
		if _, ok := s.Life.Asking(c.Now()); !ok { // a store may answer later than its time limit
			c.Mu.Unlock()
			cancel()
			s.Lose("", nil)
			return false
		}
		w, a, shortened := s.next(ttl)
		late, failing := s.Life.TooLate(a.Sent), s.Life.Failing()
		c.Mu.Unlock()
		if late {
			cancel()
			s.Lose("no answer to its first heartbeat", failing)
			return false
		}
		s.traceShortened(shortened, ttl)
		if a.Record.Least != record.LeastKept {
			bound = a.Record.Duration() / 3 // a smaller TTL leaves less time
		}
		ctx, done := context.WithTimeout(ctx, bound)
		outs, err := c.Store.CompareAndSwap(ctx, []driver.Write{w})
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
				c.above.AfterBeat(a.Sent)
			}
			return true
		}
	}
}

// over says whether the session was lost or has ended.
func (s *Session) over() bool {
	s.c.Mu.Lock()
	defer s.c.Mu.Unlock()
	return s.Life.Over()
}

func (s *Session) traceShortened(shortened bool, ttl time.Duration) {
	if f := s.c.Trace.Shortened; shortened && f != nil {
		f(s.c.Ctx, Event{Session: s.ID, TTL: ttl, Until: time.Now().Add(s.Left())})
	}
}

func (s *Session) trace(sent lease.Instant, err error) {
	if f := s.c.Trace.Heartbeat; f != nil {
		s.c.Mu.Lock()
		ttl := s.Life.TTL()
		s.c.Mu.Unlock()
		f(s.c.Ctx, Event{Session: s.ID, TTL: ttl, Took: s.c.Now().Sub(sent), Until: time.Now().Add(s.Left()), Err: err})
	}
}

// traceEnded emits SessionEnded; why is empty unless the session was lost.
func (s *Session) traceEnded(why string, err error) {
	Emit(s.c.Ctx, s.c.Trace.SessionEnded, Event{Session: s.ID, Reason: why, Err: err})
}

// answer handles what became of an attempt and reports whether another beat
// is wanted at once.
func (s *Session) answer(a lease.Attempt, out driver.Outcome, err error) (again bool) {
	c := s.c
	o := lease.Outcome{Won: out.Won, Version: record.Version(out.Record.Version), Absent: len(out.Record.Value) == 0, Err: err}
	if err == nil && !out.Won {
		o.Record, o.Bad = record.DecodeSession(out.Record.Value)
	}
	c.Mu.Lock()
	eff := s.Life.Answered(a, o, c.Now())
	s.perform(eff)
	for _, r := range eff.Revoked {
		c.above.Revoked(s, r) // before AcquireFor can take the lock for a detached one
	}
	c.Unlock()
	if err != nil {
		c.Log.Warn("heartbeat not answered", "session", s.ID, "left", s.Left(), "err", err)
	}
	s.report(eff)
	if eff.Asked != "" {
		c.Log.Info("suspected, answering with a heartbeat", "session", s.ID, "by", eff.Asked)
	}
	return eff.Again
}

// perform applies the effects of an event to the local queues and the goroutines of the
// session. c.Mu is held; after it is released, report has to be called.
func (s *Session) perform(eff lease.Effects) {
	c := s.c
	s.until.Store(int64(s.Life.Until()))
	if eff.Opened {
		c.Wrote = s.Life.TTL()
		close(s.Ready)
		c.above.SessionOpened()
	}
	if eff.Moved {
		Signal(s.moved)
	}
	if eff.Alone && s.alone != nil {
		close(s.alone)
		s.alone = nil
	}
	if !eff.Lost {
		return
	}
	if c.Sess == s {
		c.Sess = nil
	}
	select {
	case <-s.Ready:
	default:
		close(s.Ready)
	}
	if at, ok := s.Life.Void(c.Opts.Grace); ok {
		c.Deaths.Lose(s.ID, at)
	}
	c.above.SessionLost(s.ID, eff.Why, eff.Err)
}

// report logs and traces a loss, after perform.
func (s *Session) report(eff lease.Effects) {
	if !eff.Lost {
		return
	}
	if s.Life.Opened() { // it does not change any more
		s.c.Log.Warn("session lost", "session", s.ID, "why", eff.Why, "err", eff.Err)
	}
	s.c.Proof.Drop(s.Proof)
	s.traceEnded(eff.Why, eff.Err)
}

// overslept says whether the next heartbeat is late, as after the machine has slept.
func (s *Session) overslept() bool {
	due := lease.Instant(s.due.Load())
	return due != lease.Never && s.c.Now().Sub(due) > 100*time.Millisecond
}

// guardWindow ends the session when its window does. It looks at least once a second,
// since no timer, not even that of heartbeats, runs while the machine sleeps.
func (s *Session) guardWindow() {
	select {
	case <-s.Ready:
	case <-s.ended:
		return
	case <-s.c.Ctx.Done():
		return
	}
	timer := s.c.Machine.NewTimer(0)
	defer timer.Stop()
	for {
		left := s.Left()
		if left <= 0 {
			s.Lose("", nil)
			return
		}
		timer.Reset(min(left, time.Second))
		select {
		case <-timer.C:
			if s.overslept() {
				Signal(s.Wake)
			}
			if !s.c.Traits.CostlyWatch {
				s.c.Mu.Lock()
				s.c.above.StartWatching() // a session that lasts should hear of a break at once
				s.c.Mu.Unlock()
			}
		case <-s.moved:
		case <-s.ended:
			return
		case <-s.c.Ctx.Done():
			return
		}
	}
}

// Lose ends belief in everything this session holds, for ever. The reason is
// worked out if none is given.
func (s *Session) Lose(why string, err error) {
	s.c.Mu.Lock()
	eff := s.Life.Lose(why, err, s.c.Now())
	if eff.Lost {
		s.perform(eff)
	}
	s.c.Unlock()
	s.report(eff)
}

// Answered reports whether the store has answered the latest heartbeat, or may still do so.
func (s *Session) Answered() bool {
	s.c.Mu.Lock()
	defer s.c.Mu.Unlock()
	return s.Life.Answers(s.c.Now())
}

// End ends the session of a client that closes, within limit. If clean, no claim of
// it can be left anywhere, and its record is emptied; else it leaves a tombstone,
// which voids whatever is left once grace is over.
func (s *Session) End(clean bool, grace, limit time.Duration) error {
	c := s.c
	c.Mu.Lock()
	if s.Life.Over() {
		c.Mu.Unlock()
		return nil
	}
	close(s.ended)
	if !s.Life.Stop() {
		c.Mu.Unlock()
		c.Proof.Drop(s.Proof)
		s.traceEnded("", nil)
		return nil
	}
	c.Mu.Unlock()
	began := c.Now()
	timer := c.Machine.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-s.idle: // with the answer to a beat that is on its way
	case <-timer.C:
	}
	c.Mu.Lock()
	if s.Life.Over() {
		c.Mu.Unlock()
		return nil // lost meanwhile
	}
	old, known := s.Life.End()
	clean = clean && known
	ttl := s.Life.TTL()
	c.Mu.Unlock()
	s.traceEnded("", nil)

	ctx, cancel := context.WithTimeout(c.Ctx, max(limit-c.Now().Sub(began), 100*time.Millisecond))
	defer cancel()
	var err error
	if clean {
		var outs []driver.Outcome
		outs, err = c.Store.CompareAndSwap(ctx, []driver.Write{{Key: driver.Sessions.Key(s.ID), Old: int64(old), Lazy: true}})
		if err == nil && outs[0].Won {
			c.Proof.Drop(s.Proof)
			return nil
		}
	}
	err = c.writeTombstone(ctx, s.ID, ttl, grace)
	if err != nil && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("holdfast: close: the session is not confirmed as ended, it ends by itself in %s: %w", record.Short(ttl), err)
	}
	c.Proof.Drop(s.Proof)
	return err
}

// IsOurs says whether a session is the client's own; c.Mu is held.
func (c *Base) IsOurs(session string) bool { return c.Sess != nil && c.Sess.ID == session }

// Healthy is nil while the client can take locks and keep those that it has.
func (c *Base) Healthy(ctx context.Context) error {
	c.Mu.Lock()
	closing, s := c.Closing, c.Sess
	var ttl time.Duration
	if s != nil {
		ttl = s.Life.TTL()
	}
	c.Mu.Unlock()
	switch {
	case closing:
		return ErrClosed
	case s == nil || ttl == 0:
		_, err := c.ReadTTL(ctx, driver.Fresh)
		return err
	}
	if left := s.Left(); left < ttl/4 {
		return fmt.Errorf("heartbeats are not answered: in %v all locks of this client are lost", max(left, 0).Round(time.Millisecond))
	}
	return nil
}

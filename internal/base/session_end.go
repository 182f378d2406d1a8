package base

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Keep makes the names of the session stay shut for d from now.
func (s *Session) Keep(ctx context.Context, d time.Duration) error {
	c := s.c
	c.Mu.Lock()
	s.Life.Keep(d, c.Now())
	alone := make(chan struct{})
	s.alone = alone
	c.Mu.Unlock()
	Signal(s.Wake)
	select {
	case <-alone:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.idle:
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	switch {
	case s.Life.Why() != "":
		return errors.New("lost: " + s.Life.Why())
	case s.Life.Over():
		return ErrClosed
	}
	return nil
}

// LeaveShut ends a session that keeps its names shut for a while longer. It reports false if it
// need not keep them shut: that time is over, or the lock was lost or broken.
func (s *Session) LeaveShut(limit time.Duration) (left bool, err error) {
	c := s.c
	c.Mu.Lock()
	until, ok := s.Life.Shut()
	if !ok || s.Life.Over() || until <= c.Now() || s.Broke {
		c.Mu.Unlock()
		return false, nil
	}
	s.Life.Leave()
	alone := make(chan struct{})
	s.alone = alone
	c.Mu.Unlock()
	Signal(s.Wake)
	t := c.Machine.NewTimer(min(limit, until.Sub(c.Now())))
	defer t.Stop()
	select {
	case <-alone:
	case <-s.idle:
	case <-t.C:
		err = fmt.Errorf("holdfast: not known to others as released: it stays held for %s at most", record.Short(until.Sub(c.Now())+s.Life.Usual()))
	}
	c.Mu.Lock()
	if !s.Life.Over() {
		s.Life.End()
		close(s.ended)
		c.After.Call(func() { s.traceEnded("", nil) })
	}
	c.Unlock()
	return true, err
}

// LeaveAlone sends the session's last heartbeat, which keeps it for d, and ends nothing in the
// store. If the answer comes late and so leaves much less than d, it sends another, two at most.
// It returns how much is left.
func (s *Session) LeaveAlone(ctx context.Context, d time.Duration) (left time.Duration, err error) {
	c := s.c
	for range 3 {
		c.Mu.Lock()
		s.Life.Detach(d)
		s.alone = make(chan struct{})
		alone := s.alone
		c.Mu.Unlock()
		Signal(s.Wake)
		select {
		case <-alone:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-s.idle:
		}
		if left = s.Left(); left >= d-min(d/10, time.Second) {
			break
		}
	}
	c.Mu.Lock()
	defer c.Unlock()
	if s.Life.Over() || left <= 0 {
		return 0, errors.New("lost: " + s.Life.Why())
	}
	if s.Broke { // whoever broke it takes for granted that we let go of it
		return 0, errors.New("it was broken")
	}
	s.Life.End()
	close(s.ended)
	c.After.Call(func() { s.traceEnded("", nil) })
	return left, nil
}

package engine

import (
	"context"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// notifications tracks the store's notifications and whether they are needed. The core
// decides when they are asked for (core.Watch), and what is read after one (core.Pace).
type notifications struct {
	watch   core.Watch
	anew    func()                                // ends the present watch, so that a new one begins
	subs    map[driver.Key]map[chan struct{}]bool // for Watch and Observe
	guests  int                                   // claims of holds that wait
	follows int                                   // holds that are followed, where watching costs nothing
}

// all says whether all notifications are needed, not only those of the client's session.
func (n *notifications) all() bool { return len(n.subs)+n.guests+n.follows > 0 }

// StartWatching starts the notification loop if it does not run; c.Mu is held.
func (c *Engine) StartWatching() {
	w, ok := driver.Find[driver.Watcher](c.Store)
	if !ok || c.Ctx.Err() != nil {
		return
	}
	n := &c.notes
	start, anew := n.watch.Need(c.sessionID(), n.all(), c.Now())
	switch {
	case start:
		c.Spawn(func() { c.watchLoop(w) })
	case anew:
		n.anew() // for what is needed now
	}
}

// sessionID is the id of the client's session; "": there is none. c.Mu is held.
func (c *Engine) sessionID() string {
	if c.Sess == nil {
		return ""
	}
	return c.Sess.ID
}

// watchLoop handles notifications until nobody needs them.
func (c *Engine) watchLoop(w driver.Watcher) {
	n := &c.notes
	for {
		began := c.Now()
		ctx, cancel := context.WithCancel(c.Ctx)
		c.Mu.Lock()
		n.anew = cancel
		sessions := n.watch.Begin(c.sessionID(), n.all())
		if n.watch.Costs {
			c.endIdle(ctx, cancel)
		}
		c.Mu.Unlock()
		err := w.Watch(ctx, sessions, c.notified)
		anew := ctx.Err() != nil
		cancel()
		c.Mu.Lock()
		c.scratch.Notified = false
		for p := range c.active {
			p.pace.PollAt(c.Now()) // polled from here on
		}
		if c.watchIdle() || c.Ctx.Err() != nil {
			n.watch.Stop()
			c.Mu.Unlock()
			return
		}
		about := n.watch.Ended(anew, c.Now().Sub(began))
		c.Mu.Unlock()
		base.Signal(c.nudge)
		if anew {
			continue
		}
		c.Log.Info("no notifications from the store, polling instead", "err", err)
		c.Pause(c.Jitter(about))
	}
}

// endIdle ends a watch when nobody needs it; c.Mu is held.
func (c *Engine) endIdle(ctx context.Context, cancel func()) {
	var timer *time.Timer
	timer = time.AfterFunc(core.IdleEvery, func() {
		c.Mu.Lock()
		defer c.Mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case c.watchIdle():
			cancel()
		default:
			timer.Reset(core.IdleEvery)
		}
	})
}

// watchIdle says whether nobody needs a watch that costs something; c.Mu is held.
func (c *Engine) watchIdle() bool {
	return c.notes.watch.Idle(c.waiting, c.notes.all(), c.Now())
}

// notified handles a notification of a write; a zero one means that anything may have changed.
func (c *Engine) notified(h driver.Notification) {
	key := h.Key
	c.Mu.Lock()
	defer c.Unlock()
	if !c.scratch.Notified {
		c.scratch.Notified = true
		draw := c.Machine.Int64N(core.Draws)
		for p := range c.active {
			p.pace.Polled(p.n, draw, c.env())
		}
	}
	for k, chans := range c.notes.subs {
		if k == key || key == (driver.Key{}) {
			for ch := range chans {
				base.Signal(ch)
			}
		}
	}
	switch {
	case key == driver.Key{}:
		for p := range c.active {
			c.readNotified(p)
		}
		if c.Sess != nil && c.Sess.Life.Opened() {
			base.Signal(c.Sess.Wake) // one of its claims may have been revoked
		}
		c.Detector.Hurry()
		base.Signal(c.nudge)
	case key.Space == driver.Names:
		p := c.activeQueue(key.Name)
		switch {
		case p == nil:
		case h.Version > 0 && c.told(p, h): // that was all there is to read
		case c.IsOurs(h.To), p.n.Hosts(h.To):
			c.readAt(p, c.Now())
		case h.To == driver.Everyone:
			c.readNotified(p)
		}
	case key.Space == driver.Sessions && c.IsOurs(key.Name):
		base.Signal(c.Sess.Wake)
	case key.Space == driver.Sessions && c.Renew != nil && c.Renew(key.Name): // it may have been broken
	case key.Space == driver.Sessions && core.Ahead(c.paced(), key.Name):
		c.Detector.Hurry()
		base.Signal(c.nudge)
	}
}

// told handles the record that a notification carries. It reports false if the record has to be
// read; c.Mu is held.
func (c *Engine) told(p *LocalQueue, h driver.Notification) bool {
	_, was := p.n.Record()
	if !p.n.Known() && p.busy || c.sawStale(p, driver.Record{Version: h.Version, Value: []byte(h.Value)}) {
		return false
	}
	if _, version := p.n.Record(); version != was || p.n.Blocked(c.env()) {
		c.reconcile(p)
	}
	return true
}

// readNotified handles a notification for everyone about a name; c.Mu is held.
func (c *Engine) readNotified(p *LocalQueue) {
	if at := p.pace.NotifiedAt(p.n, c.env()); at != lease.Never {
		c.readAt(p, at)
	}
}

// readAt makes the poll loop read a name at an instant; c.Mu is held.
func (c *Engine) readAt(p *LocalQueue, at lease.Instant) {
	if p.pace == nil {
		p.pace = core.NewPace(0)
	}
	p.pace.ReadAt(at)
	c.startPolling()
	base.Signal(c.nudge)
}

// Subscribe signals ch whenever one of keys may have changed, until cancel is called.
func (c *Engine) Subscribe(ch chan struct{}, keys ...driver.Key) (cancel func()) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, k := range keys {
		if c.notes.subs[k] == nil {
			c.notes.subs[k] = make(map[chan struct{}]bool)
		}
		c.notes.subs[k][ch] = true
	}
	c.StartWatching()
	return func() {
		c.Mu.Lock()
		defer c.Mu.Unlock()
		for _, k := range keys {
			delete(c.notes.subs[k], ch)
			if len(c.notes.subs[k]) == 0 {
				delete(c.notes.subs, k)
			}
		}
	}
}

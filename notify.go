package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"

	"github.com/holdfast-lock/holdfast/driver"
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

// startWatching starts the notification loop if it does not run; c.mu is held.
func (c *Client) startWatching() {
	w, ok := driver.Find[driver.Watcher](c.store)
	if !ok || c.ctx.Err() != nil {
		return
	}
	n := &c.notes
	start, anew := n.watch.Need(c.sessionID(), n.all(), c.now())
	switch {
	case start:
		c.spawn(func() { c.watchLoop(w) })
	case anew:
		n.anew() // for what is needed now
	}
}

// sessionID is the id of the client's session; "": there is none. c.mu is held.
func (c *Client) sessionID() string {
	if c.sess == nil {
		return ""
	}
	return c.sess.id
}

// watchLoop handles notifications until nobody needs them.
func (c *Client) watchLoop(w driver.Watcher) {
	n := &c.notes
	for {
		began := c.now()
		ctx, cancel := context.WithCancel(c.ctx)
		c.mu.Lock()
		n.anew = cancel
		sessions := n.watch.Begin(c.sessionID(), n.all())
		if n.watch.Costs {
			c.endIdle(ctx, cancel)
		}
		c.mu.Unlock()
		err := w.Watch(ctx, sessions, c.notified)
		anew := ctx.Err() != nil
		cancel()
		c.mu.Lock()
		c.scratch.Notified = false
		for p := range c.active {
			p.pace.PollAt(c.now()) // polled from here on
		}
		if c.watchIdle() || c.ctx.Err() != nil {
			n.watch.Stop()
			c.mu.Unlock()
			return
		}
		about := n.watch.Ended(anew, c.now().Sub(began))
		c.mu.Unlock()
		signal(c.nudge)
		if anew {
			continue
		}
		c.log.Info("no notifications from the store, polling instead", "err", err)
		c.pause(c.jitter(about))
	}
}

// endIdle ends a watch when nobody needs it; c.mu is held.
func (c *Client) endIdle(ctx context.Context, cancel func()) {
	var timer *time.Timer
	timer = time.AfterFunc(core.IdleEvery, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case c.watchIdle():
			cancel()
		default:
			timer.Reset(core.IdleEvery)
		}
	})
}

// watchIdle says whether nobody needs a watch that costs something; c.mu is held.
func (c *Client) watchIdle() bool {
	return c.notes.watch.Idle(c.waiting, c.notes.all(), c.now())
}

// notified handles a notification of a write; a zero one means that anything may have changed.
func (c *Client) notified(h driver.Notification) {
	key := h.Key
	c.mu.Lock()
	defer c.unlock()
	if !c.scratch.Notified {
		c.scratch.Notified = true
		draw := c.machine.Int64N(core.Draws)
		for p := range c.active {
			p.pace.Polled(p.n, draw, c.env())
		}
	}
	for k, chans := range c.notes.subs {
		if k == key || key == (driver.Key{}) {
			for ch := range chans {
				signal(ch)
			}
		}
	}
	switch {
	case key == driver.Key{}:
		for p := range c.active {
			c.readNotified(p)
		}
		if c.sess != nil && c.sess.life.Opened() {
			signal(c.sess.wake) // one of its claims may have been revoked
		}
		c.detector.hurry()
		signal(c.nudge)
	case key.Space == driver.Names:
		p := c.activeQueue(key.Name)
		switch {
		case p == nil:
		case h.Version > 0 && c.told(p, h): // that was all there is to read
		case c.isOurs(h.To), p.n.Hosts(h.To):
			c.readAt(p, c.now())
		case h.To == driver.Everyone:
			c.readNotified(p)
		}
	case key.Space == driver.Sessions && c.isOurs(key.Name):
		signal(c.sess.wake)
	case key.Space == driver.Sessions && c.renewals.of[key.Name] != nil:
		c.beatNow(key.Name) // it may have been broken
	case key.Space == driver.Sessions && core.Ahead(c.paced(), key.Name):
		c.detector.hurry()
		signal(c.nudge)
	}
}

// told handles the record that a notification carries. It reports false if the record has to be
// read; c.mu is held.
func (c *Client) told(p *localQueue, h driver.Notification) bool {
	_, was := p.n.Record()
	if !p.n.Known() && p.busy || c.sawStale(p, driver.Record{Version: h.Version, Value: []byte(h.Value)}) {
		return false
	}
	if _, version := p.n.Record(); version != was || p.n.Blocked(c.env()) {
		c.reconcile(p)
	}
	return true
}

// readNotified handles a notification for everyone about a name; c.mu is held.
func (c *Client) readNotified(p *localQueue) {
	if at := p.pace.NotifiedAt(p.n, c.env()); at != lease.Never {
		c.readAt(p, at)
	}
}

// readAt makes the poll loop read a name at an instant; c.mu is held.
func (c *Client) readAt(p *localQueue, at lease.Instant) {
	if p.pace == nil {
		p.pace = core.NewPace(0)
	}
	p.pace.ReadAt(at)
	c.startPolling()
	signal(c.nudge)
}

// subscribe signals ch whenever one of keys may have changed, until cancel is called.
func (c *Client) subscribe(ch chan struct{}, keys ...driver.Key) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		if c.notes.subs[k] == nil {
			c.notes.subs[k] = make(map[chan struct{}]bool)
		}
		c.notes.subs[k][ch] = true
	}
	c.startWatching()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, k := range keys {
			delete(c.notes.subs[k], ch)
			if len(c.notes.subs[k]) == 0 {
				delete(c.notes.subs, k)
			}
		}
	}
}

package holdfast

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// hints runs the store's watch while there is something to be told.
type hints struct {
	running bool
	who     []string                       // that are asked for; nil: all
	anew    func()                         // ends the watch, to begin anew
	needed  core.Instant                   // when they were last asked for
	subs    map[Key]map[chan struct{}]bool // for Watch and Observe
}

func (h *hints) init() { h.subs = make(map[Key]map[chan struct{}]bool) }

// watchIdle is how long a watch that costs goes on with nobody waiting, so that
// it need not begin anew with each wait.
const watchIdle = 5 * time.Second

// startHints starts watching, unless it runs; c.mu is held.
func (c *Client) startHints() {
	w, ok := c.store.(Watcher)
	if !ok || c.ctx.Err() != nil {
		return
	}
	h := &c.hints
	h.needed = c.now()
	if h.running {
		if h.who != nil && (len(h.subs) > 0 || c.sess != nil && !slices.Contains(h.who, c.sess.id)) {
			h.anew() // for what is wanted now
		}
		return
	}
	h.running = true
	c.spawn(func() {
		for wait := 100 * time.Millisecond; ; wait = min(wait*2, 10*time.Second) {
			began := c.now()
			ctx, cancel := context.WithCancel(c.ctx)
			c.mu.Lock()
			h.who, h.anew = []string{}, cancel
			if len(h.subs) > 0 {
				h.who = nil
			} else if c.sess != nil {
				h.who = append(h.who, c.sess.id)
			}
			who := h.who
			c.mu.Unlock()
			if _, ok := w.(CostlyWatcher); ok {
				c.spawn(func() { c.stopIdle(ctx, cancel) })
			}
			err := w.Watch(ctx, who, c.hint)
			anew := ctx.Err() != nil
			cancel()
			c.mu.Lock()
			c.scratch.Notified = false
			for _, p := range c.places {
				p.pace.PollAt(c.now()) // poll from here on
			}
			if c.hintsIdle() || c.ctx.Err() != nil {
				h.running = false
				c.mu.Unlock()
				return
			}
			c.mu.Unlock()
			signal(c.nudge)
			if anew {
				wait = 50 * time.Millisecond
				continue
			}
			c.log.Info("no hints from the store, polling instead", "err", err)
			if c.now().Sub(began) > time.Minute {
				wait = 100 * time.Millisecond
			}
			c.pause(c.jitter(wait))
		}
	})
}

// stopIdle ends a watch that costs when nobody needs it.
func (c *Client) stopIdle(ctx context.Context, cancel func()) {
	t := time.NewTicker(watchIdle)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		idle := c.hintsIdle()
		c.mu.Unlock()
		if idle {
			cancel()
			return
		}
	}
}

// hintsIdle says whether nobody needs a watch that costs; c.mu is held.
func (c *Client) hintsIdle() bool {
	_, costs := c.store.(CostlyWatcher)
	return costs && !c.waiting && len(c.hints.subs) == 0 && c.now().Sub(c.hints.needed) > watchIdle
}

// hint: the store tells of a write, or (zero) that anything may have changed.
func (c *Client) hint(h Hint) {
	key := h.Key
	c.mu.Lock()
	defer c.unlock()
	if !c.scratch.Notified {
		c.scratch.Notified = true
		draw := c.machine.Int64N(core.Draws)
		for _, p := range c.places {
			p.pace.Polled(p.n, draw, c.env())
		}
	}
	for k, chans := range c.hints.subs {
		if k == key || key == (Key{}) {
			for ch := range chans {
				signal(ch)
			}
		}
	}
	switch {
	case key == Key{}:
		for _, p := range c.places {
			c.hintPlace(p)
		}
		if c.sess != nil && c.sess.life.Opened() {
			signal(c.sess.wake) // it may have been revoked something
		}
		c.judge.hurry()
		signal(c.nudge)
	case key.Space == Names:
		p := c.places[key.Name]
		switch {
		case p == nil:
		case c.isOurs(h.Wake):
			c.readAt(p, c.now())
		case h.Wake == Everyone:
			c.hintPlace(p)
		}
	case key.Space == Sessions && c.isOurs(key.Name):
		signal(c.sess.wake)
	case key.Space == Sessions && core.Ahead(c.paced(), key.Name):
		c.judge.hurry()
		signal(c.nudge)
	}
}

// hintPlace takes in a notification for everyone of a name; c.mu is held.
func (c *Client) hintPlace(p *place) {
	if at := p.pace.NotifiedAt(p.n, c.env()); at != core.Never {
		c.readAt(p, at)
	}
}

// readAt has the poll loop read a name at an instant; c.mu is held.
func (c *Client) readAt(p *place, at core.Instant) {
	if p.pace == nil {
		p.pace = core.NewPace(0)
	}
	p.pace.ReadAt(at)
	c.startPolling()
	signal(c.nudge)
}

// subscribe has ch signalled when a key may have changed.
func (c *Client) subscribe(ch chan struct{}, keys ...Key) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		if c.hints.subs[k] == nil {
			c.hints.subs[k] = make(map[chan struct{}]bool)
		}
		c.hints.subs[k][ch] = true
	}
	c.startHints()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, k := range keys {
			delete(c.hints.subs[k], ch)
			if len(c.hints.subs[k]) == 0 {
				delete(c.hints.subs, k)
			}
		}
	}
}

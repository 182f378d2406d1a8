package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// Clients do what the bytes say, over a store that loses and delays what they say: two
// bytes are who, what, on which name and how long until the next. Who believes in a lock
// when, and every step of every record, is judged by package check; and when all is well
// again everyone is served, and nothing is left.
func FuzzSchedule(f *testing.F) {
	f.Add([]byte{0x00, 0x08, 0x01, 0x08, 0x04, 0x20})
	f.Fuzz(func(t *testing.T, schedule []byte) {
		if len(schedule) > 64 {
			return
		}
		var found []check.Violation
		synctest.Test(t, func(t *testing.T) { found = play(schedule) })
		for _, v := range found {
			t.Errorf("%v", v)
		}
	})
}

const ttl = 2 * time.Second

// What a client does: the low bits of the first byte say who, those above what.
const (
	take = iota
	share
	slot
	try
	leave  // gives the oldest of its locks back
	cut    // is cut off from the store, or connected again
	dies   // and its next life begins
	breaks // ends somebody's claim
	choices
)

// A world is a store, the way to it and three clients.
type world struct {
	bus     *faultstore.Bus
	noClock bool
	began   time.Time
	asks    sync.WaitGroup
	clients [3]*client

	mu    sync.Mutex // guards all below
	lives int
	owner map[string]uint64
	sent  map[string]uint64 // who may have sent a write
	steps []check.Step
	holds []*hold
}

// A client is one life of a process.
type client struct {
	*faultstore.Process
	w      *world
	c      *holdfast.Client
	bit    uint64
	who    string
	ctx    context.Context
	end    context.CancelFunc
	apart  bool
	locked []*hold
}

// A hold is a lock that somebody believes in until it is told otherwise.
type hold struct {
	check.Hold
	lock  *holdfast.Lock
	ended bool
}

func play(schedule []byte) []check.Violation {
	w := &world{began: time.Now(), owner: map[string]uint64{}, sent: map[string]uint64{}}
	faults := faultstore.Faults{Delay: 20 * time.Millisecond, SlowReply: 20 * time.Millisecond}
	seed := uint64(0)
	if len(schedule) > 0 {
		seed = uint64(schedule[0])
		p := float64(schedule[0]>>5) / 40
		faults.Lose, faults.LoseReply, faults.Late, faults.LateBy = p, p, p, ttl
		w.noClock = schedule[0]&16 != 0
		faults.NoClock = w.noClock
	}
	w.bus = faultstore.NewBus(&recorder{Store: memory.New(), w: w}, seed, faults)
	for i := range w.clients {
		w.clients[i] = w.start()
	}
	for i := 0; i+1 < len(schedule); i += 2 {
		w.step(i, schedule[i], schedule[i+1])
	}
	return w.finish()
}

func (w *world) step(i int, what, how byte) {
	c := w.clients[what%3]
	name := string(rune('a' + what>>7))
	switch int(what/3) % choices {
	case take:
		w.ask(c, name, 1, holdfast.MaxWait(3*ttl))
	case share:
		w.ask(c, name, 0, holdfast.Shared(), holdfast.MaxWait(3*ttl))
	case slot:
		w.ask(c, name, 2, holdfast.Slots(2), holdfast.MaxWait(3*ttl))
	case try:
		w.ask(c, name, 1, holdfast.MaxWait(0))
	case leave:
		c.leave()
	case cut:
		c.apart = !c.apart
		c.Partition(c.apart)
	case dies:
		c.crash()
		w.clients[what%3] = w.start()
	case breaks:
		w.asks.Go(func() {
			ctx, cancel := context.WithTimeout(c.ctx, 3*ttl)
			defer cancel()
			if info, err := c.c.Show(ctx, name); err == nil && len(info.Holders) > 0 {
				c.c.Break(ctx, info.Holders[i%len(info.Holders)].Name, info.Holders[i%len(info.Holders)].Token, "for a change")
			}
		})
	}
	time.Sleep(time.Duration(how) * ttl / 128)
}

func (w *world) start() *client {
	w.mu.Lock()
	nr := w.lives
	w.lives++
	w.mu.Unlock()
	c := &client{w: w, bit: 1 << (nr % 64), who: fmt.Sprint("h", nr), Process: w.bus.Process(fmt.Sprintf("p%d", nr))}
	c.ctx, c.end = context.WithCancel(context.Background())
	var err error
	if c.c, err = holdfast.New(c, &holdfast.Options{TTL: ttl, RuntimeDir: "/dev/null", Owner: holdfast.Owner{Host: c.who, PID: 1, User: "u", Program: "p", Started: w.began}}); err != nil {
		panic(err)
	}
	return c
}

// ask has a client want a lock, and note when it has it and until when.
func (w *world) ask(c *client, name string, slots int, opts ...holdfast.Option) {
	asked := time.Since(w.began)
	w.asks.Go(func() {
		l, err := c.c.Acquire(c.ctx, name, opts...)
		if err != nil {
			return
		}
		h := &hold{lock: l, Hold: check.Hold{Name: name, Slots: slots, Token: l.Token(), Who: c.who, Asked: asked, Granted: time.Since(w.began)}}
		w.mu.Lock()
		w.holds = append(w.holds, h)
		c.locked = append(c.locked, h)
		if l.Err() != nil || c.ctx.Err() != nil {
			h.over(w)
		}
		w.mu.Unlock()
		context.AfterFunc(l.Context(), func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			h.over(w)
		})
	})
}

// over ends belief; w.mu is held.
func (h *hold) over(w *world) {
	if !h.ended {
		h.ended, h.Ended = true, time.Since(w.began)
	}
}

// leave gives the oldest lock of a client back.
func (c *client) leave() {
	c.w.mu.Lock()
	if len(c.locked) == 0 {
		c.w.mu.Unlock()
		return
	}
	h := c.locked[0]
	c.locked = c.locked[1:]
	h.over(c.w)
	c.w.mu.Unlock()
	c.w.asks.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*ttl)
		defer cancel()
		h.lock.Release(ctx)
	})
}

// crash ends a life without a word to the store.
func (c *client) crash() {
	c.w.mu.Lock()
	c.end()
	for _, h := range c.w.holds {
		if h.Who == c.who {
			h.over(c.w)
		}
	}
	c.w.mu.Unlock()
	c.Crash()
	c.w.asks.Go(func() { c.c.Close() })
}

// finish heals everything, has each client be served once, closes all, and judges.
func (w *world) finish() (found []check.Violation) {
	bad := func(rule, format string, args ...any) {
		found = append(found, check.Violation{Rule: rule, Text: fmt.Sprintf(format, args...)})
	}
	w.bus.SetFaults(faultstore.Faults{NoClock: w.noClock})
	for _, c := range w.clients {
		c.Partition(false)
		for range len(c.locked) {
			c.leave()
		}
	}
	w.asks.Wait()
	time.Sleep(10 * ttl) // what hung while it was cut off has failed by now
	for _, c := range w.clients {
		for range len(c.locked) {
			c.leave()
		}
	}
	for _, c := range w.clients {
		for _, name := range []string{"a", "b"} {
			ctx, cancel := context.WithTimeout(c.ctx, 20*ttl)
			l, err := c.c.Acquire(ctx, name)
			if err != nil {
				bad("P6", "all is well, and %s does not get %q: %v", c.who, name, err)
			} else if err := l.Release(ctx); err != nil && !errors.Is(err, holdfast.ErrLost) {
				bad("P6", "all is well, and %s does not give %q back: %v", c.who, name, err)
			}
			cancel()
		}
	}
	w.asks.Wait()
	w.bus.Settle()
	sweeper := w.start()
	w.clients[0].c.Close()
	w.clients[1].c.Close()
	w.clients[2].c.Close()
	for range 6 {
		sweeper.c.Sweep(sweeper.ctx)
		time.Sleep(3 * ttl)
	}
	sweeper.c.Close()
	for _, c := range append(w.clients[:], sweeper) {
		c.end()
	}
	w.bus.Close()

	w.mu.Lock()
	defer w.mu.Unlock()
	var holds []check.Hold
	for _, h := range w.holds {
		if !h.ended {
			bad("C6", "%v is still believed in after its client was closed", h.Hold)
		}
		holds = append(holds, h.Hold)
	}
	a := check.NewAudit(func(session string) uint64 { return w.owner[session] }, 0)
	if v := a.Check(w.steps); len(v) > 0 {
		found = append(found, v...)
	} else {
		found = append(found, a.Left()...)
	}
	found = append(found, check.Windows(holds)...)
	return append(found, check.Tokens(holds)...)
}

// CompareAndSwap notes who sends what, and whose a session is.
func (c *client) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	c.w.mu.Lock()
	for _, w := range writes {
		c.w.sent[sentAs(w)] |= c.bit
		if w.Key.Space == driver.Sessions && w.Old == driver.IfEmpty {
			if s, err := check.ReadSession(string(w.Value)); err == nil && s.Beat == 1 {
				c.w.owner[w.Key.Name] = c.bit
			}
		}
	}
	c.w.mu.Unlock()
	return c.Process.CompareAndSwap(ctx, writes)
}

func sentAs(w driver.Write) string {
	return fmt.Sprintf("%d %q %d %s", w.Key.Space, w.Key.Name, w.Old, w.Value)
}

// A recorder keeps what a store went through.
type recorder struct {
	*memory.Store
	w    *world
	turn sync.Mutex
}

func (r *recorder) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	r.turn.Lock() // so that steps are in the order of the writes
	defer r.turn.Unlock()
	outs, err := r.Store.CompareAndSwap(ctx, writes)
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for i, out := range outs {
		if w := writes[i]; out.Won {
			r.w.steps = append(r.w.steps, check.Step{Key: w.Key, Version: out.Record.Version, Value: string(slices.Clone(w.Value)),
				Lazy: w.Lazy, At: time.Since(r.w.began), Writers: r.w.sent[sentAs(w)]})
		}
	}
	return outs, err
}

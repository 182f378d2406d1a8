// Package clienttest is what a holdfast.Client promises over a store, as tests.
// A store's own test calls Run, or RunInBubble and RunHoles if it is in memory;
// RunBounds checks that calls return in time whatever happens to the store.
package clienttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// Run tests over a store what a holdfast.Client promises, one subtest for each sentence; a subtest
// that fails logs its sentence. open is as for drivertest.Run. Over a drivertest.Reopener every
// client has a handle of its own. Run takes about a minute, most of it waiting for clients to be
// found dead. On a busy machine, the TTLs are up to three times as long.
func Run(t *testing.T, open func(t *testing.T) driver.Store) { runScaled(t, open, 1) }

// RunSlowly is Run for a store where a write may take a second: the TTLs are at least
// twice as long, for the whole process, and so are the time limits of a case.
func RunSlowly(t *testing.T, open func(t *testing.T) driver.Store) { runScaled(t, open, 2) }

func runScaled(t *testing.T, open func(t *testing.T) driver.Store, least int) {
	n := time.Duration(max(least, busy.Stretch()))
	shortTTL, midTTL = n*1500*time.Millisecond, n*4*time.Second
	runAll(t, func(t *testing.T, c clientCase) {
		c.test(&clients{T: t, store: open(t), soon: n * 5 * time.Second, limit: n * caseTime})
	})
}

// RunInBubble is Run inside testing/synctest bubbles, where
// waiting takes no time: for stores in memory only. Times are judged more
// strictly, and a goroutine that is left over fails its case.
func RunInBubble(t *testing.T, open func(t *testing.T) driver.Store) {
	runAll(t, func(t *testing.T, c clientCase) { inBubble(t, open, caseTime, c) })
}

func inBubble(t *testing.T, open func(t *testing.T) driver.Store, limit time.Duration, c clientCase) {
	skipped := false // the bubble does not pass this on
	synctest.Test(t, func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		h := &clients{T: t, store: open(t), soon: 200 * time.Millisecond, limit: limit}
		if !watches(h.store) {
			h.soon = 1500 * time.Millisecond // a poll
		}
		c.test(h)
	})
	if skipped {
		t.SkipNow()
	}
}

// caseTime is how long a case may take before it counts as hung. It is longer where TTLs are longer.
const caseTime = 2 * time.Minute

func watches(s driver.Store) bool { _, ok := driver.Find[driver.Watcher](s); return ok }

func runAll(t *testing.T, run func(*testing.T, clientCase)) {
	for _, group := range [][]clientCase{
		lossCases, electionCases, ttlCases, breakCases, lookCases, lockCases, waitCases, queueCases, setCases, workCases, closeCases, graceCases, holdCases, historyCases,
	} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				run(t, c)
			})
		}
	}
}

// A clientCase checks a sentence of what a client promises.
type clientCase struct {
	name string
	rule string
	run  func(h *clients)
	need func(driver.Store) bool // nil: every store
}

func (c clientCase) test(h *clients) {
	if c.need != nil && !c.need(h.store) {
		h.Skip("not over this store")
	}
	ctx, cancel := context.WithTimeout(h.Context(), h.limit)
	defer cancel()
	h.ctx = ctx
	defer func() {
		if h.Failed() {
			h.Logf("a client promises: %s", c.rule)
		}
	}()
	c.run(h)
}

// The TTL of a client that has to be found dead soon, of one whose heartbeats
// matter, and of others.
var (
	shortTTL = 1500 * time.Millisecond
	midTTL   = 4 * time.Second
	longTTL  = 15 * time.Second
)

// A clients is what a case works with. Methods that fail the test are for its
// own goroutine.
type clients struct {
	*testing.T
	ctx    context.Context
	store  driver.Store  // where a case looks directly
	soon   time.Duration // the most that anything may take that needs no waiting
	limit  time.Duration // how long until the case counts as hung
	opened int
	looker *holdfast.Client
}

// slow says whether TTLs are longer than a quick store on an idle machine would need.
func (h *clients) slow() bool { return shortTTL > 1500*time.Millisecond }

// handle is the store as one more process sees it.
func (h *clients) handle() driver.Store {
	h.opened++
	if r, ok := h.store.(drivertest.Reopener); ok && h.opened > 1 {
		return r.Reopen(h.T)
	}
	return h.store
}

// client is a client of its own, closed at the end, which has to succeed.
func (h *clients) client(ttl time.Duration) *holdfast.Client {
	h.Helper()
	return h.clientOf(h.handle(), &holdfast.Options{TTL: ttl})
}

func (h *clients) clientOf(s driver.Store, o *holdfast.Options) *holdfast.Client {
	h.Helper()
	c := h.open(s, o)
	h.Cleanup(func() {
		if err := c.Close(); err != nil {
			h.Errorf("close: %v", err)
		}
	})
	return c
}

// open is a client that is not closed at the end.
func (h *clients) open(s driver.Store, o *holdfast.Options) *holdfast.Client {
	h.Helper()
	if o.RuntimeDir == "" {
		o.RuntimeDir = os.DevNull
	}
	c, err := holdfast.New(s, o)
	if err != nil {
		h.Fatal(err)
	}
	return c
}

// process is a client and its way to the store, which can be cut.
func (h *clients) process(o *holdfast.Options) (*holdfast.Client, *faultstore.Process) {
	h.Helper()
	bus := faultstore.NewBus(h.handle(), uint64(h.opened), faultstore.Faults{})
	p := bus.Process(fmt.Sprintf("process %d", h.opened))
	var s driver.Store = p
	if !watches(h.store) {
		s = p.Plain()
	}
	c := h.open(s, o)
	h.Cleanup(func() {
		bus.Close()
		c.Close()
	})
	return c, p
}

// look is a client that never takes a lock.
func (h *clients) look() *holdfast.Client {
	if h.looker == nil {
		h.looker = h.client(0)
	}
	return h.looker
}

func (h *clients) acquire(c *holdfast.Client, name string, opts ...holdfast.Option) *holdfast.Lock {
	h.Helper()
	l, err := c.Acquire(h.ctx, name, opts...)
	if err != nil {
		h.Fatal(err)
	}
	return l
}

func (h *clients) release(locks ...*holdfast.Lock) {
	h.Helper()
	for _, l := range locks {
		if err := l.Release(h.ctx); err != nil {
			h.Fatal(err)
		}
	}
}

// An answer is what became of an Acquire, and when.
type answer struct {
	lock *holdfast.Lock
	err  error
	at   time.Time
}

// ask begins an Acquire.
func (h *clients) ask(c *holdfast.Client, name string, opts ...holdfast.Option) <-chan answer {
	return h.askFor(h.ctx, c, name, opts...)
}

func (h *clients) askFor(ctx context.Context, c *holdfast.Client, name string, opts ...holdfast.Option) <-chan answer {
	ch := make(chan answer, 1)
	go func() {
		l, err := c.Acquire(ctx, name, opts...)
		ch <- answer{l, err, time.Now()}
	}()
	return ch
}

// queue begins an Acquire that has to wait, and returns when it is number n in
// the queue.
func (h *clients) queue(n int, c *holdfast.Client, name string, opts ...holdfast.Option) <-chan answer {
	h.Helper()
	ch := h.ask(c, name, opts...)
	h.eventually(h.limit/2, fmt.Sprintf("%d waiters of %q", n, name), func() bool { // the test needs it and does not judge it
		select {
		case a := <-ch:
			h.Fatalf("an Acquire that has to wait is answered, granted %v, error %v; in the store: %s", a.lock != nil, a.err, h.dump())
		default:
		}
		return len(h.show(name).Waiters) == n
	})
	return ch
}

// answered waits for the answer to an Acquire.
func (h *clients) answered(ch <-chan answer, within time.Duration) answer {
	h.Helper()
	select {
	case a := <-ch:
		return a
	case <-time.After(within):
		h.Fatalf("an Acquire has no answer after %v; in the store: %s", within, h.dump())
	}
	return answer{}
}

func (h *clients) granted(ch <-chan answer, within time.Duration) *holdfast.Lock {
	h.Helper()
	return h.grantedAt(ch, within).lock
}

func (h *clients) grantedAt(ch <-chan answer, within time.Duration) answer {
	h.Helper()
	a := h.answered(ch, within)
	if a.err != nil {
		h.Fatal(a.err)
	}
	return a
}

// setTTL sets the store's TTL.
func (h *clients) setTTL(ttl time.Duration) {
	h.Helper()
	if err := h.look().SetStoreTTL(h.ctx, ttl); err != nil {
		h.Fatal(err)
	}
}

// eventually waits until so returns true.
func (h *clients) eventually(within time.Duration, what string, so func() bool) {
	h.Helper()
	for end := time.Now().Add(within); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			h.Fatalf("not within %v: %s; in the store: %s", within, what, h.dump())
		}
	}
}

func (h *clients) show(name string) holdfast.Info {
	h.Helper()
	info, err := h.look().Show(h.ctx, name)
	if err != nil {
		h.Fatal(err)
	}
	return info
}

// waiting waits until n claims are in a queue.
func (h *clients) waiting(name string, n int) {
	h.Helper()
	h.eventually(h.soon, fmt.Sprintf("%d waiters of %q", n, name), func() bool { return len(h.show(name).Waiters) == n })
}

// free waits until no claim of a name is left.
func (h *clients) free(names ...string) {
	h.Helper()
	for _, n := range names {
		h.eventually(h.soon, fmt.Sprintf("%q is free", n), func() bool {
			i := h.show(n)
			return len(i.Holders)+len(i.Waiters) == 0
		})
	}
}

// empty waits until nothing is left of a name.
func (h *clients) empty(names ...string) {
	h.Helper()
	for _, n := range names {
		h.eventually(h.soon, fmt.Sprintf("%q is empty", n), func() bool { return len(h.record(n).Value) == 0 })
	}
}

func (h *clients) record(name string) driver.Record {
	h.Helper()
	return h.load(driver.Names.Key(name))
}

func (h *clients) load(k driver.Key) driver.Record {
	h.Helper()
	r, err := h.store.Load(h.ctx, []driver.Key{k}, driver.Fresh)
	if err != nil {
		h.Fatal(err)
	}
	return r[0]
}

// keys are those of a space that hold something.
func (h *clients) keys(space driver.Space) []string {
	h.Helper()
	names, err := h.store.Keys(h.ctx, space, "", 1000)
	if err != nil {
		h.Fatal(err)
	}
	return names
}

// dump is the names and sessions in the store, for a message.
func (h *clients) dump() string {
	s := ""
	for _, space := range []driver.Space{driver.Names, driver.Sessions} {
		names, _ := h.store.Keys(h.ctx, space, "", 20)
		for _, n := range names {
			if r, err := h.store.Load(h.ctx, []driver.Key{{Space: space, Name: n}}, driver.Fresh); err == nil {
				s += fmt.Sprintf("\n\t%s %q: version %d, %s", space, n, r[0].Version, r[0].Value)
			}
		}
	}
	return s
}

// held asks for what another holds, with a wait, and returns the error, which has to be
// ErrHeld. A slow machine or store may not answer in so short a time: then held asks
// again, for longer.
func (h *clients) held(wait time.Duration, ask func(wait time.Duration) error) error {
	h.Helper()
	err := ask(wait)
	for ; h.slow() && !errors.Is(err, holdfast.ErrHeld) && 0 < wait && wait < h.soon; err = ask(wait) {
		wait *= 2
	}
	h.is("to ask for what another holds", err, holdfast.ErrHeld)
	return err
}

// is fails the test unless err is all of the targets.
func (h *clients) is(what string, err error, targets ...error) {
	h.Helper()
	for _, want := range targets {
		if !errors.Is(err, want) {
			h.Fatalf("%s: error %v, want one that is %q", what, err, want)
		}
	}
}

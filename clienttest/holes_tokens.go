package clienttest

import (
	"fmt"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// tokenHoles are about tokens, names and rows.
var tokenHoles = []holeCase{
	{
		name:  "token does not go back",
		holes: "S3",
		rule:  "the last step of a takeover does not take the token back when others have held the lock since",
		runs: once(func(h *clients) {
			claim := h.halfTaken()
			first := h.take(h.client(0), time.Second)
			claim.lose(h)
			h.holds(first)
			h.release(first)
			h.sweep()
			claim.lose(h)
			if second := h.take(h.client(0), time.Second); second.Token() <= first.Token() {
				h.Errorf("token %d after %d", second.Token(), first.Token())
			}
		}),
	},
	{
		name:  "tokens only grow",
		holes: "G6 G12 S8",
		rule:  "tokens grow though the store's clock steps back, rows are removed, and tokens of hand-offs in a process run ahead of the clock",
		need:  restores,
		runs: once(func(h *clients) {
			g := &grants{clients: h}
			both := []*holdfast.Client{h.client(0), h.client(0)}
			crowd := func() { g.crowd(both[0]) }
			for _, between := range []struct {
				what string
				do   func()
			}{
				{"a release", func() {}},
				{"a row was removed", func() { h.sweepRows() }},
				{"the clock has gone back", g.back},
				{"the clock has gone back and the row was removed", func() { g.back(); h.sweepRows() }},
				{"a hand-off", crowd},
				{"a hand-off and a sweep", func() { crowd(); h.sweep() }},
			} {
				for _, c := range both {
					g.grant(c, between.what)
					between.do()
					g.grant(c, between.what)
				}
			}
		}),
	},
	{
		name:  "hostile names",
		holes: "G13 S5 S10",
		rule:  "no name is a pattern, a prefix, a row of Holdfast's own or SQL: all are held beside each other, through a takeover, a sweep and a change of the settings",
		runs: once(func(h *clients) {
			a, way := h.join()
			b, c := h.client(0), h.client(0)
			dead := h.take(a, time.Second)
			var held []*holdfast.Lock
			for _, name := range []string{
				"a_", "a_b", "a%", "A", "a ", "ttl", "sweep", h.session().Name,
				fmt.Sprintf("a_%d", dead.Token()), fmt.Sprintf("RECLAIM_a_%d", dead.Token()), "RECLAIM_a",
				`'; delete from holdfast where "name" like 'a%' --`, `a") or 1=1 #`, "\\", "names/a", "../a",
			} {
				held = append(held, h.try(b, name))
			}
			h.holds(dead)
			way.Off.Store(true)
			next := h.take(c, time.Minute)
			h.setTTL(2 * holdfast.DefaultTTL)
			h.sweep()
			time.Sleep(time.Hour) // and all clients sweep now and then, as usual
			for _, l := range append(held, next) {
				h.holds(l)
				h.release(l)
			}
			if ttl, err := h.look().StoreTTL(h.ctx); err != nil || ttl != 2*holdfast.DefaultTTL {
				h.Errorf("the setting is %v, error %v", ttl, err)
			}
		}),
	},
	{
		name:  "row vanishes",
		holes: "S6",
		rule:  "a row that vanishes wedges no waiter, and the fence refuses its holder",
		need:  restores,
		runs: each(func(h *clients, space driver.Space) {
			a, way := h.join()
			b, _ := h.join()
			l := h.take(a, time.Second)
			queued := h.queue(1, b, "a")
			time.Sleep(time.Second)
			key := driver.Names.Key("a")
			if space == driver.Sessions {
				key = h.session()
				way.Off.Store(true) // it cannot tell
			}
			h.restore(key, driver.Record{})
			h.holds(h.granted(queued, holdfast.DefaultTTL+3*time.Second))
			if space == driver.Sessions {
				h.lost(l)
			}
			h.fenced(l)
		}, driver.Names, driver.Sessions),
	},
	{
		name:  "long names",
		holes: "H17",
		rule:  "a name that is too long is refused, not cut: names that differ in their last byte are two locks, in whatever letters",
		runs: once(func(h *clients) {
			a, b := h.client(0), h.client(0)
			for _, long := range []string{strings.Repeat("a", 1023), strings.Repeat("語", 340) + "abc"} {
				locks := []*holdfast.Lock{h.try(a, long+"0"), h.try(b, long+"1")}
				for _, l := range locks {
					h.holds(l)
					h.release(l)
				}
			}
			for _, tooLong := range []string{strings.Repeat("a", 1025), strings.Repeat("語", 342)} {
				if l, err := a.TryAcquire(h.ctx, tooLong); err == nil {
					h.Errorf("a name of %d bytes is the lock %q", len(tooLong), l.Name())
				}
			}
		}),
	},
}

// A grants takes "a" again and again, and remembers the last token.
type grants struct {
	*clients
	last int64
}

func (g *grants) grant(c *holdfast.Client, after string) {
	l, err := c.Acquire(g.ctx, "a")
	if err != nil {
		g.Error(err)
		return
	}
	if l.Token() <= g.last {
		g.Errorf("token %d after %s, and %d was given before", l.Token(), after, g.last)
	}
	g.last = l.Token()
	l.Release(g.ctx)
}

// back makes the store's clock go back: the row was written when it was an hour ahead.
func (g *grants) back() {
	g.restore(driver.Names.Key("a"), driver.Record{Version: g.record("a").Version + time.Hour.Microseconds()})
}

// crowd hands the lock on inside a process.
func (g *grants) crowd(c *holdfast.Client) {
	l := g.take(c, time.Second)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { g.grant(c, "a hand-off") })
	}
	synctest.Wait()
	l.Release(g.ctx)
	all.Wait()
}

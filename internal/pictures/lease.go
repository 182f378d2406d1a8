package main

import (
	"strconv"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// lease draws a lease from its last heartbeat to the next grant, to scale, with the default TTL.
func lease() []byte {
	ttl := holdfast.DefaultTTL.Seconds()
	trust := ttl - record.Margin(holdfast.DefaultTTL).Seconds()
	const (
		delay = 0.4 // from the sending of a write until it is in the store
		look  = 0.6 // the waiter looks a moment after it may
		cut   = 1.6 // when the holder is cut off
		left  = -5.9
		right = 23
	)
	mark := ttl/2 + look
	dead := max(mark+ttl/2, delay+ttl) + 0.3
	c := begin(880, 560, "The life of a lease",
		"A holder whose last heartbeat was sent at second 0 believes in its locks for the TTL less a margin. A waiter suspects its "+
			"session after half a TTL, and declares it dead when the beat has stood for a TTL. The next in line is granted the lock after that.")
	at := func(t float64) float64 { return 128 + (t-left)/(right-left)*728 }
	bar := func(class string, from, to, y float64, label, ink string) {
		c.box(class, at(from), y, at(to)-at(from), 30, 4)
		c.text(ink, at(from)+9, y+20, label)
	}

	// The axis.
	ticks := []float64{0, ttl / 2, trust, ttl}
	for _, t := range ticks {
		c.line("faint", at(t), 62, at(t), 360)
	}
	c.middle("small dim", at(0), 52, "0 s")
	c.middle("small dim", at(ttl/2), 52, seconds(ttl/2))
	c.middle("small dim", at(trust)-4, 52, seconds(trust))
	c.middle("small dim", at(ttl)+4, 52, seconds(ttl))
	c.middle("small", at(0), 34, "last heartbeat sent")
	c.middle("small", at(ttl/2), 34, "half a TTL")
	c.before("small", at(trust)+8, 34, "TTL less margin")
	c.text("small", at(ttl)-8, 34, "TTL")

	// The holder.
	c.text("title", 24, 92, "Holder")
	bar("soft", left, trust, 74, "", "")
	c.text("accent-ink", at(cut)+22, 94, "trust window: it may believe in its locks")
	bar("gap", trust, ttl, 74, "", "")
	bar("bad", ttl, right, 74, "", "")
	c.text("bad-ink", at(ttl)+9, 94, "lost, for good")
	for t := -ttl / 3; t <= 0; t += ttl / 3 {
		c.line("beat", at(t), 70, at(t), 108)
		c.arrow(at(t), 110, at(t+delay)-1, 158)
	}
	c.middle("small dim", at(-ttl/6), 124, "a beat each TTL/3")
	c.middle("bad-ink title", at(cut)+8, 94, "✕")
	c.text("small dim", at(cut)+4, 124, "cut off or killed")
	c.before("small dim", at(trust)-8, 124, "its contexts end")
	c.line("lost", at(trust), 70, at(trust), 128)
	c.text("small wait-ink", at(trust)+8, 124, "margin")

	// The store.
	c.text("title", 24, 174, "Session")
	c.text("small dim", 24, 190, "in the store")
	bar("sunk", left, -ttl/3+delay, 160, "", "")
	bar("sunk", -ttl/3+delay, delay, 160, "beat 8", "")
	bar("sunk", delay, mark+delay, 160, "beat 9 stands", "")
	bar("wait", mark+delay, dead+delay, 160, "beat 9, suspected", "wait-ink")
	bar("bad", dead+delay, right, 160, "dead: a tombstone", "bad-ink")

	// The waiter, between what it reads and what it writes.
	grant := dead + 2.6*delay
	c.text("title", 24, 260, "Next in line")
	bar("sunk", left, grant+2*delay, 240, "", "")
	c.text("", at(left)+9, 260, "waits, and looks at the session now and then")
	c.arrow(at(mark), 238, at(mark+delay)-1, 192)
	c.text("small dim", at(mark)+16, 218, "asks for a heartbeat")
	c.arrow(at(dead), 238, at(dead+delay)-1, 192)
	c.text("small dim", at(dead)+16, 218, "declares it dead")
	bar("soft", grant+2*delay, right, 240, "holds the lock", "accent-ink")

	c.text("title", 24, 334, "Lock")
	c.text("small dim", 24, 350, "in the store")
	bar("sunk", left, grant+delay, 320, "held by the first: token 41", "")
	c.arrow(at(grant), 272, at(grant+delay)+1, 318)
	c.before("small dim", at(grant)-6, 300, "drops the dead claim and grants the next, in one write")
	bar("soft", grant+delay, right, 320, "the next: token 52", "accent-ink")

	// Why the margin suffices, enlarged.
	c.line("faint", 24, 378, 856, 378)
	from, to := trust-0.6, ttl+0.6
	at = func(t float64) float64 { return 128 + (t-from)/(to-from)*728 }
	slow, fast := trust/0.95, (ttl)/1.05
	c.text("small", 24, 404, "The end, enlarged. Two clocks that are each 5 % wrong, in opposite ways, still do not make two holders:")
	c.text("title", 24, 444, "Holder")
	bar("soft", from, slow, 424, "", "")
	c.line("faint", at(trust), 424, at(trust), 454)
	c.before("accent-ink", at(trust)-9, 444, "believes")
	c.text("accent-ink small", at(trust)+9, 444, "if its clock is 5 % slow")
	c.text("title", 24, 486, "Next in line")
	bar("sunk", fast, to, 466, "", "")
	c.line("faint", at(ttl), 466, at(ttl), 496)
	c.text("small", at(fast)+9, 486, "if its clock is 5 % fast")
	c.text("", at(ttl)+9, 486, "may take over")
	for _, t := range []float64{trust, slow, fast, ttl} {
		c.line("faint", at(t), 496, at(t), 512)
	}
	c.middle("small dim", at(trust), 528, seconds(trust))
	c.before("small dim", at(slow)+4, 528, seconds(slow))
	c.text("small dim", at(fast)-4, 528, seconds(fast))
	c.middle("small dim", at(ttl), 528, seconds(ttl))
	return c.end()
}

func seconds(s float64) string { return strconv.FormatFloat(s, 'f', 1, 64) + " s" }

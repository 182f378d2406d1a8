package page

import (
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A timeline is the picture of a lock's last hour: a lane for each owner, a bar for each hold over
// a thin bar for its wait. Its numbers are units of the picture.
type timeline struct {
	Width, Height int
	Ticks         []tick
	Lanes         []lane
	Bars          []bar
	Texts         []text
}

type (
	tick struct {
		X    int
		Text string
		End  bool // its text stands to the left of it
	}
	lane struct {
		Y    int
		Name string
	}
	bar struct {
		X, Y, W, H int
		Kind       string // released, now, died, broken, waited
		Title      string
	}
	text struct {
		X, Y int
		Kind string
		Text string
		End  bool
	}
)

const (
	laneHeight = 31
	leftMargin = 176
	plotWidth  = 1064
	topMargin  = 34
	hour       = time.Hour
	mostLanes  = 12
)

// newTimeline draws the last hour: the holds that have ended, the current ones, and their queue.
func newTimeline(now time.Time, ended []past, i holdfast.Info) timeline {
	t := timeline{Width: leftMargin + plotWidth + 20}
	from := now.Add(-hour)
	x := func(at time.Time) int {
		at = later(at, from)
		if at.After(now) {
			at = now
		}
		return leftMargin + int(at.Sub(from)*plotWidth/hour)
	}
	lanes := map[string]int{}
	y := func(who string) (int, bool) {
		n, ok := lanes[who]
		if !ok {
			if n = len(lanes); n == mostLanes {
				return 0, false
			}
			lanes[who] = n
			t.Lanes = append(t.Lanes, lane{topMargin + n*laneHeight, cut(who, 24)})
		}
		return topMargin + n*laneHeight, true
	}
	draw := func(who string, asked, began, end time.Time, kind, title, note string) {
		if end.Before(from) {
			return
		}
		top, ok := y(who)
		if !ok {
			return
		}
		if !asked.IsZero() && began.Sub(asked) > 0 && began.After(from) {
			t.Bars = append(t.Bars, bar{x(asked), top + 12, max(x(began)-x(asked), 1), 7, "waited", "waited " + brief(began.Sub(asked))})
		}
		if kind == "waited" {
			return
		}
		b := bar{x(began), top + 5, max(x(end)-x(began), 2), 21, kind, title}
		t.Bars = append(t.Bars, b)
		if note != "" {
			label := text{X: b.X + b.W + 8, Y: top + 20, Kind: kind, Text: note}
			if room := leftMargin + plotWidth - label.X; room < 7*len([]rune(note)) {
				label.X, label.End = b.X-8, true
			}
			t.Texts = append(t.Texts, label)
		}
	}
	for n := len(ended) - 1; n >= 0; n-- { // oldest first
		p := ended[n]
		draw(p.Owner, p.From.Add(-p.Waited), p.From, p.To, p.kind(), p.End+", held for "+brief(p.To.Sub(p.From)), p.note())
	}
	for _, c := range i.Holders {
		draw(ownerOnly(c.Owner), c.Requested, granted(c), now, "now", "holds now, for "+brief(now.Sub(granted(c))), "")
	}
	for _, c := range i.Waiters {
		draw(ownerOnly(c.Owner), c.Requested, now, now, "waited", "", "")
	}
	for m := 60; m >= 0; m -= 10 {
		at := now.Add(-time.Duration(m) * time.Minute)
		one := tick{X: x(at), Text: at.UTC().Format("15:04")}
		if m == 0 {
			one.Text = "now"
		}
		t.Ticks = append(t.Ticks, one)
	}
	t.Height = topMargin + max(len(lanes), 1)*laneHeight + 6
	return t
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

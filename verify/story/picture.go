//go:build linux

package story

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/verify/check"
)

// A Clash is a time at which more held a name than one of them tolerates.
type Clash struct {
	Name     string
	From, To time.Duration
	Holds    []*Hold
}

// Clashes are all of them, in the order of time.
func (h *History) Clashes() (all []Clash) {
	byName := make(map[string][]*Hold)
	for _, o := range h.Holds() {
		if o.Ended > o.Granted {
			byName[o.Name] = append(byName[o.Name], o)
		}
	}
	for name, holds := range byName {
		slices.SortFunc(holds, func(a, b *Hold) int { return cmp.Compare(a.Granted, b.Granted) })
		for i, o := range holds {
			inside := []*Hold{o}
			for _, p := range holds[:i] {
				if p.Ended > o.Granted {
					inside = append(inside, p)
				}
			}
			least, to := len(inside), o.Ended
			for _, p := range inside {
				if p.Slots > 0 {
					least = min(least, p.Slots)
				}
				to = min(to, p.Ended)
			}
			if least < len(inside) {
				all = append(all, Clash{name, o.Granted, to, inside})
			}
		}
	}
	slices.SortFunc(all, func(a, b Clash) int { return cmp.Compare(a.From, b.From) })
	return all
}

// A Picture shows what overlapped: the holds of one name around a time.
type Picture struct {
	h        *History
	name     string
	from, to time.Duration
	clash    *Clash
	holds    []*Hold
	rows     []string // workers
}

// Picture is that of the first clash, or else of the first name that a violation
// speaks of. It is nil if there is nothing to show.
func (h *History) Picture(found []check.Violation) *Picture {
	p := &Picture{h: h}
	all := h.Holds()
	if clashes := h.Clashes(); len(clashes) > 0 {
		c := clashes[0]
		p.clash, p.name, p.from, p.to = &c, c.Name, c.From, c.To
		for _, o := range c.Holds {
			p.from, p.to = min(p.from, o.Granted), max(p.to, o.Ended)
		}
	} else {
		for _, v := range found {
			for _, o := range all {
				if p.name == "" && (strings.Contains(v.Text, fmt.Sprintf("%q", o.Name)) || strings.Contains(v.Text, o.Hold.String())) {
					p.name, p.from, p.to = o.Name, o.Granted, o.Ended
				}
				if o.Name == p.name && strings.Contains(v.Text, o.Hold.String()) {
					p.from, p.to = o.Granted, o.Ended
				}
			}
		}
		if p.name == "" {
			return nil
		}
		for _, o := range all { // without one in particular, all
			if o.Name == p.name && !slices.ContainsFunc(found, func(v check.Violation) bool { return strings.Contains(v.Text, o.Who) }) {
				p.from, p.to = min(p.from, o.Granted), max(p.to, o.Ended)
			}
		}
	}
	room := max((p.to-p.from)/5, 50*time.Millisecond)
	p.from, p.to = p.from-room, p.to+room
	for _, o := range all {
		if o.Name == p.name && o.Ended > p.from && o.Granted < p.to && o.Ended > o.Granted {
			p.holds = append(p.holds, o)
		}
	}
	for _, s := range h.Stories {
		p.rows = append(p.rows, s.ID)
	}
	return p
}

func (o *Hold) row() string { return o.of.ID }

func mode(slots int) string {
	switch slots {
	case 0:
		return "shared"
	case 1:
		return "exclusive"
	}
	return fmt.Sprintf("one of %d", slots)
}

// says is the sentence above a picture.
func (p *Picture) says() string {
	if p.clash == nil {
		return fmt.Sprintf("%q, %v to %v", p.name, p.from.Round(time.Millisecond), p.to.Round(time.Millisecond))
	}
	var who []string
	for _, o := range p.clash.Holds {
		who = append(who, fmt.Sprintf("%s (token %d, %s)", o.Who, o.Token, mode(o.Slots)))
	}
	return fmt.Sprintf("%q was held at once by %s for %v", p.name, strings.Join(who, " and "), (p.clash.To - p.clash.From).Round(time.Microsecond))
}

// Text is the picture for a terminal.
func (p *Picture) Text() string {
	const wide = 72
	column := func(at time.Duration) int {
		return min(max(int(int64(at-p.from)*wide/int64(p.to-p.from)), 0), wide-1)
	}
	fill := func(row []byte, from, to time.Duration, with byte) {
		if to <= p.from || from >= p.to {
			return
		}
		for i := column(from); i <= column(to); i++ {
			row[i] = with
		}
	}
	blank := func() []byte { return []byte(strings.Repeat(" ", wide)) }
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%-8s |%s| %v a column\n", p.says(), "", strings.Repeat("-", wide), ((p.to - p.from) / wide).Round(time.Microsecond))
	for _, s := range p.h.Stories {
		row := blank()
		for _, stop := range s.Stops {
			fill(row, time.Duration(stop[0]), time.Duration(stop[1]), 'z')
		}
		for _, o := range p.holds {
			if o.of == s {
				fill(row, o.Granted, o.Ended, map[bool]byte{true: '#', false: '='}[o.Slots == 1])
			}
		}
		if k := time.Duration(s.Killed); k > max(p.from, 0) && k < p.to {
			row[column(k)] = 'X'
		}
		fmt.Fprintf(&b, "%-8s |%s|\n", s.ID, row)
	}
	row := blank()
	for _, f := range p.h.Faults {
		fill(row, time.Duration(f[0]), time.Duration(f[1]), '~')
	}
	fmt.Fprintf(&b, "%-8s |%s|\n", "fault", row)
	if p.clash != nil {
		row := blank()
		fill(row, p.clash.From, p.clash.To, '!')
		fmt.Fprintf(&b, "%-8s |%s|\n", "at once", row)
	}
	b.WriteString("# exclusive, = shared or slots, z stopped, X killed\n")
	for _, n := range p.notes() {
		fmt.Fprintf(&b, "%+10v %s\n", (time.Duration(n.At) - p.from).Round(time.Millisecond), n.Text)
	}
	return b.String()
}

func (p *Picture) notes() (some []Note) {
	for _, n := range p.h.Notes {
		if at := time.Duration(n.At); at > p.from && at < p.to {
			some = append(some, n)
		}
	}
	return some[:min(len(some), 20)]
}

// SVG writes it as a file for a browser.
func (p *Picture) SVG(w io.Writer) error {
	const left, wide, high, top = 90, 1000, 28, 70
	x := func(at time.Duration) float64 {
		return left + min(max(float64(at-p.from)/float64(p.to-p.from), 0), 1)*wide
	}
	row := make(map[string]int)
	for i, id := range p.rows {
		row[id] = top + i*high
	}
	bottom := top + len(p.rows)*high
	notes := p.notes()
	var b strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	box := func(class string, from, to time.Duration, y, height int, tip string) {
		if to > p.from && from < p.to {
			put(`<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`, class, x(from), y, max(x(to)-x(from), 1), height, html.EscapeString(tip))
		}
	}
	put(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`, left+wide+20, bottom+60+18*len(notes))
	put(`<style>.hold{fill:#3b6ea5}.shared{fill:#7fb069}.fault{fill:#f3d9a4;opacity:.6}.stop{fill:#bbb}.clash{fill:#d00;fill-opacity:.25;stroke:#d00}.put{stroke:#fff}.refused{stroke:#d00}text.token{fill:#fff}</style>`)
	put(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	put(`<text x="10" y="20" font-weight="bold">%s</text>`, html.EscapeString(p.h.Title))
	put(`<text x="10" y="40">%s</text>`, html.EscapeString(p.says()))
	for _, f := range p.h.Faults {
		box("fault", time.Duration(f[0]), time.Duration(f[1]), top-8, bottom-top+8, "something was broken on purpose")
	}
	for _, s := range p.h.Stories {
		y := row[s.ID]
		put(`<text x="10" y="%d">%s</text><line x1="%d" x2="%d" y1="%d" y2="%d" stroke="#ddd"/>`, y+18, html.EscapeString(s.ID), left, left+wide, y+high, y+high)
		for _, stop := range s.Stops {
			box("stop", time.Duration(stop[0]), time.Duration(stop[1]), y+2, high-4, "stopped")
		}
	}
	for _, o := range p.holds {
		class, y := "shared", row[o.row()]
		if o.Slots == 1 {
			class = "hold"
		}
		box(class, o.Granted, o.Ended, y+4, high-8, o.Hold.String())
		if x(o.Ended)-x(o.Granted) > 120 {
			put(`<text class="token" x="%.1f" y="%d">%d</text>`, x(o.Granted)+4, y+18, o.Token)
		}
	}
	for _, s := range p.h.Stories {
		y := row[s.ID]
		for _, e := range s.Events {
			if at := time.Duration(e.At); e.What == Put && e.Name == p.name && at > p.from && at < p.to {
				put(`<line class="%s" x1="%.1f" x2="%.1f" y1="%d" y2="%d"><title>put %d under token %d: %s</title></line>`,
					map[bool]string{true: "refused", false: "put"}[e.Text == "refused"], x(at), x(at), y+4, y+high-4, e.Value, e.Token, html.EscapeString(e.Text))
			}
		}
		if k := time.Duration(s.Killed); k > max(p.from, 0) && k < p.to {
			put(`<text x="%.1f" y="%d" font-weight="bold">&#x2715;<title>killed</title></text>`, x(k)-4, y+19)
		}
	}
	if c := p.clash; c != nil {
		box("clash", c.From, c.To, top-8, bottom-top+8, p.says())
	}
	for i := range 11 {
		at := p.from + (p.to-p.from)*time.Duration(i)/10
		put(`<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#999"/><text x="%.1f" y="%d" text-anchor="middle" fill="#555">%v</text>`,
			x(at), x(at), bottom, bottom+6, x(at), bottom+20, (at - p.from).Round(time.Millisecond))
	}
	for i, n := range notes {
		put(`<text x="10" y="%d">%v %s</text>`, bottom+48+18*i, (time.Duration(n.At) - p.from).Round(time.Millisecond), html.EscapeString(n.Text))
	}
	put(`</svg>`)
	_, err := io.WriteString(w, b.String())
	return err
}

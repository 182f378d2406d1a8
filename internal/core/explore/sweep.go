package explore

import (
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A sweeper is a process that only sweeps, again and again. Between two passes another process may
// take its place: a session whose first heartbeat arrives after its tombstone went is alive again,
// and a sweeper that knows of its death no longer observes it. A pass reads the sessions, then the
// names, and then removes tombstones.
type sweeper struct {
	Detector *lease.Detector
	Deaths   *lease.Deaths
	Phase    phase
	Sessions []sighting // when the pass began
	Claimed  []string   // sessions that had claims at names that were read
	Name     int        // that is read or written next
	Record   record.Lock
	Write    *op      // of the name, after Record; or a verdict
	Came     []string // sessions that got a claim at a name after it was read
}

func newSweeper() *sweeper { return &sweeper{Detector: &lease.Detector{}, Deaths: &lease.Deaths{}} }

type phase int8

const (
	sweepRests    phase = iota
	sweepSessions       // are observed
	sweepNames          // are read, and rid of claims of the dead
	sweepOrphans        // claims whose session has no record: it is given one
)

// A sighting is the record of a session as it was read.
type sighting struct {
	row
	Age time.Duration // by the store's clock; negative: it has none
}

// bySweeper marks a write as the sweeper's.
const bySweeper = -3

// sweeps are the work of the sweeper, and the store's removal of rows that hold nothing.
func (s Setup) sweeps(w *World, act act) {
	if !s.Sweeps {
		return
	}
	do := func(what string, f func(x *shell, p *sweeper)) {
		act(-1, "the sweeper "+what, false, func(x *shell) {
			p := *x.w.Sweeper
			p.Detector, p.Deaths = p.Detector.Clone(), p.Deaths.Clone()
			x.w.Sweeper = &p
			f(x, &p)
		})
	}
	for n, l := range w.Locks {
		if l.Version != 0 && l.empty() {
			act(-1, "the row"+s.called(n)+" is removed", false, func(x *shell) { x.w.Locks[n].remove() })
		}
	}
	p := w.Sweeper
	switch {
	case p.Write != nil && p.Write.Kind == ofVerdict:
		do("writes its verdict", func(x *shell, p *sweeper) { x.sweeperDeclares(p) })
		return
	case p.Write != nil:
		do("writes"+s.called(p.Name), func(x *shell, p *sweeper) { x.sweeperWrites(p) })
		return
	case p.Phase == sweepRests:
		do("reads the sessions", func(x *shell, p *sweeper) { x.sweepBegins(p) })
		if len(p.Deaths.Tombstones()) > 0 {
			do("is another process", func(_ *shell, p *sweeper) { *p = *newSweeper() })
		}
	case p.Phase == sweepSessions:
		do("goes on to the names", func(_ *shell, p *sweeper) { p.Phase = sweepNames })
	case p.Phase == sweepNames:
		do("reads"+s.called(p.Name), func(x *shell, p *sweeper) { x.sweeperReads(p) })
	case p.Phase == sweepOrphans:
		do("removes tombstones", func(x *shell, p *sweeper) { x.sweepEnds(p) })
	}
	for _, session := range s.suspects(w, p) {
		do("observes "+session, func(x *shell, p *sweeper) {
			var dead bool
			if p.Write, dead = x.judge(p.Detector, session, "sweeper", bySweeper); dead {
				r := x.w.find(session)
				p.Deaths.Know(session, r.Record, x.age(x.w, r), x.w.Now, x.w.clocks())
			}
		})
	}
}

// suspects are the sessions that the sweeper observes.
func (s Setup) suspects(w *World, p *sweeper) (sessions []string) {
	if s.Still {
		return nil
	}
	seen := func(id string) bool {
		return slices.ContainsFunc(p.Sessions, func(g sighting) bool { return g.ID == id })
	}
	switch p.Phase {
	case sweepSessions:
		for _, g := range p.Sessions {
			if _, dead := p.Deaths.Tombstone(g.ID); !dead {
				sessions = append(sessions, g.ID)
			}
		}
	case sweepOrphans:
		for _, id := range p.Claimed {
			if !seen(id) && absent(w.find(id).Record) {
				sessions = append(sessions, id)
			}
		}
	}
	return sessions
}

// sweepBegins begins a pass.
func (x *shell) sweepBegins(p *sweeper) {
	*p = sweeper{Detector: p.Detector, Deaths: p.Deaths, Phase: sweepSessions}
	for _, r := range x.w.Sessions {
		if !absent(r.Record) {
			p.Sessions = append(p.Sessions, sighting{r, min(x.age(x.w, r), time.Duration(x.longest()))})
		}
	}
	p.Detector.Forget(func(id string) bool {
		return slices.ContainsFunc(p.Sessions, func(g sighting) bool { return g.ID == id })
	})
}

// sweeperDeclares notes what became of a verdict.
func (x *shell) sweeperDeclares(p *sweeper) {
	o := x.w.apply(x.Setup, p.Write)
	p.Write = nil
	if tomb, dead := o.Verdict.Answered(o.Won, o.Record); o.Verdict.Verdict == lease.DeclareDead && dead {
		p.Deaths.Know(o.Session, tomb, o.Age, x.w.Now, x.w.clocks())
	}
}

// sweeperReads reads a name.
func (x *shell) sweeperReads(p *sweeper) {
	l := x.w.Locks[p.Name]
	if l.empty() {
		x.sweeperHasRead(p, l.Record)
		return
	}
	w, _, ok := l.Record.Void(l.Version, func(id string) bool { return p.Deaths.Dead(id, x.w.Now) }, 1)
	if !ok {
		x.sweeperHasRead(p, w.Next)
		return
	}
	p.Record, p.Write = l.Record, &op{Kind: ofName, From: bySweeper, Name: p.Name, Write: w, Sent: x.w.Now}
}

// sweeperWrites puts a record without claims of the dead in place of what was read.
func (x *shell) sweeperWrites(p *sweeper) {
	o, rec := x.w.apply(x.Setup, p.Write), p.Record
	if o.Won {
		rec = o.Write.Next
	}
	p.Write, p.Record = nil, record.Lock{}
	x.sweeperHasRead(p, rec)
}

// sweeperHasRead notes whose claims are at a name, and goes on to the next.
func (x *shell) sweeperHasRead(p *sweeper, rec record.Lock) {
	for _, c := range slices.Concat(rec.Holders, rec.Waiters) {
		p.Claimed = with(p.Claimed, c.Session)
	}
	if p.Name++; p.Name == len(x.w.Locks) {
		p.Phase, p.Name = sweepOrphans, 0
	}
}

// with adds a string to a sorted list.
func with(all []string, s string) []string {
	at, ok := slices.BinarySearch(all, s)
	if ok {
		return all
	}
	return slices.Insert(slices.Clone(all), at, s)
}

// came notes the claims that are new in a record, if its name was read before.
func (p *sweeper) came(name int, was, is record.Lock) {
	read := p.Phase == sweepOrphans || p.Phase == sweepNames && (name < p.Name || name == p.Name && p.Write != nil)
	for _, c := range slices.Concat(is.Holders, is.Waiters) {
		if read && !has(was.Holders, c) && !has(was.Waiters, c) {
			p.Came = with(p.Came, c.Session)
		}
	}
}

// sweepEnds removes the tombstones that may go, and ends the pass.
func (x *shell) sweepEnds(p *sweeper) {
	for _, g := range p.Sessions {
		claims := 0
		if _, ok := slices.BinarySearch(p.Claimed, g.ID); ok {
			claims = 1
		}
		known := time.Duration(-1)
		if from, ok := p.Deaths.Tombstone(g.ID); ok {
			known = x.w.Now.Sub(from)
		}
		r := x.w.row(g.ID)
		clocks := x.w.clocks()
		if x.Skewed {
			clocks.Wall += (365 * 24 * time.Hour).Microseconds()
		}
		if r.Version != g.Version || !g.Record.MayEmpty(claims, g.Age, known, clocks) {
			continue
		}
		_, late := slices.BinarySearch(p.Came, g.ID)
		switch {
		case g.Record.Dead == 0:
			x.w.bad = "the record of a session goes that was not declared dead"
		case !late && slices.ContainsFunc(x.w.claims(), func(c record.Claim) bool { return c.Session == g.ID }):
			x.w.bad = "a tombstone goes before the claims of its session"
		}
		x.w.write(r, record.Session{})
	}
	*p = sweeper{Detector: p.Detector, Deaths: p.Deaths}
	x.w.prune()
}

// swept says whether all that was left behind has been removed.
func (w *World) swept() bool {
	if slices.ContainsFunc(w.Locks, func(l lock) bool { return l.Version != 0 }) {
		return false
	}
	return !slices.ContainsFunc(w.Sessions, func(r row) bool {
		used := func(c *client) bool { return c.Session != nil && c.Session.ID == r.ID }
		return !absent(r.Record) && !slices.ContainsFunc(w.Clients, used)
	})
}

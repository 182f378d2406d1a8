// Package explore searches worlds made of the core itself: every interleaving of a few
// clients, their goroutines, a store, time, and the faults that are allowed. What it finds it
// tells step by step. The shell around the core (goroutines, mutexes, wake-ups) it does not
// see; that is for the simulation.
package explore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

const tick = core.Instant(time.Second)

// A Setup bounds a world.
type Setup struct {
	Users     [][]int // for each client, the slots of each of its goroutines: 1 exclusive, 0 shared
	Rounds    int     // how often each takes the lock
	TTL       int     // in ticks
	Sessions  int     // of each client
	Crashes   int
	Ambiguous int      // writes that are never answered
	Cancels   int      // requests that are given up
	Restarts  int      // of clients that have crashed
	NewTTLs   []int    // what the store's TTL becomes, one after the other, in ticks
	Grace     int      // in ticks
	Detach    int      // ticks for which a hold of the first client may be left without a process
	Breaks    int      // of claims, by somebody else
	Still     bool     // time stands still: no session is declared dead
	Marks     bool     // a detector may suspect
	Ages      bool     // the store has a clock
	Leap      int      // quarters of a tick by which it leaps, once
	Limit     int      // states; 0: none
	After     []string // actions that come before all others
}

// longest is how far back an instant can matter.
func (s Setup) longest() core.Instant {
	most := ticks(slices.Max(append([]int{s.TTL}, s.NewTTLs...)))
	if s.Detach > 0 {
		most = max(most, core.DetachedTTL(ticks(s.Detach)))
	}
	return core.Instant(most + ticks(s.Grace+1))
}

func ticks(n int) time.Duration { return time.Duration(n) * time.Duration(tick) }

// ttl is what the store's setting says.
func (s Setup) ttl(w *World) time.Duration {
	if w.Set > 0 {
		return ticks(s.NewTTLs[w.Set-1])
	}
	return ticks(s.TTL)
}

// A World is a store and its clients at one instant.
type World struct {
	Now       core.Instant
	Lock      core.LockRecord
	LockV     core.Version
	MaxToken  core.Token // above all that were given
	Sessions  []row
	Clients   []*client
	Late      []*op // writes of the past that may still arrive
	Crashes   int
	Ambiguous int
	Cancels   int
	Restarts  int
	Set       int          // of the new TTLs
	Leapt     core.Instant // by how much the store's clock is ahead
	Ends      []end        // of trust, where there is grace
	Break     forced

	bad      string // what is wrong with it
	nonces   int64
	sessionV core.Version
}

// A row is the record of a session.
type row struct {
	ID      string
	Record  core.SessionRecord
	Version core.Version
	Written core.Instant
}

// An end is when a session that is lost was trusted last.
type end struct {
	Session string
	At      core.Instant
}

// A forced release is what somebody does who breaks a claim.
type forced struct {
	Left    int // how many more
	Session string
	Nr      int64        // 0: none is under way
	Held    bool         // it is not removed before its holder has stopped, or cannot believe any more
	Read    core.Instant // since when the revocation is known to have been read; Never
	Ends    core.Instant // the end of the window when the holder learnt of it; Never
	Stopped core.Instant // when the work had stopped; Never
	Removed bool
}

// A client is one process: the core's machines, and what of its shell matters.
type client struct {
	Name     *core.Name
	Session  *core.Session // nil: none
	Detector *core.Detector
	Deaths   *core.Deaths
	Users    []user
	Write    *op
	Beat     *op
	Verdict  *op
	Driving  bool // a driver is at the name,
	Out      core.Kind
	Again    bool // another heartbeat is wanted at once
	Beaten   core.Instant
	Left     *left // what its name looked like when nothing was wanted there
	Claims   int64
	Opened   int // sessions
	Last     core.Token
	Gone     bool // it has crashed, or is out of sessions
	Crashed  bool
	Timer    core.Instant // when the name wants Tick called; Never
	Detached int          // heartbeats that were to leave its hold alone
	Alone    bool         // one has, and the process has ended
}

type left struct {
	Record  core.LockRecord
	Version core.Version
	At      core.Instant
}

// A user is a goroutine that takes the lock, and gives it back.
type user struct {
	State   state
	Rounds  int
	Request *core.Request
	Token   core.Token
	Claim   core.ClaimID
}

type state int8

const (
	idle state = iota
	waiting
	holding
	leaving
	stopping // its claim was broken, and its work goes on until it has noticed
)

// An op is a write on its way.
type op struct {
	Kind    kind
	From    int
	Session string // of a verdict that of which it is, else the sender's
	Sent    core.Instant
	Write   core.Write
	Beat    core.Attempt
	Verdict core.Judgement

	Applied bool
	Won     bool
	Version core.Version
	Lock    core.LockRecord
	Record  core.SessionRecord
	Age     time.Duration // of Record by the store's clock
}

type kind int8

const (
	ofName kind = iota
	ofBeat
	ofVerdict
)

func (k kind) String() string { return [...]string{"write", "heartbeat", "verdict"}[k] }

// New is the world in which nothing has happened yet.
func New(s Setup) *World {
	w := &World{Crashes: s.Crashes, Ambiguous: s.Ambiguous, Cancels: s.Cancels, Restarts: s.Restarts, LockV: 100, sessionV: 1 << 12}
	w.Break = forced{Left: s.Breaks, Read: core.Never, Ends: core.Never, Stopped: core.Never}
	for _, users := range s.Users {
		c := fresh()
		for range users {
			c.Users = append(c.Users, user{Rounds: s.Rounds})
		}
		w.Clients = append(w.Clients, c)
	}
	return w
}

func fresh() *client {
	return &client{Name: core.NewName(), Detector: &core.Detector{}, Deaths: &core.Deaths{}, Beaten: core.Never, Timer: core.Never}
}

// with is a world of its own, in which client i may be changed.
func (w *World) with(i int) *World {
	v := *w
	v.Sessions = slices.Clone(w.Sessions)
	v.Clients = slices.Clone(w.Clients)
	v.Late = slices.Clone(w.Late)
	v.Ends = slices.Clone(w.Ends)
	if i >= 0 {
		c := *w.Clients[i]
		c.Name, c.Detector, c.Deaths = c.Name.Clone(), c.Detector.Clone(), c.Deaths.Clone()
		if c.Session != nil {
			c.Session = c.Session.Clone()
		}
		c.Users = slices.Clone(c.Users)
		v.Clients[i] = &c
	}
	return &v
}

// mayWin says whether a write can still be applied some day.
func (w *World) mayWin(o *op) bool {
	old, now := o.Write.Old, w.LockV
	switch o.Kind {
	case ofBeat:
		old, now = o.Beat.Old, w.find(o.Session).Version
	case ofVerdict:
		old, now = o.Verdict.Old, w.find(o.Session).Version
	}
	return old == core.IfEmpty || old == now
}

func (w *World) find(session string) row {
	for _, r := range w.Sessions {
		if r.ID == session {
			return r
		}
	}
	return row{ID: session}
}

func (w *World) row(session string) *row {
	for i := range w.Sessions {
		if w.Sessions[i].ID == session {
			return &w.Sessions[i]
		}
	}
	w.Sessions = append(w.Sessions, row{ID: session})
	return &w.Sessions[len(w.Sessions)-1]
}

func absent(r core.SessionRecord) bool {
	return r.Beat == 0 && r.Nonce == "" && r.TTL == 0 && r.Dead == 0
}

// apply has a write reach the store.
func (w *World) apply(s Setup, o *op) *op {
	d := *o
	d.Applied = true
	if o.Kind == ofName {
		empty := len(w.Lock.Holders)+len(w.Lock.Waiters)+len(w.Lock.Breaks) == 0 && w.Lock.Next == 0
		if o.Write.Old == w.LockV || o.Write.Old == core.IfEmpty && empty {
			w.store(s, o.From, o.Session, o.Write.Next.Stored(max(o.Write.Old, 0), w.LockV+1))
			d.Won = true
		}
		d.Version, d.Lock = w.LockV, w.Lock
	} else {
		old, next := o.Beat.Old, o.Beat.Record
		if o.Kind == ofVerdict {
			old, next = o.Verdict.Old, o.Verdict.Next
		}
		r := w.row(o.Session)
		if old == r.Version && r.Version != 0 || old == core.IfEmpty && absent(r.Record) {
			w.write(r, next)
			d.Won = true
			if next.Dead != 0 && w.trusted(o.Session, -1) {
				w.bad = "declared dead within its window"
			}
		}
		d.Version, d.Record, d.Age = r.Version, r.Record, s.age(w, *r)
	}
	w.Late = slices.DeleteFunc(w.Late, func(o *op) bool { return !w.mayWin(o) })
	return &d
}

// store has a lock record follow the one that is there. session is that of its writer.
func (w *World) store(s Setup, by int, session string, next core.LockRecord) {
	w.audit(s, by, session, w.Lock, next)
	w.LockV++
	w.Lock = next
}

func (w *World) write(r *row, next core.SessionRecord) {
	w.sessionV++
	r.Version, r.Record, r.Written = w.sessionV, next, w.Now+w.Leapt
}

// age is that of a session's record by the store's clock; negative: it has none.
func (s Setup) age(w *World, r row) time.Duration {
	if !s.Ages || r.Version == 0 {
		return -1
	}
	return (w.Now + w.Leapt).Sub(r.Written)
}

// trusted says whether a session trusts itself, if it is of another client than by.
func (w *World) trusted(session string, by int) bool {
	for i, c := range w.Clients {
		if i != by && c.Session != nil && c.Session.ID == session && c.Session.Trusted(w.Now) {
			return true
		}
	}
	return false
}

func (w *World) String() string {
	var b strings.Builder
	show := func(c core.Claim) string { return fmt.Sprintf("%s.%d", c.Session, c.Nr) }
	fmt.Fprintf(&b, "v%d [", w.LockV)
	for _, h := range w.Lock.Holders {
		fmt.Fprintf(&b, "%s#%d ", show(h), h.Token)
	}
	b.WriteString("|")
	for _, h := range w.Lock.Waiters {
		b.WriteString(" " + show(h))
	}
	b.WriteString("]")
	for i, c := range w.Clients {
		fmt.Fprintf(&b, "  %c", 'A'+i)
		if c.Gone {
			b.WriteString(" gone")
			continue
		}
		for _, u := range c.Users {
			b.WriteString(" " + [...]string{"idle", "waits", "HOLDS", "leaves", "stops"}[u.State])
		}
		if c.Session != nil {
			fmt.Fprintf(&b, " %s", c.Session.ID)
			if c.Session.Trusted(w.Now) {
				b.WriteString("+")
			}
		}
	}
	for _, r := range w.Sessions {
		if r.Record.Dead != 0 {
			b.WriteString("  dead:" + r.ID)
		}
	}
	return b.String()
}

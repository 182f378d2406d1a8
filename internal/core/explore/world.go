// Package explore searches worlds made of the core itself: every interleaving of a few clients,
// their goroutines, a store, time, and the faults that are allowed. It tells what it finds step
// by step. It does not see the shell around the core (goroutines, mutexes, wake-ups); that is
// for the simulation.
package explore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

const tick = lease.Instant(time.Second)

// A World is a store and its clients at one instant.
type World struct {
	Now       lease.Instant
	Locks     []lock
	Sessions  []row
	Clients   []*client
	Late      []*op  // writes of the past that may still arrive
	Told      []told // notifications that may arrive, again and again, until a later one does
	Crashes   int
	Ambiguous int
	Losses    int
	Cancels   int
	Shutdowns int
	Restarts  int
	Set       int           // how many of the new TTLs were set
	Leapt     lease.Instant // by how much the store's clock is ahead
	Ends      []end         // of trust, where there is grace
	Break     forced
	Breaker   *lease.Breaker // nil: nothing is broken
	Sweeper   *sweeper       // nil: there is none

	bad      string // what is wrong with it
	nonces   int64
	sessionV record.Version
}

// A lock is the record of a name.
type lock struct {
	Record   record.Lock
	Version  record.Version // 0: there is no row
	Floor    record.Version // under a row that was removed
	MaxToken record.Token   // above all that were given
	Before   *before        // what a crash of the store brings back; nil: it loses nothing
}

// A before is what a lock was before its last write.
type before struct {
	Record  record.Lock
	Version record.Version
}

// A told is what the latest notification tells a client of a name.
type told struct {
	Name, To int
	Record   record.Lock
	Version  record.Version
}

// A row is the record of a session.
type row struct {
	ID      string
	Record  record.Session
	Version record.Version
	Written lease.Instant
	Died    bool // there is a tombstone, or was one
}

// An end is when the trust in a lost session ended.
type end struct {
	Session string
	At      lease.Instant
}

// A forced release is the break of a claim by somebody else.
type forced struct {
	Left    int // how many more
	Name    int
	Session string
	Nr      int64
	Void    lease.Instant // from when the claims of its dead session are void; Never
	Ends    lease.Instant // the end of the window when the holder learnt of it; Never
	Stopped lease.Instant // when the work had stopped; Never
	Removed bool
}

// A client is one process: the core's machines, and the parts of its shell that matter.
type client struct {
	Queues   []queue        // of each name
	Session  *lease.Session // nil: none
	Detector *lease.Detector
	Deaths   *lease.Deaths
	Users    []user
	Sets     []set
	Beat     *op
	Verdict  *op
	Again    bool // another heartbeat is wanted at once
	Beaten   lease.Instant
	Claims   int64
	Opened   int  // sessions
	Gone     bool // it has crashed, or is out of sessions
	Crashed  bool
	Shut     shut
	Detached int  // heartbeats that were to leave its hold alone
	Marked   int  // heartbeats in a row that lost to a mark
	Alone    bool // one has, and the process has ended
}

// A queue is a client's local queue of a name.
type queue struct {
	Name        *core.Name
	Write       *op
	Reconciling bool // a driver runs
	Out         core.Kind
	Left        *left         // the record when the queue was last retired
	Timer       lease.Instant // when the name wants Tick called; Never
	Last        record.Token  // that was granted
}

type left struct {
	Record  record.Lock
	Version record.Version
	At      lease.Instant
}

// A user is a goroutine that takes the lock, and gives it back.
type user struct {
	Name    int
	State   state
	Rounds  int
	Request *core.Request
	Token   record.Token
	Claim   core.ClaimID
}

// end ends a round.
func (u *user) end() { *u = user{Name: u.Name, Rounds: max(u.Rounds-1, 0)} }

type state int8

const (
	idle state = iota
	waiting
	holding
	leaving
	stopping // its claim was broken, and its work goes on until it has noticed

	// Members of sets also:
	refused
	unanswered
	lost // with its session
)

func (s state) String() string {
	return [...]string{"idle", "waits", "HOLDS", "leaves", "stops", "refused", "unanswered", "lost"}[s]
}

// An op is a write on its way.
type op struct {
	Kind    kind
	From    int
	Name    int    // of a write
	Session string // of a verdict: the session that was observed; else the sender's
	Sent    lease.Instant
	Write   record.Write
	Beat    lease.Attempt
	Verdict lease.Observation

	Applied bool
	Won     bool
	Version record.Version
	Lock    record.Lock
	Record  record.Session
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
	w := &World{Crashes: s.Crashes, Ambiguous: s.Ambiguous, Losses: s.Losses, Cancels: s.Cancels, Shutdowns: s.Shutdowns, Restarts: s.Restarts, sessionV: 1 << 12}
	w.Break = forced{Left: s.Breaks, Void: lease.Never, Ends: lease.Never, Stopped: lease.Never}
	for n := range s.names() {
		w.Locks = append(w.Locks, lock{Version: record.Version(100 + 500*n)})
	}
	if s.Sweeps {
		w.Sweeper = newSweeper()
	}
	for i := range s.Users {
		w.Clients = append(w.Clients, s.client(i, s.Rounds))
	}
	return w
}

// client is a client with which nothing has happened yet.
func (s Setup) client(i, rounds int) *client {
	c := &client{Detector: &lease.Detector{}, Deaths: &lease.Deaths{}, Beaten: lease.Never}
	for range s.names() {
		c.Queues = append(c.Queues, queue{Name: core.NewName(nil), Timer: lease.Never})
	}
	if s.Sets == nil {
		for range s.Users[i] {
			c.Users = append(c.Users, user{Rounds: rounds})
		}
		return c
	}
	for _, names := range s.Sets[i] {
		for _, name := range names {
			c.Users = append(c.Users, user{Name: numberOf(string(name))})
		}
		c.Sets = append(c.Sets, set{Rounds: rounds})
	}
	return c
}

// with is a copy of the world in which client i may be changed.
func (w *World) with(i int) *World {
	v := *w
	v.Locks = slices.Clone(w.Locks)
	v.Sessions = slices.Clone(w.Sessions)
	v.Clients = slices.Clone(w.Clients)
	v.Late, v.Told = slices.Clone(w.Late), slices.Clone(w.Told)
	v.Ends = slices.Clone(w.Ends)
	if w.Breaker != nil {
		b := *w.Breaker
		v.Breaker = &b
	}
	if i >= 0 {
		c := *w.Clients[i]
		c.Queues = slices.Clone(c.Queues)
		for n := range c.Queues {
			c.Queues[n].Name = c.Queues[n].Name.Clone()
		}
		c.Detector, c.Deaths = c.Detector.Clone(), c.Deaths.Clone()
		if c.Session != nil {
			c.Session = c.Session.Clone()
		}
		c.Users, c.Sets = slices.Clone(c.Users), slices.Clone(c.Sets)
		for k := range c.Sets {
			if st := &c.Sets[k]; st.Set != nil {
				st.Set = st.Set.Clone()
			}
		}
		v.Clients[i] = &c
	}
	return &v
}

// mayWin says whether a write can still be applied some day.
func (w *World) mayWin(o *op) bool {
	var old, now record.Version
	switch o.Kind {
	case ofName:
		old, now = o.Write.Old, w.Locks[o.Name].Version
	case ofBeat:
		old, now = o.Beat.Old, w.find(o.Session).Version
	case ofVerdict:
		old, now = o.Verdict.Old, w.find(o.Session).Version
	}
	return old == record.IfEmpty || old == now
}

// claims are the claims in all lock records.
func (w *World) claims() (all []record.Claim) {
	for i := range w.Locks {
		r := &w.Locks[i].Record
		all = append(append(all, r.Holders...), r.Waiters...)
	}
	return all
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

func absent(r record.Session) bool {
	return r.Beat == 0 && r.Nonce == "" && r.TTL == 0 && r.Dead == 0
}

// apply delivers a write to the store.
func (w *World) apply(s Setup, o *op) *op {
	d := *o
	d.Applied = true
	if o.Kind == ofName {
		l := &w.Locks[o.Name]
		if o.Write.Old == l.Version || o.Write.Old == record.IfEmpty && l.empty() {
			was := *l
			w.store(s, o.Name, o.From, o.Session, o.Write.Old, o.Write.Next)
			if l.Before = nil; w.Losses > 0 && o.Write.Lazy && len(l.Record.Waiters) > len(was.Record.Waiters) {
				l.Before = &before{was.Record, was.Version}
			}
			d.Won = true
			if s.Tells && !l.empty() {
				w.tell(o, *l)
			}
		}
		d.Version, d.Lock = l.Version, l.Record
	} else {
		old, next := o.Beat.Old, o.Beat.Record
		if o.Kind == ofVerdict {
			old, next = o.Verdict.Old, o.Verdict.Next
		}
		r := w.row(o.Session)
		if old == r.Version && r.Version != 0 || old == record.IfEmpty && absent(r.Record) {
			w.write(r, next)
			d.Won = true
			if next.Dead != 0 && w.trusted(o.Session, -1) {
				w.bad = "declared dead within its window"
			}
		}
		d.Version, d.Record, d.Age = r.Version, r.Record, s.age(w, *r)
	}
	w.prune()
	return &d
}

// tell notifies the clients that a write names about the new record.
func (w *World) tell(o *op, l lock) {
	for i, c := range w.Clients {
		if i == o.From || c.Session == nil || o.Write.Notify != record.Everyone && o.Write.Notify != c.Session.ID {
			continue
		}
		w.Told = slices.DeleteFunc(w.Told, func(t told) bool { return t.Name == o.Name && t.To == i })
		w.Told = append(w.Told, told{o.Name, i, l.Record, l.Version})
	}
}

// prune forgets late writes that must lose.
func (w *World) prune() {
	w.Late = slices.DeleteFunc(w.Late, func(o *op) bool { return !w.mayWin(o) })
}

// empty says whether the record has no value.
func (l *lock) empty() bool {
	r := &l.Record
	return len(r.Holders)+len(r.Waiters)+len(r.Breaks) == 0 && r.Next == 0
}

// store replaces a lock record, as a write after version old does. session is the writer's.
func (w *World) store(s Setup, name, by int, session string, old record.Version, next record.Lock) {
	l := &w.Locks[name]
	version := l.least() + 1
	next = next.Stored(max(old, 0), version)
	w.audit(s, name, by, session, l.Record, next)
	if p := w.Sweeper; p != nil && by != bySweeper {
		q := *p
		q.came(name, l.Record, next)
		w.Sweeper = &q
	}
	l.Record, l.Version, l.Floor = next, version, 0
}

// lose loses the last write of a lock. No version comes twice: later versions go by the clock.
func (l *lock) lose() {
	l.Record, l.Version, l.Floor, l.Before = l.Before.Record, l.Before.Version, l.least(), nil
}

// least is the version below all versions to come.
func (l *lock) least() record.Version { return max(l.Version, l.Floor) }

// remove removes the row, which holds nothing.
func (l *lock) remove() {
	l.Floor = l.Version
	l.Version = 0
}

func (w *World) write(r *row, next record.Session) {
	w.sessionV++
	r.Version, r.Record, r.Written = w.sessionV, next, w.Now+w.Leapt
	r.Died = r.Died || next.Dead != 0
}

// age is the age of a session's record by the store's clock; negative: the store has no clock.
func (s Setup) age(w *World, r row) time.Duration {
	if !s.Ages || r.Version == 0 {
		return -1
	}
	return (w.Now + w.Leapt).Sub(r.Written)
}

// trusted says whether a session of a client other than by trusts itself.
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
	show := func(c record.Claim) string { return fmt.Sprintf("%s.%d", c.Session, c.Nr) }
	for _, l := range w.Locks {
		fmt.Fprintf(&b, "v%d [", l.Version)
		for _, h := range l.Record.Holders {
			fmt.Fprintf(&b, "%s#%d ", show(h), h.Token)
		}
		b.WriteString("|")
		for _, h := range l.Record.Waiters {
			b.WriteString(" " + show(h))
		}
		b.WriteString("] ")
	}
	for i, c := range w.Clients {
		fmt.Fprintf(&b, " %c", 'A'+i)
		if c.Gone {
			b.WriteString(" gone")
			continue
		}
		for _, u := range c.Users {
			fmt.Fprintf(&b, " %s", u.State)
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

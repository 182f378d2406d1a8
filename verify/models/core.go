package models

import (
	"fmt"
	"slices"
	"strings"
)

// The core of Holdfast: one name, its record, the records of sessions, and two or
// three processes with their heartbeats, claims, waits and judgements. A
// version is not a number here but a question: is what I know of the record still
// what stands there? That is all a compare-and-swap asks, so the model needs
// no horizon.

// A Rule is one that a variant breaks on purpose.
type Rule string

const (
	windowFromAnswer  Rule = "the window is counted from the answer"
	grantOpens        Rule = "a grant opens a closed window"
	buryEarly         Rule = "burial a tick before the TTL"
	buryBlindly       Rule = "judged once, buried without the version"
	buryUnversioned   Rule = "burial without the version judged"
	revival           Rule = "a late beat opens a window that has ended"
	silenceAndRevival Rule = "silence without a tombstone, and late beats open windows"
	absentIsDead      Rule = "no record means dead"
	noVersion         Rule = "no version is checked"
	adoptOld          Rule = "a new session takes its process's old claims for its own"
	dropHolder        Rule = "release drops whoever holds"
	forgetBlind       Rule = "a blind write of unknown outcome is forgotten"
	readOnly          Rule = "an unknown outcome is settled by reading alone"
	noGrant           Rule = "release grants to nobody"
	writerJumps       Rule = "a writer goes to the head of the queue"
	readerJumps       Rule = "a reader goes in beside readers, past a waiting writer"
	silenceIsDeath    Rule = "silence is taken for death, without a tombstone"
	slotsByNewcomer   Rule = "only the newcomer's slots are counted"
	markTwice         Rule = "a beat is marked again and again"
)

// A coreWorld bounds what can happen in the core.
type coreWorld struct {
	slots    []uint8 // for each process: 1 exclusive, 0 shared, n slots
	rounds   []uint8 // how often it takes the lock
	ttl      uint8   // in ticks
	sessions uint8   // of each process, one after the other
	crashes  uint8
	unknowns uint8 // answers that never come
	cancel   bool
	marks    bool // waiters ask for heartbeats
	still    bool // time stands still
	broken   Rule
	plain    bool // only what holders believe is judged, not the steps of records
}

func (w coreWorld) String() string {
	var who []string
	for i, n := range w.slots {
		kind := map[uint8]string{0: "S", 1: "X"}[n]
		if kind == "" {
			kind = fmt.Sprintf("%d", n)
		}
		who = append(who, fmt.Sprintf("%s*%d", kind, w.rounds[i]))
	}
	s := strings.Join(who, " ") + fmt.Sprintf(", TTL %d, crashes %d, unknown %d", w.ttl, w.crashes, w.unknowns)
	if w.sessions > 1 {
		s += fmt.Sprintf(", %d sessions each", w.sessions)
	}
	if w.cancel {
		s += ", cancel"
	}
	if w.marks {
		s += ", marks"
	}
	if w.still {
		s += ", time stands still"
	}
	return s
}

const (
	coreProcs    = 3
	coreSessions = 6
	coreClaims   = 6
)

// A coreRecord is a lock record: holders first, then who waits.
type coreRecord struct {
	holders, n uint8
	claims     [coreClaims]uint8 // 1 + session*maxRounds + number
}

// What stands under a session's key.
const (
	absent   = iota
	live     // beats
	marked   // asked for a heartbeat
	declared // beat 0, written by a judge
	tomb
	ours // an earlier beat of the same process
)

// How a write stands.
const (
	none = iota
	sent
	won
	lost
)

// What a write expects.
const (
	stale = iota // what stands there no longer
	fresh        // what stands there
	blind        // nothing
)

// What a process does with its claim.
const (
	idle = iota
	want
	held
	leave
	crashed
	gone // has used up its sessions
)

// What the last answer said of the wanted claim.
const (
	untold = iota
	holder
	waiter
	missing
)

type coreProc struct {
	pc, left uint8
	session  uint8 // how many it has had before
	open     uint8
	window   uint8 // ticks of trust left
	known    uint8 // whether the version of its session record that it knows stands: stale or fresh

	// The heartbeat on its way.
	beat, beatAge, beatOld, beatOf uint8
	beatLost                       uint8 // what it lost to: a session record, or one of ours
	marks                          uint8 // beats in a row that lost to a mark

	// The write of the lock on its way.
	write, writeOld uint8
	value           coreRecord

	copyOld uint8 // whether a copy of the lock record is there (blind: none) and stands
	copy    coreRecord
	told    uint8

	watch [coreSessions]uint8 // 1 + ticks for which the same beat has stood
	bury  uint8               // the burial on its way: 1 + session
	grave uint8               // whether what was judged still stands
}

// A ghost is a write whose answer never comes, and which may be applied at any time.
type coreGhost struct {
	kind    uint8 // 0 none
	of      uint8 // process, or session to be buried
	old     uint8
	age     uint8
	status  uint8 // sent, or won: applied and standing
	session uint8
	value   coreRecord
}

const (
	ghostWrite = 1 + iota
	ghostBeat
	ghostBury
)

type coreState struct {
	lock     coreRecord
	sessions [coreSessions]uint8
	p        [coreProcs]coreProc
	ghosts   [2]coreGhost
	crashes  uint8
	unknowns uint8
	bad      uint8
}

const (
	overtaken = 1 + iota
	buriedAlive
	droppedAlive
	markedTwice
)

// A core is a world with what follows from it.
type core struct {
	coreWorld
	n, maxRounds uint8
}

// Core is the model of the core in a world.
func (w coreWorld) model() Model[coreState] {
	c := &core{w, uint8(len(w.slots)), slices.Max(w.rounds)}
	s := coreState{crashes: w.crashes, unknowns: w.unknowns}
	for i := range s.p {
		s.p[i].pc = crashed
		if i < int(c.n) {
			s.p[i] = coreProc{left: w.rounds[i], copyOld: blind}
		}
	}
	m := Model[coreState]{Init: []coreState{s}, Next: c.next, Bad: c.bad, Done: c.done, Show: c.show}
	if w.ttl == 1 && !w.still {
		m.Done = nil // with such a TTL no session outlives a tick
	}
	return m
}

func (c *core) sid(p uint8, s *coreState) uint8 { return p*c.sessionsEach() + s.p[p].session }
func (c *core) sessionsEach() uint8             { return max(c.sessions, 1) }
func (c *core) owner(sid uint8) uint8           { return sid / c.sessionsEach() }
func (c *core) sessionOf(claim uint8) uint8     { return (claim - 1) / c.maxRounds }
func (c *core) slotsOf(claim uint8) uint8       { return c.slots[c.owner(c.sessionOf(claim))] }

// claim is what process p wants now.
func (c *core) claim(p uint8, s *coreState) uint8 {
	return 1 + c.sid(p, s)*c.maxRounds + (c.rounds[p] - s.p[p].left)
}

func (r *coreRecord) index(claim uint8) int { return slices.Index(r.claims[:r.n], claim) }

func (r *coreRecord) remove(i int) {
	copy(r.claims[i:], r.claims[i+1:])
	r.claims[coreClaims-1] = 0
	r.n--
	if i < int(r.holders) {
		r.holders--
	}
}

func (r *coreRecord) insert(i int, claim uint8) {
	if r.n == coreClaims {
		panic("a record has more claims than the model has room for")
	}
	copy(r.claims[i+1:], r.claims[i:])
	r.claims[i] = claim
	r.n++
}

func (c *core) fits(claim uint8, r *coreRecord) bool {
	n := r.holders + 1
	if m := c.slotsOf(claim); m != 0 && n > m {
		return false
	}
	if c.broken == slotsByNewcomer {
		return true
	}
	for _, h := range r.claims[:r.holders] {
		if m := c.slotsOf(h); m != 0 && n > m {
			return false
		}
	}
	return true
}

// settle is the pure rule: what is unwanted goes, the wanted claim is
// put at the end, and the head goes in while it fits.
func (c *core) settle(r coreRecord, unwanted func(claim uint8) bool, wanted uint8, grants bool) coreRecord {
	for i := int(r.n) - 1; i >= 0; i-- {
		if unwanted(r.claims[i]) {
			r.remove(i)
		}
	}
	if wanted != 0 && r.index(wanted) < 0 {
		at := int(r.n)
		if c.broken == writerJumps && c.slotsOf(wanted) == 1 {
			at = int(r.holders)
		}
		r.insert(at, wanted)
		if c.broken == readerJumps && c.slotsOf(wanted) == 0 && c.fits(wanted, &r) {
			r.remove(at)
			r.insert(int(r.holders), wanted)
			r.holders++
		}
	}
	for grants && r.holders < r.n && c.fits(r.claims[r.holders], &r) {
		r.holders++
	}
	slices.Sort(r.claims[:r.holders])
	return r
}

// put makes a record stand: what others know of the one before is stale.
func (c *core) put(s *coreState, by uint8, r coreRecord) {
	c.audit(s, by, &s.lock, &r)
	s.lock = r
	for i := range s.p {
		p := &s.p[i]
		if p.copyOld == fresh {
			p.copyOld = stale
			if c.broken != noVersion {
				p.copy = coreRecord{}
			}
		}
		if p.write == sent && p.writeOld == fresh {
			p.writeOld = stale
			if c.broken != noVersion {
				p.value = coreRecord{}
			}
		}
	}
	for i := range s.ghosts {
		g := &s.ghosts[i]
		if g.kind == ghostWrite && g.old == fresh {
			*g = coreGhost{} // it can never be applied
		}
	}
	sortGhosts(s)
}

// audit judges the step from one record to the next.
func (c *core) audit(s *coreState, by uint8, was, is *coreRecord) {
	if c.plain {
		return
	}
	for _, granted := range is.claims[:is.holders] {
		i := was.index(granted)
		if i >= 0 && i < int(was.holders) {
			continue
		}
		if i < 0 {
			i = int(was.n)
		}
		for _, before := range was.claims[was.holders:max(i, int(was.holders))] {
			if j := is.index(before); j >= int(is.holders) {
				s.bad = overtaken
			}
		}
	}
	for j, claim := range is.claims[:is.n] {
		if j < int(is.holders) || was.index(claim) >= 0 {
			continue
		}
		for _, behind := range is.claims[j+1 : is.n] {
			if was.index(behind) >= 0 {
				s.bad = overtaken
			}
		}
	}
	for _, claim := range was.claims[:was.n] {
		sid := c.sessionOf(claim)
		o := c.owner(sid)
		if is.index(claim) < 0 && o != by && c.sid(o, s) == sid && s.p[o].window > 0 {
			s.bad = droppedAlive
		}
	}
}

// set makes a session record stand: what others know of the one before is stale.
// beat says whether what judges watch has changed.
func (c *core) set(s *coreState, sid, to uint8, beat bool) {
	if o := c.owner(sid); to == tomb && !c.plain && s.p[o].window > 0 && c.sid(o, s) == sid {
		s.bad = buriedAlive
	}
	s.sessions[sid] = to
	for i := range s.p {
		p := &s.p[i]
		if beat && c.broken != buryBlindly {
			p.watch[sid] = 0
		}
		if p.bury == 1+sid {
			p.grave = stale
		}
	}
	o := &s.p[c.owner(sid)]
	if to == live {
		o.marks = 0
	}
	if o.pc != crashed && c.sid(c.owner(sid), s) == sid {
		o.known = stale
	}
	if o.beat != none && o.beatOf == sid && o.beatOld == fresh {
		o.beatOld = stale
	}
	for i := range s.ghosts {
		g := &s.ghosts[i]
		if g.session != sid {
			continue
		}
		if g.kind == ghostBeat && g.status == won && !beat {
			continue // marked, but still this beat
		}
		if g.kind == ghostBeat || g.kind == ghostBury {
			*g = coreGhost{}
		}
	}
	sortGhosts(s)
}

func sortGhosts(s *coreState) {
	if s.ghosts[0].kind == 0 {
		s.ghosts[0], s.ghosts[1] = s.ghosts[1], coreGhost{}
	} else if s.ghosts[1].kind != 0 && ghostAbove(&s.ghosts[0], &s.ghosts[1]) {
		s.ghosts[0], s.ghosts[1] = s.ghosts[1], s.ghosts[0]
	}
}

func ghostAbove(a, b *coreGhost) bool {
	x := [6]uint8{a.kind, a.of, a.old, a.age, a.status, a.session}
	y := [6]uint8{b.kind, b.of, b.old, b.age, b.status, b.session}
	if d := slices.Compare(x[:], y[:]); d != 0 {
		return d > 0
	}
	return slices.Compare(a.value.claims[:], b.value.claims[:]) > 0
}

func (s *coreState) haunt(g coreGhost) {
	if s.ghosts[1].kind != 0 {
		panic("a world has more ghosts than the model has room for")
	}
	s.ghosts[1] = g
	sortGhosts(s)
}

func (c *core) bad(s coreState) string {
	switch s.bad {
	case overtaken:
		return "overtaken"
	case buriedAlive:
		return "buried within its window"
	case droppedAlive:
		return "dropped by another within its window"
	case markedTwice:
		return "marks made a beat lose twice"
	}
	var n, least uint8 = 0, 255
	for i := range s.p[:c.n] {
		if s.p[i].pc == held && s.p[i].window > 0 {
			n++
			if c.slots[i] > 0 {
				least = min(least, c.slots[i])
			}
		}
	}
	if n > least {
		return "two holders"
	}
	return ""
}

func (c *core) done(s coreState) bool {
	for i := range s.p[:c.n] {
		p := &s.p[i]
		if p.pc == crashed || p.pc == gone {
			continue
		}
		if p.pc != idle || p.left > 0 {
			return false
		}
		sid := c.sid(uint8(i), &s)
		for _, claim := range s.lock.claims[:s.lock.n] {
			if c.sessionOf(claim) == sid && p.window > 0 {
				return false
			}
		}
	}
	return true
}

func (c *core) name(claim uint8) string {
	sid := c.sessionOf(claim)
	return fmt.Sprintf("%c%d.%d", 'A'+c.owner(sid), sid%c.sessionsEach()+1, (claim-1)%c.maxRounds+1)
}

func (c *core) showRecord(r *coreRecord) string {
	var parts []string
	for i, claim := range r.claims[:r.n] {
		if i == int(r.holders) {
			parts = append(parts, "|")
		}
		parts = append(parts, c.name(claim))
	}
	return "[" + strings.Join(parts, " ") + "]"
}

func (c *core) show(s coreState) string {
	out := c.showRecord(&s.lock)
	for i := range s.p[:c.n] {
		p := &s.p[i]
		sid := c.sid(uint8(i), &s)
		record := "no session"
		if p.pc < crashed {
			record = [...]string{"no record", "live", "marked", "declared", "tomb"}[s.sessions[sid]]
		}
		out += fmt.Sprintf("  %c %s, %s", 'A'+i, [...]string{"idle", "wants", "HOLDS", "leaves", "crashed", "gave up"}[p.pc], record)
		if p.window > 0 {
			out += fmt.Sprintf(", window %d", p.window)
		}
	}
	return out
}

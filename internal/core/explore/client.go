package explore

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A shell is one step of a world: it plays the shell of the client that does something.
type shell struct {
	Setup
	w *World // being changed
	i int
	c *client // of i
	n int     // a name
	q *queue  // of the client, of that name
}

// at is the shell at a name.
func (x *shell) at(n int) *shell {
	x.n, x.q = n, &x.c.Queues[n]
	return x
}

// lock is the record of the name.
func (x *shell) lock() *lock { return &x.w.Locks[x.n] }

func (x *shell) env() *core.Env {
	c := x.c
	e := &core.Env{Now: x.w.Now, Grace: ticks(x.Grace), Wall: func() int64 { return 1 }, Answers: true, Tells: x.Tells, NewClaim: func() int64 { c.Claims++; return c.Claims },
		Dead: func(session string) bool { return c.Deaths.Dead(session, x.w.Now) }}
	if c.Session != nil {
		e.Session = c.Session.View()
	}
	return e
}

// perform carries out the effects of an event, and reconciles if that is needed.
func (x *shell) perform(eff *core.Effects) {
	c, work := x.c, eff.Work
	if eff.Tick != lease.Never && (x.q.Timer == lease.Never || eff.Tick < x.q.Timer) {
		x.q.Timer = eff.Tick
	}
	c.Again = c.Again || eff.Beat && c.Session != nil
	for _, g := range eff.Granted {
		x.granted(g)
		u := &c.Users[g.Request.Tag.(int)]
		if u.State != waiting {
			x.w.bad = "granted to a goroutine that does not wait"
		}
		u.State, u.Token, u.Claim = holding, g.Token, g.Claim
	}
	for _, r := range eff.Refused {
		x.refused(r)
	}
	for _, l := range eff.Lost {
		for k := range c.Users {
			if u := &c.Users[k]; u.Name == x.n && u.Token == l.Token && (u.State == holding || u.State == stopping) {
				x.lost(k, l.Broken != nil && c.Session != nil)
			}
		}
	}
	for _, g := range eff.Gone {
		x.gone(g)
		for k := range c.Users {
			if u := &c.Users[k]; u.Name == x.n && u.State == leaving && u.Claim.Nr == g.Nr {
				*u = user{Name: u.Name, Rounds: u.Rounds}
			}
		}
	}
	x.forget()
	if work {
		x.enqueue()
	}
}

// lost ends a hold that was not released.
func (x *shell) lost(k int, broken bool) {
	u, st := &x.c.Users[k], x.setOf(k)
	switch {
	case broken:
		if u.State == holding {
			u.State, x.w.Break.Ends = stopping, max(x.c.Session.Until(), x.w.Now)
		}
	case st != nil:
		*u = user{Name: u.Name, State: lost, Request: u.Request}
	default:
		u.end()
	}
	if st != nil {
		x.setLost(st)
	}
}

// refused ends a request.
func (x *shell) refused(r core.Refusal) {
	k := r.Request.Tag.(int)
	u := &x.c.Users[k]
	switch {
	case x.setOf(k) == nil:
		u.end()
	case r.Silent:
		u.State = unanswered
	default:
		u.State = refused
	}
}

// forget drops sessions that are no longer ahead from the detector.
func (x *shell) forget() {
	ahead := map[string]bool{}
	x.ahead(func(s string) { ahead[s] = true })
	x.c.Detector.Forget(func(s string) bool { return ahead[s] })
}

// ahead calls f with the sessions of the claims ahead of the client's.
func (x *shell) ahead(f func(session string)) {
	for i := range x.c.Queues {
		if n := x.c.Queues[i].Name; n.Waits() {
			n.Ahead(x.env(), f)
		}
	}
}

func (x *shell) enqueue() {
	if !x.q.Reconciling && !x.c.Gone {
		x.q.Reconciling = true
		x.q.Name.Begin()
		x.reconcile()
	}
}

// reconcile asks the name for steps, until one takes time.
func (x *shell) reconcile() {
	c := x.c
	for !c.Gone {
		step, eff := x.q.Name.Next(x.env())
		x.perform(eff)
		switch step.Kind {
		case core.Idle:
			x.q.Name.Rest()
			if x.q.Reconciling = false; step.Forget && !x.q.Name.Ambiguous() {
				x.leave()
			}
			return
		case core.NeedSession:
			if c.Opened == x.Sessions {
				x.retire()
				return
			}
			c.Opened++
			c.Session = &lease.Session{ID: fmt.Sprintf("%c%d", 'A'+x.i, c.Opened)}
		case core.Open:
			c.Session.Open()
			c.Session.Begin(x.ttl(x.w))
			x.beat()
			if w, ok := x.q.Name.Opening(x.env()); ok {
				x.put(w)
				return
			}
			x.q.Name.Rested()
		case core.Put:
			x.put(step.Write)
			return
		case core.Pause:
			x.q.Name.Rested()
		default:
			x.q.Out = step.Kind // the answer is an action of its own
			return
		}
	}
}

// leave forgets the name, except for what it looked like.
func (x *shell) leave() {
	rec, version := x.q.Name.Record()
	x.q.Left = nil
	if len(rec.Holders)+len(rec.Waiters) > 0 {
		x.q.Left = &left{*rec, version, x.w.Now}
	}
	x.q.Name.Forget()
}

// request asks for the lock on behalf of a goroutine.
func (x *shell) request(k int, try bool) {
	u := &x.c.Users[k]
	x.at(u.Name)
	u.State, u.Request = waiting, &core.Request{Slots: x.Users[x.i][k], Try: try, Tag: k}
	if l := x.q.Left; l != nil {
		if x.q.Left = nil; x.w.Now.Sub(l.At) < time.Second {
			x.perform(x.q.Name.Seen(l.Record, l.Version, l.At, false, x.env()))
		}
	}
	x.perform(x.q.Name.Want(u.Request, x.env()))
}

func (x *shell) put(w record.Write) {
	x.sent(w)
	x.q.Write = &op{Kind: ofName, From: x.i, Name: x.n, Write: w, Session: x.env().Session.ID, Sent: x.w.Now}
}

func (x *shell) beat() {
	x.w.nonces++
	x.c.Session.Asking(x.w.Now)
	ttl := x.c.Session.TTL()
	if x.c.Session.Opened() {
		ttl = x.ttl(x.w)
	}
	a, _ := x.c.Session.Beat(lease.BeatOf{TTL: ttl, Grace: ticks(x.Grace), Nonce: fmt.Sprint("n", x.w.nonces), Clocks: x.w.clocks()}, x.w.Now)
	x.c.Beat = &op{Kind: ofBeat, From: x.i, Beat: a, Session: x.c.Session.ID, Sent: x.w.Now}
	x.c.Again, x.c.Beaten = false, x.w.Now
}

// clocks are the clocks of every host.
func (w *World) clocks() record.Clocks { return record.Clocks{Wall: 1 + int64(w.Now)/1000} }

// retire takes a client out; what it has sent may still arrive.
func (x *shell) retire() {
	for _, o := range slices.Concat(x.c.writes(), []*op{x.c.Beat, x.c.Verdict}) {
		x.late(o)
	}
	if s := x.c.Session; s != nil {
		x.ended(s.ID, s.Until())
	}
	gone := x.anew(0)
	gone.Gone, gone.Users, gone.Sets = true, nil, nil
	x.w.Clients[x.i] = gone
	x.c.Gone = true
}

// anew is the client after its process has ended.
func (x *shell) anew(rounds int) *client {
	c := x.client(x.i, rounds)
	c.Opened = x.c.Opened
	for n := range c.Queues {
		c.Queues[n].Last = x.c.Queues[n].Last
	}
	return c
}

// writes are the writes to its names that are under way.
func (c *client) writes() (ops []*op) {
	for _, q := range c.Queues {
		if q.Write != nil {
			ops = append(ops, q.Write)
		}
	}
	return ops
}

// ended notes when a session was trusted last.
func (x *shell) ended(session string, until lease.Instant) {
	if x.Grace > 0 && until != lease.Never {
		x.w.Ends = append(x.w.Ends, end{session, min(until, x.w.Now)})
	}
}

// late keeps a write that nobody waits for any more and that may still arrive.
func (x *shell) late(o *op) {
	if o != nil && !o.Applied && x.w.mayWin(o) {
		x.w.Late = append(x.w.Late, o)
	}
}

// answer reports what became of a write.
func (x *shell) answer(o *op, none bool) {
	c := x.c
	switch o.Kind {
	case ofName:
		x.at(o.Name)
		out := core.Outcome{Sent: o.Sent, Won: o.Won, Version: o.Version, Record: o.Lock}
		if none {
			out = core.Outcome{Sent: o.Sent, Err: errNoAnswer}
		}
		x.perform(x.q.Name.Answered(out, x.env()))
		x.reconcile()
	case ofBeat:
		out := lease.Outcome{Won: o.Won, Version: o.Version, Record: o.Record, Absent: absent(o.Record)}
		if none {
			out = lease.Outcome{Err: errNoAnswer}
		}
		if c.Session != nil && c.Session.ID == o.Session {
			opened, until := c.Session.Opened(), c.Session.Until()
			eff := c.Session.Answered(o.Beat, out, x.w.Now)
			switch {
			case eff.Asked != "":
				if c.Marked++; c.Marked > 1 {
					x.w.bad = "marks made heartbeats lose twice in a row"
				}
			case o.Won:
				c.Marked = 0
			}
			x.session(eff, until)
			if opened && !none && !eff.Again && !eff.Lost {
				x.each(func() { x.perform(x.q.Name.Beaten(x.env())) })
			}
		}
	case ofVerdict:
		if none {
			return
		}
		if tomb, dead := o.Verdict.Answered(o.Won, o.Record); o.Verdict.Verdict == lease.DeclareDead && dead {
			x.died(o.Session, tomb, o.Age)
		}
	}
}

// each calls f at each name.
func (x *shell) each(f func()) {
	for n := 0; n < len(x.c.Queues) && !x.c.Gone; n++ {
		x.at(n)
		f()
	}
}

// session performs the effects of an event of the session.
func (x *shell) session(eff lease.Effects, until lease.Instant) {
	c := x.c
	c.Again = eff.Again
	if eff.Lost {
		s := c.Session
		if at, ok := s.Void(ticks(x.Grace)); ok {
			c.Deaths.Lose(s.ID, at)
		}
		x.ended(s.ID, until)
		x.late(c.Beat)
		c.Session, c.Beat = nil, nil
		x.each(func() { x.perform(x.q.Name.SessionLost(s.ID, eff.Why, eff.Err, x.env())) })
		x.each(x.awaited)
	}
	if eff.Opened {
		x.each(func() { x.perform(x.q.Name.SessionOpened(x.env())) })
		x.each(x.awaited)
	}
	for _, r := range eff.Revoked {
		x.at(numberOf(r.Name)).perform(x.q.Name.Revoke(c.Session.ID, record.Owner{}, r, x.env()))
	}
	if eff.Alone {
		x.alone()
	}
}

// lose ends the session.
func (x *shell) lose(why string) {
	until := x.c.Session.Until()
	x.session(x.c.Session.Lose(why, nil, x.w.Now), until)
}

// alone ends the process whose hold goes on without it. Where the answer came late it sends
// one more heartbeat first.
func (x *shell) alone() {
	c := x.c
	left, d := c.Session.Until().Sub(x.w.Now), ticks(x.Detach)
	switch {
	case left < d-min(d/10, time.Second) && c.Detached < 3:
		c.Detached++
		c.Again = true
	case left <= 0:
		x.retire()
	default:
		c.Session.End()
		for n := range c.Queues {
			x.late(c.Queues[n].Write)
			c.Queues[n].Write = nil
		}
		x.late(c.Verdict)
		c.Verdict, c.Alone = nil, true
	}
}

// awaited goes on with a name that awaited a session.
func (x *shell) awaited() {
	if x.q.Out == core.AwaitSession {
		x.q.Out = core.Idle
		x.q.Name.Rested()
		x.reconcile()
	}
}

// died handles a death.
func (x *shell) died(session string, tomb record.Session, age time.Duration) {
	c := x.c
	c.Deaths.Know(session, tomb, age, x.w.Now, x.w.clocks())
	c.Detector.Forget(func(s string) bool { return s != session })
	x.each(func() {
		if x.q.Name.Waits() && x.q.Name.Blocked(x.env()) {
			x.enqueue()
		}
	})
}

// observe looks at a session that is ahead.
func (x *shell) observe(session string) {
	c := x.c
	var dead bool
	if c.Verdict, dead = x.judge(c.Detector, session, string(rune('A'+x.i)), x.i); dead {
		r := x.w.find(session)
		x.died(session, r.Record, x.age(x.w, r))
	}
}

// judge observes a session with a detector. It returns the verdict to write, and whether the
// session was found dead. by and from name the observer.
func (x *shell) judge(d *lease.Detector, session, by string, from int) (verdict *op, dead bool) {
	r := x.w.find(session)
	o := lease.Observer{By: by, Patient: true, TTL: x.ttl(x.w), Clocks: x.w.clocks(), Now: x.w.Now}
	j := d.Observe(session, lease.Sighting{Record: r.Record, Absent: absent(r.Record), Version: r.Version, Age: x.age(x.w, r), Asked: x.w.Now, Got: x.w.Now}, o)
	switch j.Verdict {
	case lease.Alive:
		return nil, false
	case lease.Dead:
		return nil, true
	case lease.Adopt: // if its claim is still there
		for _, c := range x.w.claims() {
			if c.Session == session {
				j.Next.TTL = max(j.Next.TTL, c.TTL, record.MinTTL.Milliseconds())
			}
		}
		if j.Next.TTL == 0 {
			return nil, false
		}
	case lease.Suspect:
		if !x.Marks {
			return nil, false
		}
	}
	return &op{Kind: ofVerdict, From: from, Verdict: j, Session: session, Sent: x.w.Now}, false
}

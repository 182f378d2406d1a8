package core

import "slices"

// What the explorer needs: copies, so that a state can be kept while the machine goes on, and
// access to what it looks at. Requests and records are never changed in place, and are shared.

// Clone is a copy that shares nothing that changes.
func (n *Name) Clone() *Name {
	c := *n
	if n.room != nil {
		r := *n.room
		r.eff, r.spare = Effects{}, nil
		r.step.Write.Next = n.step.Write.Next.Clone() // its tokens are written out in place
		c.room = &r
	}
	c.desired = make([]*desired, len(n.desired))
	for i, g := range n.desired {
		d := *g
		d.waiting = fifo{items: slices.Clone(g.waiting.all())}
		d.active = slices.Clone(g.active)
		c.desired[i] = &d
	}
	c.releasing = slices.Clone(n.releasing)
	return &c
}

// Clone is a copy that shares nothing that changes.
func (s *Set) Clone() *Set {
	c := *s
	c.held = slices.Clone(s.held)
	return &c
}

// Vanished says whether a claim of ours has vanished from the queue. The next heartbeat tells why.
func (n *Name) Vanished() bool {
	return slices.ContainsFunc(n.desired, func(g *desired) bool { return g.vanished })
}

// Ahead calls f once for each claim ahead of our first, with the session of the claim.
func (n *Name) Ahead(env *Env, f func(session string)) {
	for _, c := range n.rec.Holders {
		if !env.ours(c.Session) && !env.Dead(c.Session) {
			f(c.Session)
		}
	}
	for _, c := range n.rec.Waiters {
		if env.ours(c.Session) {
			return
		}
		if !env.Dead(c.Session) {
			f(c.Session)
		}
	}
}

package record

import "slices"

// The rules by which a lock is granted are pure: no clock, no context, no store. Every
// write of a lock record ends in settle, so no record in the store ever has a head of the
// queue that could be granted, except behind a claim whose death its writer did not know
// of. Notifications can be lost; grants cannot.

// Fits says whether a claim can be granted beside the holders. One rule serves
// exclusive, shared and slots: each claim says how many holders it tolerates.
func Fits(c Claim, holders []Claim) bool {
	n := c.weight()
	for _, h := range holders {
		n += h.weight()
	}
	for _, h := range holders {
		if h.Slots != 0 && n > h.Slots {
			return false
		}
	}
	return c.Slots == 0 || n <= c.Slots
}

// weight is how many holders a claim counts for: a shared one counts for as many
// goroutines of its process as it has tokens.
func (c Claim) weight() int {
	if c.Slots == 0 {
		return int(min(c.Tokens(), 1<<20))
	}
	return 1
}

// Settle drops every claim whose session is dead, and then grants the head of the queue while
// it fits: the order is strict, so nobody overtakes, and neighbours that fit are granted
// together. now, in microseconds since 1970, is the time of the grants; the write that stores
// the result gives their tokens. It reports whether anything changed.
func (r *Lock) Settle(dead func(session string) bool, now int64) (changed bool) {
	if r.Drop(func(c Claim) bool { return dead(c.Session) }) {
		changed = true
	}
	var off int64 // tokens already given by the write to come
	for _, h := range r.Holders {
		if h.Token == 0 {
			off = max(off, h.Off+h.Tokens())
		}
	}
	for len(r.Waiters) > 0 && Fits(r.Waiters[0], r.Holders) {
		head := r.Waiters[0]
		head.Token, head.Off, head.Set, head.Granted = 0, off, "", now
		off += head.Tokens()
		if len(r.Holders) == 0 && len(r.Waiters) == 1 {
			r.Waiters[0] = head
			r.Holders, r.Waiters = r.Waiters, nil
			return true
		}
		r.Holders = append(r.Holders, head)
		r.Waiters = r.Waiters[1:]
		changed = true
	}
	if len(r.Waiters) == 0 {
		r.Waiters = nil // the record is kept for as long as the lock is held
	}
	return changed
}

// Drop removes the claims that are unwanted.
func (r *Lock) Drop(unwanted func(Claim) bool) (changed bool) {
	n := len(r.Holders) + len(r.Waiters)
	r.Holders = slices.DeleteFunc(r.Holders, unwanted)
	r.Waiters = slices.DeleteFunc(r.Waiters, unwanted)
	return len(r.Holders)+len(r.Waiters) != n
}

// Enqueue puts a claim at the end of the queue.
func (r *Lock) Enqueue(c Claim) { r.Waiters = append(r.Waiters, c) }

// Gives says whether a write of this record gives anyone a token, and so has
// to be on disk before it is believed.
func (r *Lock) Gives() bool {
	return slices.ContainsFunc(r.Holders, func(c Claim) bool { return c.Token == 0 })
}

package holdfast

import (
	"fmt"
	"slices"
)

// The rules by which a lock is given, pure: no clock, no context, no store.
// Every write of a lock record ends in settle, so that no record in the store
// ever has a head of the queue that could go in, except behind a claim whose
// death its writer did not know of. Wake-ups can be lost; grants cannot.

// fits says whether one more holder goes in beside the holders. It is one rule
// for exclusive, shared and slots: everyone says how many holders it tolerates.
func fits(c claimRecord, holders []claimRecord) bool {
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

// weight is how many a claim may be to those who count: a shared one is as many
// goroutines of its process as it has tokens.
func (c claimRecord) weight() int {
	if c.Slots == 0 {
		return int(min(c.tokens(), 1<<20))
	}
	return 1
}

// settle drops every claim whose session is dead, and then lets the head of
// the queue in while it fits: strict order, so nobody overtakes and neighbours
// that fit go in together. What it lets in is given tokens by the write that
// stores the result. It reports whether anything changed.
func (r *lockRecord) settle(dead func(session string) bool) (changed bool) {
	if r.drop(func(c claimRecord) bool { return dead(c.Session) }) {
		changed = true
	}
	var off int64 // tokens already given by the write to come
	for _, h := range r.Holders {
		if h.Token == 0 {
			off = max(off, h.Off+h.tokens())
		}
	}
	for len(r.Waiters) > 0 && fits(r.Waiters[0], r.Holders) {
		head := r.Waiters[0]
		head.Token, head.Off, head.Set = 0, off, ""
		off += head.tokens()
		r.Holders = append(r.Holders, head)
		r.Waiters = r.Waiters[1:]
		changed = true
	}
	if len(r.Waiters) == 0 {
		r.Waiters = nil // the record is kept for as long as the lock is held
	}
	return changed
}

// drop removes the claims that are unwanted.
func (r *lockRecord) drop(unwanted func(claimRecord) bool) (changed bool) {
	n := len(r.Holders) + len(r.Waiters)
	r.Holders = slices.DeleteFunc(r.Holders, unwanted)
	r.Waiters = slices.DeleteFunc(r.Waiters, unwanted)
	return len(r.Holders)+len(r.Waiters) != n
}

// enqueue puts a claim at the end of the queue.
func (r *lockRecord) enqueue(c claimRecord) { r.Waiters = append(r.Waiters, c) }

// gives says whether a write of this record gives anyone a token, and so has
// to be on disk before it is believed.
func (r *lockRecord) gives() bool {
	return slices.ContainsFunc(r.Holders, func(c claimRecord) bool { return c.Token == 0 })
}

// Fence checks a token against a lock record, for the writers of stores, who
// call it with the record as it was read inside the user's transaction after
// the row was locked against CompareAndSwap. last is the number that the store
// keeps beside the record (0 at first), and next is what it has to keep from
// now on. It returns an error that is ErrLost if the token does not hold name.
//
// The number is for hand-offs inside a process, where one exclusive claim has
// many tokens: an older holder of the claim may not write behind a newer one.
func (r Record) Fence(name string, token, last int64) (next int64, err error) {
	rec, err := decodeLock(r.Value, r.Version)
	if err != nil {
		return last, fmt.Errorf("fence %q: %w", name, err)
	}
	for _, h := range rec.Holders {
		if token < h.Token || token >= h.Token+h.tokens() {
			continue
		}
		if h.Slots != 1 || h.tokens() == 1 {
			return last, nil
		}
		if token < last {
			break
		}
		return token, nil
	}
	return last, &fenceError{name, token}
}

type fenceError struct {
	name  string
	token int64
}

func (e *fenceError) Is(target error) bool { return target == ErrLost }

func (e *fenceError) Error() string {
	return fmt.Sprintf("fence %q: token %d no longer holds it; roll back", e.name, e.token)
}

package lease

import (
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Deaths are the sessions that a client knows to be dead. The zero value is ready.
type Deaths struct {
	void map[string]Instant // sessions with a tombstone, and from when their claims are void
	died map[string]bool    // sessions in void that did not end in order, nor at their time
	lost map[string]Instant // the client's own sessions, and from when they are over for everyone
}

// Dead says whether a session's claims are void. A session that the client itself has lost is
// over for the client at once. It is over for everyone, and its claims may go, a TTL and its
// grace after its last sign of life.
func (d *Deaths) Dead(session string, now Instant) bool {
	if from, ok := d.void[session]; ok {
		return now >= from
	}
	until, ok := d.lost[session]
	return ok && now >= until
}

// Tombstone says from when the claims of a session are void; ok is false if no tombstone of
// it was read or written.
func (d *Deaths) Tombstone(session string) (from Instant, ok bool) {
	from, ok = d.void[session]
	return from, ok
}

// Died says whether a session whose tombstone was read or written has died: it did not end in
// order, and was not detached.
func (d *Deaths) Died(session string) bool { return d.died[session] }

// mostDeaths is how many deaths of each kind are remembered.
const mostDeaths = 10_000

// Lose notes that the client has lost a session, which is over for everyone from until on.
func (d *Deaths) Lose(session string, until Instant) {
	if d.lost == nil || len(d.lost) > mostDeaths { // one that is forgotten is observed as others are
		d.lost = make(map[string]Instant)
	}
	d.lost[session] = until
}

// Know remembers a death. If it is news, it returns how much longer the claims of the
// session are not void. They are void once the grace in the tombstone is over: counted from
// now, or from when the tombstone was written, as far as its age by the store's clock and
// the wall clocks agree on that. (Otherwise each process that asks only once would count
// from the start.)
func (d *Deaths) Know(session string, tomb record.Session, age time.Duration, now Instant, t record.Clocks) (grace time.Duration, news bool) {
	if _, ok := d.void[session]; ok {
		return 0, false
	}
	grace = time.Duration(tomb.Grace) * time.Millisecond
	grace -= min(grace, max(min(age, t.Since(tomb.Dead)), 0))
	if d.void == nil || len(d.void) > mostDeaths {
		d.void, d.died = make(map[string]Instant), nil // every death can be read again
	}
	if !tomb.InOrder() && !tomb.Detached {
		if d.died == nil {
			d.died = make(map[string]bool)
		}
		d.died[session] = true
	}
	d.void[session] = now.Add(grace)
	return grace, true
}

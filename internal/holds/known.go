package holds

import (
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A remembered is what a client last wrote or read of each hold, so that a beat or a release
// costs one call. Nothing is decided on it that the store does not confirm.
type remembered struct {
	known map[string]holdRecord
	most  int // the size at which expired holds are forgotten

	ttl   time.Duration // the store's setting
	ttlAt lease.Instant // when it was asked for
}

// A holdRecord is what was last known of a hold.
type holdRecord struct {
	session record.Session
	version int64
	at      lease.Instant
	names   []record.HoldName // nil: not known
	held    bool              // names are known, and all their claims were granted
	detach  time.Duration     // HoldRequest.For
	alone   bool              // this client made the record, and nobody else has written it since
}

const (
	leastHolds = 1024
	shortQueue = 4 // most claims in a lock record that is remembered for a release
)

// remember keeps what is known of a hold.
func (c *Keeper) remember(id string, r holdRecord) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	h := &c.kept
	if h.known == nil {
		h.known, h.most = make(map[string]holdRecord), leastHolds
	}
	if len(h.known) >= h.most {
		for id, r := range h.known {
			if c.Now().Sub(r.at) > r.session.Duration() {
				delete(h.known, id)
			}
		}
		h.most = max(leastHolds, 2*len(h.known))
	}
	h.known[id] = r
}

func (c *Keeper) forgetHold(id string) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	delete(c.kept.known, id)
}

func (c *Keeper) knownHold(id string) (r holdRecord, ok bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	r, ok = c.kept.known[id]
	return r, ok
}

package liveness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Sightings: a process that asks only once sees a record only for a moment, and the next
// time it is another process. Where the store has no clock, or the wall clocks do not agree
// with it, it could never tell that the time of a detached hold is over. So the first
// process of a host that meets such a hold notes in the runtime directory when it saw the
// hold, by the kernel's clock, which is the same for all processes and does not step. A copy
// of the directory under another kernel proves nothing.

// A sighted is when a process of this kernel first saw a record.
type sighted struct {
	Boot  string `json:"boot"`
	Up    int64  `json:"up"` // microseconds that the kernel had run
	Nonce string `json:"nonce"`
	TTL   int64  `json:"ttl"` // of the record, in milliseconds
}

// mostSightings is how many sightings are kept for longer than they can be expected to be of use: a
// program that asks once a month may be the next to meet the hold.
const mostSightings = 1000

// overLong says whether a sighting is of a hold whose time was over long ago.
func overLong(path string) bool {
	text, err := os.ReadFile(path)
	var s sighted
	if err != nil || json.Unmarshal(text, &s) != nil || s.Boot != clock.Boot() {
		return err == nil
	}
	return clock.Up()-time.Duration(s.Up)*time.Microsecond > 2*time.Duration(s.TTL)*time.Millisecond+time.Hour
}

// Recall returns how long ago a process of this host first saw this very record of a
// session, and remembers now if none has. 0 where nothing can be remembered.
func (p *Dir) Recall(session string, rec record.Session) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.usable() || !record.IsSession(session) || clock.Boot() == "" {
		return 0
	}
	now := sighted{clock.Boot(), clock.Up().Microseconds(), rec.Nonce, rec.TTL}
	path := filepath.Join(p.Path, session+".seen")
	if text, err := os.ReadFile(path); err == nil {
		var first sighted
		if json.Unmarshal(text, &first) == nil && first.Nonce == now.Nonce && first.Boot == now.Boot {
			return max(time.Duration(now.Up-first.Up)*time.Microsecond, 0)
		}
	}
	text, err := json.Marshal(now)
	if err != nil {
		return 0
	}
	if p.sights%100 == 0 { // so also at the first, by a process that asks only once
		p.tidy()
	}
	p.sights++
	file, err := os.CreateTemp(p.Path, session+".*.new")
	if err != nil {
		return 0
	}
	_, err = file.Write(text)
	if file.Close(); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return 0
}

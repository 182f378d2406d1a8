package liveness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Sightings: a process that asks once, each time a new one, sees a record only for a
// moment. Where the store has no clock, or the wall clocks do not agree with it, it could
// never tell that the time of a detached hold is over. So the first process of a host that
// meets such a hold leaves in the runtime directory when it saw it, on the kernel's clock,
// which is the same for all processes and does not step. A copy of the directory under
// another kernel says nothing.

// A sighted is when a process of this kernel first saw a record.
type sighted struct {
	Boot  string `json:"boot"`
	Up    int64  `json:"up"` // microseconds that the kernel had run
	Nonce string `json:"nonce"`
}

// Recall returns how long ago a process of this host first saw this very record of a
// session, and remembers now if none has. 0 where nothing can be remembered.
func (p *Dir) Recall(session string, rec record.Session) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.usable() || !record.IsSession(session) || clock.Boot() == "" {
		return 0
	}
	now := sighted{clock.Boot(), clock.Up().Microseconds(), rec.Nonce}
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

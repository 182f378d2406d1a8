package holdfast

import (
	"github.com/holdfast-lock/holdfast/internal/core"

	"github.com/holdfast-lock/holdfast/driver"
)

// settingRecord is the value of the setting "ttl".
type settingRecord struct {
	TTL int64 `json:"ttl"` // milliseconds
}

// lockOf reads the lock record of a name.
func lockOf(r driver.Record) (core.LockRecord, error) {
	return core.DecodeLock(r.Value, core.Version(r.Version))
}

package holdfast

import (
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// settingRecord is the value of the setting "ttl".
type settingRecord struct {
	TTL int64 `json:"ttl"` // milliseconds
}

// lockOf reads the lock record of a name.
func lockOf(r driver.Record) (record.Lock, error) {
	return record.DecodeLock(r.Value, record.Version(r.Version))
}

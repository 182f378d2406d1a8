package base

import (
	"encoding/json"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// The store's TTL is what its setting says, or it is refused.
func FuzzSetting(f *testing.F) {
	f.Add([]byte(`{"ttl":30000}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		ttl, err := ttlOf(driver.Record{Version: 1, Value: value})
		if err != nil {
			return
		}
		var said struct{ TTL json.Number }
		if len(value) > 0 {
			if err := json.Unmarshal(value, &said); err != nil {
				t.Fatalf("%q is a TTL of %v, and not JSON", value, ttl)
			}
			if n, err := said.TTL.Int64(); err != nil || n != ttl.Milliseconds() {
				t.Fatalf("%q is a TTL of %v", value, ttl)
			}
		}
		if ttl < record.MinTTL || ttl > record.MaxTTL {
			t.Fatalf("%q is a TTL of %v", value, ttl)
		}
	})
}

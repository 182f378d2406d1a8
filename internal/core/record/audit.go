package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// An Audit is the value of a name's audit record: its breaks, newest first.
type Audit []Break

// DecodeAudit reads an audit record.
func DecodeAudit(value []byte) (Audit, error) {
	var a Audit
	if len(value) > 0 {
		if err := json.Unmarshal(value, &a); err != nil {
			return nil, fmt.Errorf("not an audit record: %w", err)
		}
	}
	return a, nil
}

// Encode returns the value of the record.
func (a Audit) Encode() ([]byte, error) { return json.Marshal(a) }

// Add returns the audit with those breaks that it lacked, newest first, without the oldest
// beyond MaxBreaks. It may change a.
func (a Audit) Add(breaks []Break) Audit {
	for _, b := range breaks {
		if !b.In(a) {
			a = append(a, b.Bounded())
		}
	}
	slices.SortStableFunc(a, func(a, b Break) int { return cmp.Compare(b.At, a.At) })
	return a[:min(len(a), MaxBreaks)]
}

// In says whether breaks has a break of the same claim.
func (b Break) In(breaks []Break) bool {
	return slices.ContainsFunc(breaks, func(o Break) bool { return o.Session == b.Session && o.Nr == b.Nr })
}

// DropBreaks removes audit entries that were copied to the audit record, and settles the lock
// record, as Settle does. It reports whether anything changed.
func (r *Lock) DropBreaks(copied []Break, dead func(session string) bool, now int64) (changed bool) {
	n := len(r.Breaks)
	r.Breaks = slices.DeleteFunc(r.Breaks, func(b Break) bool { return b.In(copied) })
	settled := r.Settle(dead, now)
	return len(r.Breaks) != n || settled
}

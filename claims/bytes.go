package claims

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"time"
)

// A Unit is what timestamps count since 1970.
type Unit int

const (
	Micro Unit = iota // JanusGraph's default
	Milli
	Nano
)

func (u Unit) span() time.Duration {
	return [...]time.Duration{time.Microsecond, time.Millisecond, time.Nanosecond}[u]
}

func (u Unit) String() string { return [...]string{"micro", "milli", "nano"}[u] }

// of is a time as a timestamp, rounded down.
func (u Unit) of(t time.Time) int64 {
	switch u {
	case Milli:
		return t.UnixMilli()
	case Nano:
		return t.UnixNano()
	}
	return t.UnixMicro()
}

// time is a timestamp as a time.
func (u Unit) time(timestamp int64) time.Time {
	switch u {
	case Milli:
		return time.UnixMilli(timestamp)
	case Nano:
		return time.Unix(0, timestamp)
	}
	return time.UnixMicro(timestamp)
}

// unitOf infers the unit of a timestamp between the years 1973 and 5138.
func unitOf(timestamp int64) Unit {
	switch {
	case timestamp < 1e14:
		return Milli
	case timestamp < 1e17:
		return Micro
	}
	return Nano
}

// count is a span in units, rounded up.
func (u Unit) count(d time.Duration) int64 { return int64((d + u.span() - 1) / u.span()) }

// rowKey is the row that the claims to a column of a key are in: the length of
// the key, the key, the column.
func rowKey(key, column []byte) []byte {
	row := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(key)+len(column)), uint32(len(key)))
	return append(append(row, key...), column...)
}

// claimName is the column of a claim: its timestamp and its rid. Columns are in
// order of time.
func claimName(timestamp int64, rid string) []byte {
	name := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(rid)), uint64(timestamp))
	return append(name, rid...)
}

// claimValue is the value of all claims. Nobody reads it.
func claimValue() []byte { return make([]byte, 4) }

// timestampOf is the timestamp of a claim. A name that is too short is read as if
// zeros followed.
func timestampOf(name []byte) int64 {
	var b [8]byte
	copy(b[:], name)
	return int64(binary.BigEndian.Uint64(b[:]))
}

func ridOf(name []byte) string { return string(name[min(8, len(name)):]) }

// guardName is a column of the holder that comes right before a claim of
// another, and expires with it.
func guardName(claim []byte, rid string) []byte {
	guard := claimName(timestampOf(claim), "\x00"+rid)
	if bytes.Compare(guard, claim) >= 0 {
		guard = claimName(timestampOf(claim)-1, "\x00"+rid)
	}
	return guard
}

// isHoldfast says whether a rid was made by a Locker, not by JanusGraph.
func isHoldfast(rid string) bool {
	_, id, ok := cutLast(rid, "~")
	_, err := hex.DecodeString(id)
	return ok && err == nil && len(id) == 32
}

// shownRid is a rid for people.
func shownRid(rid string) string {
	rid = strings.TrimPrefix(rid, "\x00")
	if isHoldfast(rid) {
		rid, _, _ = cutLast(rid, "~")
	}
	return rid
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// jitter is a span between half of d and one and a half times d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

package main

import (
	"bytes"
	"context"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
)

// A tally counts what all processes of a run have sent to a store whose servers
// do not tell that. It is in memory that they share, so that a process may be
// killed, and the count be looked at, at any time.
type tally struct {
	slots *[tallySlots]slot
	hide  string // is left out of texts
}

const tallySlots = 256

// A slot counts one kind of statement.
type slot struct {
	hash  atomic.Uint64 // of the text; 0: nobody's
	count atomic.Int64
	text  [496]byte
}

var tallies struct {
	sync.Mutex
	opened map[string]*tally
}

// sharedTally is this process's view of what all have counted in a file.
func sharedTally(path, hide string) (*tally, error) {
	tallies.Lock()
	defer tallies.Unlock()
	if tallies.opened[path] == nil {
		t, err := newTally(path, hide)
		if err != nil {
			return nil, err
		}
		if tallies.opened == nil {
			tallies.opened = make(map[string]*tally)
		}
		tallies.opened[path] = t
	}
	return tallies.opened[path], nil
}

// newTally opens the tally in a file, which is made if it is not there.
func newTally(path, hide string) (*tally, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof([tallySlots]slot{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	memory, err := share(f, size)
	if err != nil {
		return nil, err
	}
	return &tally{(*[tallySlots]slot)(unsafe.Pointer(&memory[0])), hide}, nil
}

// add counts a statement. What does not fit counts in the last slot.
func (t *tally) add(text string) {
	h := fnv.New64a()
	h.Write([]byte(text))
	hash := max(h.Sum64(), 1)
	for i := range t.slots {
		s := &t.slots[i]
		switch {
		case s.hash.CompareAndSwap(0, hash):
			copy(s.text[:], text)
		case s.hash.Load() != hash && i < tallySlots-1:
			continue
		}
		s.count.Add(1)
		return
	}
}

// kinds are the statements, each with what it is before a colon.
func (t *tally) kinds(context.Context) (map[string]float64, error) {
	kinds := make(map[string]float64)
	for i := range t.slots {
		if s := &t.slots[i]; s.hash.Load() != 0 {
			text, _, _ := bytes.Cut(s.text[:], []byte{0})
			kinds[string(text)] += float64(s.count.Load())
		}
	}
	return kinds, nil
}

// asked is what was sent to a cluster, by what it costs there.
type asked struct {
	lwts   float64 // lightweight transactions, and those that failed
	beats  float64 // those of them that were for sessions
	serial float64 // reads by a round of consensus
	reads  float64 // plain ones
	writes float64
	failed float64 // of all these
}

// asked tells what was counted so far; a nil tally has counted nothing.
func (t *tally) asked() (a asked) {
	if t == nil {
		return a
	}
	kinds, _ := t.kinds(context.Background())
	for text, n := range kinds {
		what, _, _ := strings.Cut(text, ":")
		what, err, _ := strings.Cut(what, ", ")
		switch what {
		case "LWT":
			a.lwts += n
		case "beat":
			a.beats += n
			a.lwts += n
		case "SERIAL read":
			a.serial += n
		case "read":
			a.reads += n
		case "write":
			a.writes += n
		}
		if err != "" {
			a.failed += n
		}
	}
	return a
}

func (a asked) plus(o asked, times float64) asked {
	return asked{a.lwts + times*o.lwts, a.beats + times*o.beats, a.serial + times*o.serial, a.reads + times*o.reads, a.writes + times*o.writes, a.failed + times*o.failed}
}

func (a asked) since(o asked) asked { return a.plus(o, -1) }

func (a asked) per(n float64) asked { return asked{}.plus(a, 1/n) }

// ObserveQuery implements gocql.QueryObserver.
func (t *tally) ObserveQuery(_ context.Context, q gocql.ObservedQuery) {
	serial := q.Query != nil && (q.Query.GetConsistency() == gocql.Serial || q.Query.GetConsistency() == gocql.LocalSerial)
	t.observe(q.Statement, q.Values, serial, q.Err)
}

// ObserveBatch implements gocql.BatchObserver.
func (t *tally) ObserveBatch(_ context.Context, b gocql.ObservedBatch) {
	t.observe(strings.Join(b.Statements, "; "), nil, false, b.Err)
}

func (t *tally) observe(text string, values []any, serial bool, err error) {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, t.hide, "")), " ")
	lower := strings.ToLower(text)
	what := "write"
	switch {
	case strings.HasPrefix(lower, "select") && serial:
		what = "SERIAL read"
	case strings.HasPrefix(lower, "select"):
		what = "read"
	case strings.HasPrefix(lower, "create"), strings.HasPrefix(lower, "drop"):
		what = "schema"
	case strings.Contains(lower, " if "):
		what = "LWT"
		if slices.Contains(values, any(int8(driver.Sessions))) {
			what = "beat"
		}
	}
	if err != nil {
		what += ", failed"
	}
	t.add(what + ": " + text)
}

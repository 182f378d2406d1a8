package sim

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// A recorder is the store itself, below all faults: all at one instant, and
// nothing is lost but by Restore. It keeps every write that was applied, in
// order, and who may have sent it.
type recorder struct {
	began time.Time
	// counts: versions are counted, one by one, by a store without a clock. Then
	// tokens run into blocks and into what was swept, as they hardly ever do
	// where versions are microseconds.
	counts bool
	tells  bool // notifications tell the record that was written

	mu       sync.Mutex // guards all below, and makes the order of steps that of writes
	rows     map[driver.Key]row
	floor    int64
	watchers []chan driver.Notification // in the order in which they came, as a map of them would not be
	steps    []check.Step
	sent     map[sentKey]uint64
	owners   map[string]uint64 // of sessions, by id
}

type row struct {
	version int64
	value   []byte
	written time.Time
}

// A sentKey tells writes apart as far as the store can.
type sentKey struct {
	key   driver.Key
	old   int64
	value string
}

func newRecorder(counts bool) *recorder {
	return &recorder{
		began: time.Now(), counts: counts, rows: map[driver.Key]row{},
		sent: map[sentKey]uint64{}, owners: map[string]uint64{},
	}
}

// announce notes that a process is about to send writes.
func (r *recorder) announce(writer uint64, writes []driver.Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range writes {
		r.sent[sentKey{w.Key, w.Old, string(w.Value)}] |= writer
	}
}

// own notes whose a session is.
func (r *recorder) own(session string, writer uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owners[session] = writer
}

func (r *recorder) owner(session string) uint64 {
	if isHold(session) {
		return ^uint64(0)
	}
	return r.owners[session]
}

func (r *recorder) record(k driver.Key) driver.Record {
	row := r.rows[k]
	if row.version == 0 {
		return driver.Record{}
	}
	return driver.Record{Version: row.version, Value: row.value, Age: time.Since(row.written)}
}

// Load implements driver.Store.
func (r *recorder) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	recs := make([]driver.Record, len(keys))
	for i, k := range keys {
		recs[i] = r.record(k)
	}
	return recs, nil
}

// CompareAndSwap implements driver.Store.
func (r *recorder) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	outs := make([]driver.Outcome, len(writes))
	for i, w := range writes {
		old := r.rows[w.Key]
		if w.Old == driver.IfEmpty && len(old.value) > 0 || w.Old != driver.IfEmpty && (w.Old <= 0 || w.Old != old.version) {
			outs[i].Record = r.record(w.Key)
			continue
		}
		r.write(w, time.Now())
		outs[i] = driver.Outcome{Won: true, Record: r.record(w.Key)}
	}
	return outs, nil
}

// write applies a write that was decided on at a time; r.mu is held.
func (r *recorder) write(w driver.Write, at time.Time) {
	next := row{max(r.rows[w.Key].version, r.floor) + 1, slices.Clone(w.Value), at}
	if !r.counts {
		next.version = max(next.version, at.UnixMicro())
	}
	r.rows[w.Key] = next
	value := string(w.Value)
	r.steps = append(r.steps, check.Step{
		Key: w.Key, Version: next.version, Value: value, Lazy: w.Lazy,
		At: at.Sub(r.began), Writers: r.sent[sentKey{w.Key, w.Old, value}],
	})
	if w.Notify == "" {
		return
	}
	h := driver.Notification{Key: w.Key, To: w.Notify}
	if r.tells {
		h.Version, h.Value = next.version, value
	}
	for _, told := range r.watchers {
		select {
		case told <- h:
		default: // a notification may be lost
		}
	}
}

// Keys implements driver.Store.
func (r *recorder) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for k, row := range r.rows {
		if k.Space == space && len(row.value) > 0 && k.Name > after {
			names = append(names, k.Name)
		}
	}
	slices.Sort(names)
	return names[:min(n, len(names))], ctx.Err()
}

// Watch implements driver.Watcher.
func (r *recorder) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	told := make(chan driver.Notification, 100)
	r.mu.Lock()
	r.watchers = append(r.watchers, told)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watchers = slices.DeleteFunc(r.watchers, func(other chan driver.Notification) bool { return other == told })
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case h := <-told:
			changed(h)
		}
	}
}

// Traits implements driver.Store; a Process has those of its plan.
func (r *recorder) Traits() driver.Traits { return driver.Traits{} }

// Sweep implements driver.Store.
func (r *recorder) Sweep(ctx context.Context, idle time.Duration) (int, error) {
	return r.sweep(ctx, idle, func(driver.Key) bool { return false })
}

// sweep spares rows that are in use.
func (r *recorder) sweep(ctx context.Context, idle time.Duration, inUse func(driver.Key) bool) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.rows)
	maps.DeleteFunc(r.rows, func(k driver.Key, row row) bool {
		gone := len(row.value) == 0 && time.Since(row.written) >= idle && !inUse(k)
		if gone {
			r.floor = max(r.floor, row.version)
		}
		return gone
	})
	return before - len(r.rows), ctx.Err()
}

// Restore takes back what a crash has lost of a key: its lazy writes since a
// version. A database has one log, so a write that is not lazy makes durable
// all that was applied before it; then nothing is lost.
func (r *recorder) Restore(k driver.Key, rec driver.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range slices.Backward(r.steps) {
		if s.Key == k && s.Version <= rec.Version {
			break
		}
		if !s.Lazy && !s.Restored {
			return
		}
	}
	r.rows[k] = row{rec.Version, slices.Clone(rec.Value), time.Now().Add(-rec.Age)}
	r.steps = append(r.steps, check.Step{Key: k, Version: rec.Version, Value: string(rec.Value), At: time.Since(r.began), Restored: true})
}

func (r *recorder) history() []check.Step {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.steps)
}

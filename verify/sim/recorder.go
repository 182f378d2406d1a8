package sim

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// A recorder is the store itself, below all faults. It keeps every write that
// was applied, in order, and who may have sent it.
type recorder struct {
	*memory.Store
	began time.Time

	mu     sync.Mutex // guards all below, and makes the order of steps that of writes
	steps  []check.Step
	sent   map[sentKey]uint64
	owners map[string]uint64 // of sessions, by id
}

// A sentKey tells writes apart as far as the store can.
type sentKey struct {
	key   holdfast.Key
	old   int64
	value string
}

func newRecorder() *recorder {
	return &recorder{Store: memory.New(), began: time.Now(), sent: map[sentKey]uint64{}, owners: map[string]uint64{}}
}

// announce notes that a process is about to send writes.
func (r *recorder) announce(writer uint64, writes []holdfast.Write) {
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

func (r *recorder) owner(session string) uint64 { return r.owners[session] }

// CompareAndSwap implements holdfast.Store.
func (r *recorder) CompareAndSwap(ctx context.Context, writes []holdfast.Write) ([]holdfast.Outcome, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	outs, err := r.Store.CompareAndSwap(ctx, writes)
	for i, out := range outs {
		if w := writes[i]; out.Won {
			value := string(w.Value)
			r.steps = append(r.steps, check.Step{
				Key: w.Key, Version: out.Record.Version, Value: value, Lazy: w.Lazy,
				At: time.Since(r.began), Writers: r.sent[sentKey{w.Key, w.Old, value}],
			})
		}
	}
	return outs, err
}

// Restore takes back what a crash has lost of a key: its lazy writes since a
// version. A database has one log, so a write that is not lazy makes durable
// all that was applied before it; then nothing is lost.
func (r *recorder) Restore(k holdfast.Key, rec holdfast.Record) {
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
	r.Store.Restore(k, rec)
	r.steps = append(r.steps, check.Step{Key: k, Version: rec.Version, Value: string(rec.Value), At: time.Since(r.began), Restored: true})
}

func (r *recorder) history() []check.Step {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.steps)
}

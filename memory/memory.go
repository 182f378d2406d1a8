// Package memory is a store in the memory of one process: for tests, examples
// and programs that are a single process. It needs nothing, starts nothing in
// the background, and is gone with the process.
package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Store keeps records in a map. It is a driver.Store and Watcher.
// Its clock is time.Now, so testing/synctest can control it.
type Store struct {
	mu       sync.Mutex // guards all below
	rows     map[driver.Key]*row
	floor    int64 // no version of a swept row was above it
	watchers map[*watcher]bool
}

// A row is what a key was last written with. Its value is never changed in
// place. Its time has a monotonic reading: no step of the wall clock ages it.
type row struct {
	version int64
	value   []byte
	written time.Time
}

func (r *row) record(now time.Time) driver.Record {
	if r == nil {
		return driver.Record{}
	}
	return driver.Record{
		Version: r.version,
		Value:   append([]byte(nil), r.value...),
		Age:     max(0, now.Sub(r.written)),
	}
}

var (
	_ driver.Store   = (*Store)(nil)
	_ driver.Watcher = (*Store)(nil)
)

// New returns an empty store. There is nothing to close.
func New() *Store {
	return &Store{
		rows:     map[driver.Key]*row{},
		watchers: map[*watcher]bool{},
	}
}

// Load implements driver.Store.
func (s *Store) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return nil, fmt.Errorf("memory: load: %w", err)
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	records := make([]driver.Record, len(keys))
	for i, k := range keys {
		records[i] = s.rows[k].record(now)
	}
	return records, nil
}

// CompareAndSwap implements driver.Store. All writes of a call are applied at
// one instant; Lazy makes no difference. A key that is named twice is refused.
func (s *Store) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := check(writes); err != nil {
		return nil, fmt.Errorf("memory: compare and swap: %w", err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	outcomes := make([]driver.Outcome, len(writes))
	for i, w := range writes {
		r := s.rows[w.Key]
		if !follows(w.Old, r) {
			outcomes[i].Record = r.record(now)
			continue
		}
		if r == nil {
			r = new(row)
			s.rows[w.Key] = r
		}
		r.version = max(r.version+1, s.floor+1, now.UnixMicro())
		r.value, r.written = append([]byte(nil), w.Value...), now
		outcomes[i] = driver.Outcome{Won: true, Record: driver.Record{Version: r.version, Value: w.Value}}
		if w.Notify != "" {
			for each := range s.watchers {
				each.add(driver.Notification{Key: w.Key, To: w.Notify})
			}
		}
	}
	return outcomes, nil
}

// check refuses a call before any of it is applied.
func check(writes []driver.Write) error {
	for _, w := range writes {
		if err := w.Check(); err != nil {
			return err
		}
	}
	if len(writes) < 2 {
		return nil
	}
	seen := make(map[driver.Key]bool, len(writes))
	for _, w := range writes {
		if seen[w.Key] {
			return fmt.Errorf("two writes of %s %q", w.Key.Space, w.Key.Name)
		}
		seen[w.Key] = true
	}
	return nil
}

// follows says whether a write that wants to follow version old may follow r.
func follows(old int64, r *row) bool {
	if old == driver.IfEmpty {
		return r == nil || len(r.value) == 0
	}
	return r != nil && old == r.version
}

// Keys implements driver.Store.
func (s *Store) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	s.mu.Lock()
	var names []string
	for k, r := range s.rows {
		if k.Space == space && len(r.value) > 0 && k.Name > after {
			names = append(names, k.Name)
		}
	}
	s.mu.Unlock()

	slices.SortFunc(names, strings.Compare)
	return names[:min(len(names), max(0, n))], nil
}

// Traits implements driver.Store.
func (s *Store) Traits() driver.Traits { return driver.Traits{} }

// Sweep implements driver.Store.
func (s *Store) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for k, r := range s.rows {
		if len(r.value) > 0 || now.Sub(r.written) < idle {
			continue
		}
		s.floor = max(s.floor, r.version)
		delete(s.rows, k)
		removed++
	}
	return removed, nil
}

// Restore gives a key an earlier record, written its Age ago; one with
// Version 0 removes the key. It is for tests that lose lazy writes as a crash
// of a database does, and breaks the contract in any other use.
func (s *Store) Restore(k driver.Key, r driver.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Version == 0 {
		delete(s.rows, k)
		return
	}
	s.rows[k] = &row{
		version: r.Version,
		value:   append([]byte(nil), r.Value...),
		written: time.Now().Add(-r.Age),
	}
}

// Package drivertest is the contract of a driver.Store as tests. A store's own
// test calls Run; Bench measures a store.
package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// Reopener is a Store that a test can open a second time over the same data,
// as another process would. Then all races of Run are between the two. What
// Reopen returns is a Watcher if the first is.
type Reopener interface {
	Reopen(t *testing.T) driver.Store
}

// Restarter is a Store whose database a test can restart. Restart closes the store, ends what
// is under way in the database, and opens it again.
type Restarter interface {
	Restart(t *testing.T) driver.Store
}

// Run tests a store against the contract, one subtest for each sentence; a subtest
// that fails logs its sentence. open returns a store that nothing was written
// to, and is called for every case, also at the same time; it closes what it
// opens with t.Cleanup. A Watcher, Reopener or Restarter is tested as such.
//
// Run finds most faults only under the race detector. It never finds all of them.
func Run(t *testing.T, open func(t *testing.T) driver.Store) {
	for _, group := range [][]testCase{recordCases, versionCases, raceCases, batchCases, keyCases, failureCases, staleReadCases, sweepCases, watchCases, awaitCases, handleCases} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, open(t))
			})
		}
	}
}

// A testCase checks a sentence of the contract.
type testCase struct {
	name string
	rule string
	run  func(h *harness)
	need func(driver.Store) bool // nil: every store
}

// patience bounds a case; a store that needs it is too slow or stuck.
func patience() time.Duration { return busy.Times(2 * time.Minute) }

func (c testCase) test(t *testing.T, s driver.Store) {
	if c.need != nil && !c.need(s) {
		t.Skip("the store does not promise this")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	defer func() {
		if t.Failed() {
			t.Logf("the contract says: %s", c.rule)
		}
	}()
	c.run(&harness{T: t, ctx: ctx, store: s})
}

// A harness is what a case works with. Its methods fail the test on an error of
// the store, and are for the goroutine of the test; in others use the store.
type harness struct {
	*testing.T
	ctx   context.Context
	store driver.Store

	handles []driver.Store
}

// both returns the store, and a second handle on it where there can be one.
func (h *harness) both() []driver.Store {
	if h.handles == nil {
		h.handles = []driver.Store{h.store}
		if r, ok := h.store.(Reopener); ok {
			h.handles = append(h.handles, r.Reopen(h.T))
		}
	}
	return h.handles
}

func (h *harness) load(k driver.Key) driver.Record {
	h.Helper()
	return h.loadAll(k)[0]
}

func (h *harness) loadAll(keys ...driver.Key) []driver.Record {
	h.Helper()
	records, err := load(h.ctx, h.store, keys...)
	if err != nil {
		h.Fatal(err)
	}
	return records
}

func (h *harness) swap(w driver.Write) driver.Outcome {
	h.Helper()
	return h.swapAll(w)[0]
}

func (h *harness) swapAll(writes ...driver.Write) []driver.Outcome {
	h.Helper()
	outcomes, err := swap(h.ctx, h.store, writes...)
	if err != nil {
		h.Fatal(err)
	}
	return outcomes
}

// put makes a key hold value, whatever it held, and returns its record.
func (h *harness) put(k driver.Key, value string) driver.Record {
	h.Helper()
	old := h.load(k).Version
	if old == 0 {
		old = driver.IfEmpty
	}
	return h.win(driver.Write{Key: k, Old: old, Value: []byte(value)})
}

// win does a write that has to win, and returns the record.
func (h *harness) win(w driver.Write) driver.Record {
	h.Helper()
	o := h.swap(w)
	if !o.Won {
		h.Fatalf("%s after version %d lost to %s, and nobody else writes", describe(w.Key), w.Old, show(o.Record))
	}
	return o.Record
}

// lose does a write that has to lose, and returns what it lost to.
func (h *harness) lose(w driver.Write) driver.Record {
	h.Helper()
	o := h.swap(w)
	if o.Won {
		h.Fatalf("%s after version %d won as version %d, and must lose", describe(w.Key), w.Old, o.Record.Version)
	}
	return o.Record
}

// same compares version and value.
func (h *harness) same(what string, got, want driver.Record) {
	h.Helper()
	if got.Version != want.Version || !bytes.Equal(got.Value, want.Value) {
		h.Fatalf("%s is %s, want %s", what, show(got), show(want))
	}
}

// each runs fn in n goroutines that begin together, and fails with the first
// of their errors.
func (h *harness) each(n int, fn func(i int) error) {
	h.Helper()
	var wg sync.WaitGroup
	errs := make([]error, n)
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			errs[i] = fn(i)
		})
	}
	close(begin)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			h.Fatal(err)
		}
	}
}

func load(ctx context.Context, s driver.Store, keys ...driver.Key) ([]driver.Record, error) {
	records, err := s.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	if len(records) != len(keys) {
		return nil, fmt.Errorf("load of %d keys returned %d records", len(keys), len(records))
	}
	return records, nil
}

// swap is for writes without rivals: if the store was too busy to know what became
// of one, the record tells.
func swap(ctx context.Context, s driver.Store, writes ...driver.Write) ([]driver.Outcome, error) {
	outcomes, err := contend(ctx, s, writes...)
	if err != nil {
		return nil, err
	}
	for i, o := range outcomes {
		for n := 0; driver.Busy(o.Err) && n < 20; n++ {
			if o, err = resolve(ctx, s, writes[i]); err != nil {
				return nil, err
			}
		}
		if outcomes[i] = o; o.Err != nil {
			return nil, fmt.Errorf("compare and swap: write %d of %d: %w", i, len(writes), o.Err)
		}
	}
	return outcomes, nil
}

// resolve looks for what became of a write without rivals, and repeats it if
// nothing has yet.
func resolve(ctx context.Context, s driver.Store, w driver.Write) (driver.Outcome, error) {
	records, err := load(ctx, s, w.Key)
	if err != nil {
		return driver.Outcome{}, err
	}
	now := records[0]
	switch {
	case w.Old == driver.IfEmpty && now.Version != 0 && (len(now.Value) > 0 || len(w.Value) == 0),
		w.Old != driver.IfEmpty && now.Version != w.Old:
		return driver.Outcome{Won: bytes.Equal(now.Value, w.Value), Record: now}, nil
	}
	outcomes, err := contend(ctx, s, w)
	if err != nil {
		return driver.Outcome{}, err
	}
	return outcomes[0], nil
}

// contend is for writes with rivals: the Err of an outcome may say that the store
// is too busy to know what became of the write. It is never too busy for all of
// them, for ever.
func contend(ctx context.Context, s driver.Store, writes ...driver.Write) ([]driver.Outcome, error) {
	outcomes, err := s.CompareAndSwap(ctx, writes)
	if driver.Busy(err) {
		outcomes = make([]driver.Outcome, len(writes))
		for i := range outcomes {
			outcomes[i].Err = err
		}
		return outcomes, nil
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("compare and swap: %w", err)
	case len(outcomes) != len(writes):
		return nil, fmt.Errorf("%d writes have %d outcomes", len(writes), len(outcomes))
	case len(writes) == 1 && outcomes[0].Err != nil:
		return nil, fmt.Errorf("the outcome of a single write has an error, which the call should have: %w", outcomes[0].Err)
	}
	return outcomes, nil
}

// settle makes sure that a key has moved on when some of its rivals do not know
// what became of their writes: if it has not, one more write moves it. It returns
// what the key holds, and does nothing if all know.
func (h *harness) settle(outcomes []driver.Outcome, w driver.Write) (now driver.Record, unsure bool) {
	h.Helper()
	for _, o := range outcomes {
		unsure = unsure || o.Err != nil
		if o.Won {
			return o.Record, false
		}
	}
	if !unsure {
		return now, false
	}
	w.Value = []byte("settled")
	return h.swap(w).Record, true
}

// name returns a key of the user's names.
func name(format string, args ...any) driver.Key {
	return driver.Key{Space: driver.Names, Name: fmt.Sprintf(format, args...)}
}

func describe(k driver.Key) string {
	if len(k.Name) > 40 {
		return fmt.Sprintf("%s %q… (%d bytes)", k.Space, k.Name[:40], len(k.Name))
	}
	return fmt.Sprintf("%s %q", k.Space, k.Name)
}

func show(r driver.Record) string {
	if len(r.Value) > 40 {
		return fmt.Sprintf("version %d with %q… (%d bytes)", r.Version, r.Value[:40], len(r.Value))
	}
	return fmt.Sprintf("version %d with %q", r.Version, r.Value)
}

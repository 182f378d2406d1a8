package drivertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// staleReadCases are for stores with reads that may be out of date.
var staleReadCases = []testCase{
	{
		name: "stale read",
		rule: "a stale Load is Load, in order, but may show what was followed long ago; an absent key is the zero Record, and so is one that was absent before",
		need: staleReads,
		run: func(h *harness) {
			const n = 200
			var keys []driver.Key
			want := make(map[driver.Key]driver.Record)
			for i, j := range rand.New(rand.NewPCG(5, 6)).Perm(n) {
				k := driver.Key{Space: spaces[j%len(spaces)], Name: fmt.Sprintf("%d\x00\xff", j)}
				if keys = append(keys, k); i%3 > 0 {
					want[k] = h.put(k, fmt.Sprint(j))
				}
			}
			keys = append(keys, keys[0], keys[1]) // a key may be named twice
			for round := 0; ; round++ {
				fresh := true
				for i, r := range h.staleRead(keys...) {
					if r.Version != 0 || len(r.Value) != 0 {
						h.same("a stale read of "+describe(keys[i]), r, want[keys[i]])
					}
					fresh = fresh && r.Version == want[keys[i]].Version
				}
				if fresh {
					break
				}
				h.again(round)
			}
			if recs := h.staleRead(); len(recs) != 0 {
				h.Errorf("a stale read of no keys has %d records", len(recs))
			}
		},
	},
	{
		name: "stale read of what was",
		rule: "a stale Load never returns a record that was not written by a write that won",
		need: staleReads,
		run:  staleReadRace,
	},
	{
		name: "stale read catches up",
		rule: "what is polled with a stale read shows the newest record in the end, also of a key that was emptied",
		need: staleReads,
		run: func(h *harness) {
			stores := h.both()
			for i, value := range []string{"1", "2", "", "3", ""} {
				k, old := name("a"), h.load(name("a")).Version
				if old == 0 {
					old = driver.IfEmpty
				}
				newest := h.win(driver.Write{Key: k, Old: old, Value: []byte(value)})
				for round := 0; ; round++ {
					r := h.staleReadFrom(stores[i%len(stores)], k)[0]
					if r.Version == newest.Version {
						h.same("a stale read", r, newest)
						break
					}
					if r.Version > newest.Version {
						h.Fatalf("a stale read shows %s, and %s is the newest", show(r), show(newest))
					}
					h.again(round)
				}
			}
		},
	},
	{
		name: "stale read age",
		rule: "where Load tells the Age of a record, so does a stale one",
		need: staleReads,
		run: func(h *harness) {
			began := time.Now()
			newest := h.put(name("a"), "1")
			loaded := h.load(name("a"))
			for round := 0; ; round++ {
				r := h.staleRead(name("a"))[0]
				if r.Version == newest.Version {
					if loaded.Age >= 0 && (r.Age < 0 || r.Age > time.Since(began)+time.Second) {
						h.Errorf("a stale read shows an age of %v, and a load %v", r.Age, loaded.Age)
					}
					return
				}
				h.again(round)
			}
		},
	},
	{
		name: "stale read cancelled",
		rule: "a stale read with a context that is done fails",
		need: staleReads,
		run: func(h *harness) {
			ctx, cancel := context.WithCancel(h.ctx)
			cancel()
			if _, err := h.store.Load(ctx, []driver.Key{name("a")}, driver.Stale); err == nil {
				h.Errorf("the stale read was answered")
			}
		},
	},
}

func staleReads(s driver.Store) bool { return s.Traits().StaleReads }

// staleReadPatience is how long until a stale read counts as never up to date. The contract
// has no such limit, but a wait for a lock lasts as long as reads are out of date.
const staleReadPatience = 30 * time.Second

const staleReadPause = 10 * time.Millisecond

// again waits before one more round of stale reads, unless there were too many.
func (h *harness) again(round int) {
	h.Helper()
	if time.Duration(round)*staleReadPause > staleReadPatience {
		h.Fatalf("stale reads are still out of date after %v", staleReadPatience)
	}
	time.Sleep(staleReadPause)
}

func (h *harness) staleRead(keys ...driver.Key) []driver.Record {
	h.Helper()
	return h.staleReadFrom(h.store, keys...)
}

func (h *harness) staleReadFrom(s driver.Store, keys ...driver.Key) []driver.Record {
	h.Helper()
	records, err := staleRead(h.ctx, s, keys...)
	if err != nil {
		h.Fatal(err)
	}
	return records
}

func staleRead(ctx context.Context, s driver.Store, keys ...driver.Key) ([]driver.Record, error) {
	records, err := s.Load(ctx, keys, driver.Stale)
	if err != nil {
		return nil, fmt.Errorf("stale read: %w", err)
	}
	if len(records) != len(keys) {
		return nil, fmt.Errorf("stale read of %d keys returned %d records", len(keys), len(records))
	}
	return records, nil
}

// staleReadRace makes writers follow each other, in batches too, while others look,
// and compares what the lookers have seen with what has won.
func staleReadRace(h *harness) {
	const writers, lookers, rounds, nkeys = 4, 4, 25, 3
	type version struct {
		key driver.Key
		nr  int64
	}
	var (
		stores = h.both()
		keys   []driver.Key
		won    [writers]map[version]string
		unsure [writers]map[string]bool // values of writes whose outcome their writer does not know
		seen   [lookers]map[version]string
		done   atomic.Int32
	)
	for i := range nkeys {
		keys = append(keys, name("key %d", i))
	}
	write := func(i int) error {
		defer done.Add(1)
		won[i], unsure[i] = make(map[version]string), make(map[string]bool)
		s := stores[i%len(stores)]
		for n := range rounds {
			records, err := load(h.ctx, s, keys...)
			if err != nil {
				return err
			}
			var writes []driver.Write
			for j, r := range records {
				w := driver.Write{Key: keys[j], Old: max(r.Version, 1), Value: fmt.Appendf(nil, "%d: %d", i, n)}
				if r.Version == 0 {
					w.Old = driver.IfEmpty
				}
				if n%5 == 4 {
					w.Value = nil
				}
				if writes = append(writes, w); n%2 == 0 {
					break // one alone
				}
			}
			outcomes, err := contend(h.ctx, s, writes...)
			if err != nil {
				return err
			}
			for j, o := range outcomes {
				switch {
				case o.Err != nil:
					unsure[i][string(writes[j].Value)] = true
				case o.Won:
					won[i][version{writes[j].Key, o.Record.Version}] = string(writes[j].Value)
				}
			}
		}
		return nil
	}
	h.each(writers+lookers, func(i int) error {
		if i < writers {
			return write(i)
		}
		i -= writers
		seen[i] = make(map[version]string)
		for done.Load() < writers && h.ctx.Err() == nil {
			records, err := staleRead(h.ctx, stores[i%len(stores)], keys...)
			if err != nil {
				return err
			}
			for j, r := range records {
				v := version{keys[j], r.Version}
				if was, ok := seen[i][v]; ok && was != string(r.Value) {
					return fmt.Errorf("version %d of %s was %q, then %q", r.Version, describe(keys[j]), was, r.Value)
				}
				seen[i][v] = string(r.Value)
			}
		}
		return nil
	})
	for _, looker := range seen {
		for v, value := range looker {
			if v.nr == 0 && value == "" {
				continue // it was absent
			}
			written := false
			for i := range writers {
				was, ok := won[i][v]
				written = written || ok && was == value || unsure[i][value]
			}
			if !written {
				h.Errorf("a stale read of %s shows version %d with %q, which nobody has written", describe(v.key), v.nr, value)
			}
		}
	}
}

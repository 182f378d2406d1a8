package drivertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// glanceCases are for stores with a look that may be out of date.
var glanceCases = []testCase{
	{
		name: "glance",
		rule: "Glance is Load, in order, but may show what was followed long ago; an absent key is the zero Record, and so is one that was absent before",
		need: glances,
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
			keys = append(keys, keys[0], keys[1]) // a key may be glanced at twice
			for round := 0; ; round++ {
				fresh := true
				for i, r := range h.glance(keys...) {
					if r.Version != 0 || len(r.Value) != 0 {
						h.same("a glance at "+describe(keys[i]), r, want[keys[i]])
					}
					fresh = fresh && r.Version == want[keys[i]].Version
				}
				if fresh {
					break
				}
				h.again(round)
			}
			if recs := h.glance(); len(recs) != 0 {
				h.Errorf("a glance at no keys has %d records", len(recs))
			}
		},
	},
	{
		name: "glance at what was",
		rule: "Glance never returns a record that was not written by a write that won",
		need: glances,
		run:  glanceRace,
	},
	{
		name: "glance catches up",
		rule: "what is polled with a glance shows the newest record in the end, also of a key that was emptied",
		need: glances,
		run: func(h *harness) {
			stores := h.both()
			for i, value := range []string{"1", "2", "", "3", ""} {
				k, old := name("a"), h.load(name("a")).Version
				if old == 0 {
					old = driver.IfEmpty
				}
				newest := h.win(driver.Write{Key: k, Old: old, Value: []byte(value)})
				for round := 0; ; round++ {
					r := h.glanceFrom(stores[i%len(stores)], k)[0]
					if r.Version == newest.Version {
						h.same("a glance", r, newest)
						break
					}
					if r.Version > newest.Version {
						h.Fatalf("a glance shows %s, and %s is the newest", show(r), show(newest))
					}
					h.again(round)
				}
			}
		},
	},
	{
		name: "glance age",
		rule: "where Load tells the Age of a record, so does Glance",
		need: glances,
		run: func(h *harness) {
			began := time.Now()
			newest := h.put(name("a"), "1")
			loaded := h.load(name("a"))
			for round := 0; ; round++ {
				r := h.glance(name("a"))[0]
				if r.Version == newest.Version {
					if loaded.Age >= 0 && (r.Age < 0 || r.Age > time.Since(began)+time.Second) {
						h.Errorf("a glance shows an age of %v, and a load %v", r.Age, loaded.Age)
					}
					return
				}
				h.again(round)
			}
		},
	},
	{
		name: "glance cancelled",
		rule: "a glance with a context that is done fails",
		need: glances,
		run: func(h *harness) {
			ctx, cancel := context.WithCancel(h.ctx)
			cancel()
			if _, err := h.store.Load(ctx, []driver.Key{name("a")}, driver.Stale); err == nil {
				h.Errorf("Glance was answered")
			}
		},
	},
}

func glances(s driver.Store) bool { return s.Traits().StaleReads }

// glancePatience is when a glance counts as never up to date. The contract has
// no such limit, but a wait lasts as long as this.
const glancePatience = 30 * time.Second

const glancePause = 10 * time.Millisecond

// again waits before one more round of glances, unless there were too many.
func (h *harness) again(round int) {
	h.Helper()
	if time.Duration(round)*glancePause > glancePatience {
		h.Fatalf("glances are still out of date after %v", glancePatience)
	}
	time.Sleep(glancePause)
}

func (h *harness) glance(keys ...driver.Key) []driver.Record {
	h.Helper()
	return h.glanceFrom(h.store, keys...)
}

func (h *harness) glanceFrom(s driver.Store, keys ...driver.Key) []driver.Record {
	h.Helper()
	records, err := glance(h.ctx, s, keys...)
	if err != nil {
		h.Fatal(err)
	}
	return records
}

func glance(ctx context.Context, s driver.Store, keys ...driver.Key) ([]driver.Record, error) {
	records, err := s.Load(ctx, keys, driver.Stale)
	if err != nil {
		return nil, fmt.Errorf("glance: %w", err)
	}
	if len(records) != len(keys) {
		return nil, fmt.Errorf("glance at %d keys returned %d records", len(keys), len(records))
	}
	return records, nil
}

// glanceRace has writers follow each other, in batches too, while others look;
// what these have seen is compared with what has won.
func glanceRace(h *harness) {
	const writers, lookers, rounds, nkeys = 4, 4, 25, 3
	type version struct {
		key driver.Key
		nr  int64
	}
	var (
		stores = h.both()
		keys   []driver.Key
		won    [writers]map[version]string
		unsure [writers]map[string]bool // values of writes of which their writer does not know
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
			records, err := glance(h.ctx, stores[i%len(stores)], keys...)
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
				h.Errorf("a glance at %s shows version %d with %q, which nobody has written", describe(v.key), v.nr, value)
			}
		}
	}
}

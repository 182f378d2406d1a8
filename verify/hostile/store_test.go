//go:build linux

package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
)

// A reopener is a store on one host, and opens it again on the next. It does not
// watch: other hosts tell nothing. Nor does it sweep: a write that meets the sweep
// of its key may not learn what became of it, and the suite allows no such answer
// (TestSweep does).
type reopener struct {
	driver.Store
	paths []string
}

func (r *reopener) Reopen(t *testing.T) driver.Store {
	r.paths = append(r.paths[1:], r.paths[0])
	return struct{ driver.Store }{open(t, r.paths[0])}
}

func open(t *testing.T, path string) *directory.Store {
	t.Helper()
	s, err := directory.New(path, directory.FileTimes)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// stale are opened stores on three hosts whose names and listings are old.
func stale(t *testing.T, f Faults) func(t *testing.T) driver.Store {
	s, _ := serve(t, *seed, Anyhow, 0)
	var hosts []*Mount
	for range 3 {
		m := host(t, s)
		m.Set(f)
		hosts = append(hosts, m)
	}
	return func(t *testing.T) driver.Store {
		dir, err := os.MkdirTemp(hosts[0].Path, "store-")
		must(t, err)
		must(t, directory.Migrate(dir))
		r := &reopener{}
		for _, m := range hosts {
			at := filepath.Join(m.Path, filepath.Base(dir))
			soon(t, "each host sees the directory", func() bool { return directory.Verify(at) == nil })
			r.paths = append(r.paths, at)
		}
		r.Store = open(t, r.paths[0])
		return r
	}
}

// The store keeps its contract where names, attributes and listings are old.
func TestStore(t *testing.T) {
	onlyFull(t)
	for name, f := range map[string]Faults{
		"kernel": {Stale: 200 * time.Millisecond},
		"views":  {Stale: 50 * time.Millisecond, Views: true},
	} {
		t.Run(name, func(t *testing.T) { drivertest.Run(t, stale(t, f)) })
	}
}

// So do clients over it.
func TestClients(t *testing.T) {
	onlyFull(t)
	clienttest.Run(t, stale(t, Faults{Stale: 200 * time.Millisecond}))
}

func onlyFull(t *testing.T) {
	if !*full {
		t.Skip("it takes minutes: only with -args -full")
	}
}

// A file that is removed while its host has it open stays there under another
// name. Another host may go on opening it by its old name, and must not take it
// for what stands.
func TestRemovedWhileOpen(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	reader := host(t, s)
	must(t, directory.Migrate(p[0]))
	key := driver.Key{Name: "a"}
	for round := range 6 {
		w := open(t, p[0])
		first, err := w.Load(t.Context(), []driver.Key{key}, driver.Fresh)
		must(t, err)
		old := first[0].Version
		if old == 0 {
			old = driver.IfEmpty
		}
		outs, err := w.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: old, Value: []byte(fmt.Sprint("old ", round))}})
		must(t, err)
		reader.Set(Faults{Stale: time.Second, Views: round%2 == 0})
		r := open(t, reader.Path)
		_, err = r.Load(t.Context(), []driver.Key{key}, driver.Fresh)
		must(t, err)
		records, err := filepath.Glob(filepath.Join(p[0], "names", "*", "record-*"))
		must(t, err)
		more, err := filepath.Glob(filepath.Join(p[0], "names", "record-*"))
		must(t, err)
		for _, name := range append(records, more...) {
			f, err := os.Open(name)
			must(t, err)
			defer f.Close()
		}
		outs, err = w.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: outs[0].Record.Version, Value: []byte(fmt.Sprint("new ", round))}})
		must(t, err)
		got, err := r.Load(t.Context(), []driver.Key{key}, driver.Fresh)
		must(t, err)
		if got[0].Version != outs[0].Record.Version {
			t.Fatalf("another host reads version %d, %q; %d was reported before", got[0].Version, got[0].Value, outs[0].Record.Version)
		}
		reader.Set(Faults{})
	}
}

// Versions grow strictly per key, for ever, also when keys are swept by one host
// while others write them, and each version is won by one of them.
func TestSweep(t *testing.T) {
	first := stale(t, Faults{Stale: 50 * time.Millisecond})(t).(*reopener)
	type win struct {
		key     int
		version int64
	}
	var mu sync.Mutex
	won := make(map[win]int)
	wins := 0
	end := time.Now().Add(5 * time.Second)
	var all sync.WaitGroup
	for i := range 4 {
		s := open(t, first.paths[i%3])
		all.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				k := n % 3
				key := driver.Key{Name: fmt.Sprint("key ", k)}
				recs, err := s.Load(t.Context(), []driver.Key{key}, driver.Fresh)
				if err != nil {
					continue
				}
				value, old := []byte(fmt.Sprint(i, n)), recs[0].Version
				if len(recs[0].Value) > 0 {
					value = nil
				} else {
					old = driver.IfEmpty
				}
				outs, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: old, Value: value}})
				if err != nil || !outs[0].Won {
					continue
				}
				mu.Lock()
				w := win{k, outs[0].Record.Version}
				if other, ok := won[w]; ok {
					t.Errorf("version %d of key %d was won by %d and by %d", w.version, k, other, i)
				}
				won[w] = i
				wins++
				mu.Unlock()
				if outs[0].Record.Version <= recs[0].Version {
					t.Errorf("version %d of key %d was followed by %d", recs[0].Version, k, outs[0].Record.Version)
				}
			}
		})
	}
	s, swept, highest := open(t, first.paths[2]), 0, make(map[string]int64)
	for time.Now().Before(end) {
		n, err := s.Sweep(t.Context(), 0)
		if swept += n; err != nil {
			t.Logf("sweep: %v", err)
		}
		for k := range 3 {
			key := driver.Key{Name: fmt.Sprint("key ", k)}
			recs, err := s.Load(t.Context(), []driver.Key{key}, driver.Fresh)
			if err != nil || recs[0].Version == 0 {
				continue
			}
			if recs[0].Version < highest[key.Name] {
				t.Errorf("%q has version %d after %d", key.Name, recs[0].Version, highest[key.Name])
			}
			highest[key.Name] = recs[0].Version
		}
	}
	all.Wait()
	if swept < 5 || wins < 50 {
		t.Errorf("%d sweeps and %d writes that won: nothing was tested", swept, wins)
	}
	t.Logf("%d swept, %d writes won", swept, wins)
}

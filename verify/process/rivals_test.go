//go:build linux

package process

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/stores"
)

// A deal is one call of a process to a store, and what it was told.
type deal struct {
	Key        string
	Begin, End int64 // End is 0 if it was not told any more
	Old        int64 // that it wanted to follow; -1: if empty; 0: it only looked
	Put        string
	Won        bool
	Version    int64 // of the record that it was told
	Value      string
}

var rivalKeys = []string{"a", "b", "c"}

// rivals reads and writes a few keys until it is killed, and writes down each
// call before and after.
func rivals(args []string) error {
	p := newPart()
	log := p.String("log", "", "")
	perhaps := p.Bool("perhaps", false, "errors are expected: what they leave open is not told")
	if err := p.Parse(args); err != nil {
		return err
	}
	s, err := stores.Open(p.ctx, os.Getenv("PROCESS_STORE"))
	if err != nil {
		return err
	}
	out, err := os.Create(*log)
	if err != nil {
		return err
	}
	tell := func(d deal) error { return json.NewEncoder(out).Encode(d) }
	known := make(map[string]driver.Record)
	for n := 0; ; n++ {
		d := deal{Key: rivalKeys[rand.N(len(rivalKeys))], Begin: life.Now()}
		was := known[d.Key]
		switch r := rand.N(10); {
		case r < 2:
		case len(was.Value) == 0:
			d.Old = driver.IfEmpty
		default:
			d.Old = was.Version
		}
		if d.Old != 0 && !(d.Old > 0 && rand.N(3) == 0) {
			d.Put = fmt.Sprintf("%d.%d", os.Getpid(), n)
		}
		if err := tell(d); err != nil {
			return err
		}
		if d.Old == 0 {
			var recs []driver.Record
			if recs, err = s.Load(p.ctx, []driver.Key{inName(d.Key)}, driver.Fresh); err == nil {
				was = recs[0]
			}
		} else {
			var outs []driver.Outcome
			outs, err = s.CompareAndSwap(p.ctx, []driver.Write{{Key: inName(d.Key), Old: d.Old, Value: []byte(d.Put), Lazy: rand.N(2) == 0}})
			if err == nil {
				d.Won, was, err = outs[0].Won, outs[0].Record, outs[0].Err
			}
		}
		switch {
		case err != nil && *perhaps:
			continue
		case err != nil:
			return err
		}
		d.End, d.Version, d.Value = life.Now(), was.Version, string(was.Value)
		known[d.Key] = was
		if err := tell(d); err != nil {
			return err
		}
	}
}

// Processes that write the same keys, are killed at any moment and started
// again, while what is empty is swept, follow each version at most once, with
// nothing in between, and never see what was before something that is told.
func TestRivals(t *testing.T) {
	t.Parallel()
	if *full {
		onStores(t, rivalry)
		return
	}
	for _, store := range []string{"dir", "sqlite"} {
		t.Run(store, func(t *testing.T) { rivalry(t, onFiles[store]) })
	}
}

func rivalry(t *testing.T, fresh func(*testing.T) *world) {
	w := fresh(t)
	const crowd = 5
	var all [crowd]*process
	logs := 0
	least, lasts, flags := 100, time.Duration(number(4, 60))*time.Second, []string(nil)
	if w.onCassandra() {
		least, lasts, flags = 20, 2*lasts, []string{"-perhaps"}
	}
	begin := func(i int) {
		logs++
		all[i] = w.program("rivals", append(flags, "-log", filepath.Join(w.dir, fmt.Sprintf("log-%d", logs)))...)
	}
	for i := range all {
		begin(i)
	}
	sweeper := w.store.Store
	swept := 0
	end := time.Now().Add(lasts * time.Duration(stretch))
	for last := end.Add(patience); time.Now().Before(end) || swept == 0 && time.Now().Before(last); time.Sleep(rand.N(lasts / 40)) {
		i := rand.N(crowd)
		if all[i].isDone() {
			t.Fatalf("a process has ended: %s", all[i].said())
		}
		all[i].signal(syscall.SIGKILL)
		<-all[i].done
		begin(i)
		n, err := sweeper.Sweep(t.Context(), 0)
		must(t, err)
		swept += n
	}
	for _, p := range all {
		p.signal(syscall.SIGKILL)
		<-p.done
	}
	begun, told := make(map[string][]deal), make(map[string][]deal) // by key
	deals, won := 0, 0
	for i := range logs {
		text, err := os.ReadFile(filepath.Join(w.dir, fmt.Sprintf("log-%d", i+1)))
		if os.IsNotExist(err) {
			continue // it was killed before
		}
		must(t, err)
		for line := range bytes.Lines(text) {
			var d deal
			if json.Unmarshal(line, &d) != nil {
				continue // it was killed while it wrote
			}
			if d.End == 0 {
				begun[d.Key] = append(begun[d.Key], d)
				continue
			}
			told[d.Key] = append(told[d.Key], d)
			deals++
			if d.Won {
				won++
			}
		}
	}
	for _, key := range rivalKeys {
		now := w.load(key)
		inOrder(t, begun[key], append(told[key], deal{Key: key, Begin: life.Now(), End: life.Now() + 1, Version: now.Version, Value: string(now.Value)}))
	}
	w.clear()
	if won < least || swept == 0 {
		t.Errorf("%d writes won, and %d keys were swept: too few to tell", won, swept)
	}
	t.Logf("figure: %d calls of %d processes, all but %d killed, on %d keys: %d writes won, each followed its version at once; %d times a key was swept",
		deals, logs, crowd, len(rivalKeys), won, swept)
}

// inOrder checks the calls about one key, in the order of versions and of time.
func inOrder(t *testing.T, begun, deals []deal) {
	t.Helper()
	values := make(map[int64]string) // by version
	followed := make(map[int64]deal) // by the version that a write has followed
	won := make(map[int64]deal)      // by the version that it has made
	var versions []int64             // that were ever seen
	for _, d := range deals {
		if d.Won && d.Value != d.Put {
			t.Errorf("%+v: it won with another value", d)
		}
		if d.Version == 0 {
			continue
		}
		versions = append(versions, d.Version)
		if before, ok := values[d.Version]; ok && before != d.Value {
			t.Errorf("%+v: another was told %q", d, before)
		}
		values[d.Version] = d.Value
		if !d.Won {
			continue
		}
		if other, ok := won[d.Version]; ok {
			t.Errorf("two have made one version: %+v and %+v", other, d)
		}
		won[d.Version] = d
		if d.Old < 0 {
			continue
		}
		if other, ok := followed[d.Old]; ok {
			t.Errorf("two have followed one version: %+v and %+v", other, d)
		}
		followed[d.Old] = d
	}
	slices.Sort(versions)
	for old, d := range followed {
		i, _ := slices.BinarySearch(versions, old+1)
		if i < len(versions) && versions[i] < d.Version {
			t.Errorf("%+v: version %d %q was between", d, versions[i], values[versions[i]])
		}
	}
	// What was told before a call began is not after what that call is told.
	ends := slices.SortedFunc(slices.Values(deals), func(a, b deal) int { return cmp.Compare(a.End, b.End) })
	slices.SortFunc(deals, func(a, b deal) int { return cmp.Compare(a.Begin, b.Begin) })
	newest, at := deal{}, 0
	for _, d := range deals {
		for ; at < len(ends) && ends[at].End < d.Begin; at++ {
			if ends[at].Version > newest.Version {
				newest = ends[at]
			}
		}
		switch {
		case d.Version == 0 && newest.Value != "" && !emptied(begun, newest.Version, d.End):
			t.Errorf("%+v: it is said to hold nothing after %+v", d, newest)
		case d.Version != 0 && d.Version < newest.Version:
			t.Errorf("%+v: it was told an older version than before: %+v", d, newest)
		}
	}
}

// emptied is whether a key may have been emptied after a version, by a call that
// began before some time, also by one that did not live to tell.
func emptied(begun []deal, after, before int64) bool {
	return slices.ContainsFunc(begun, func(d deal) bool { return d.Put == "" && d.Old >= after && d.Begin < before })
}

//go:build linux

package hostile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
)

// A rig is a store that hosts share, one handle on each.
type rig struct {
	*testing.T
	server *Server
	hosts  []*Mount
	stores []*directory.Store
}

var aKey = driver.Key{Name: "a"}

func newRig(t *testing.T, seed uint64, names Names, hosts int) *rig {
	t.Helper()
	r := &rig{T: t}
	r.server, _ = serve(t, seed, names, 0)
	for i := range hosts {
		m := host(t, r.server)
		if r.hosts = append(r.hosts, m); i == 0 {
			must(t, directory.Migrate(m.Path))
		}
		r.stores = append(r.stores, open(t, m.Path))
	}
	return r
}

// each calls fn with servers of several seeds that forget in order, or anyhow.
func each(t *testing.T, hosts int, fn func(r *rig)) {
	for seed := range uint64(6) {
		for _, names := range []Names{Anyhow, InOrder, Durable} {
			fn(newRig(t, seed, names, hosts))
			if t.Failed() {
				t.Fatalf("with seed %d, names %v", seed, names)
			}
		}
	}
}

func (r *rig) load(i int) driver.Record {
	r.Helper()
	recs, err := r.stores[i].Load(r.Context(), []driver.Key{aKey}, driver.Fresh)
	must(r, err)
	return recs[0]
}

// write has value follow what stands, as a host sees it.
func (r *rig) write(i int, value string) (o driver.Outcome, err error) {
	r.Helper()
	return r.follow(i, r.load(i).Version, value)
}

func (r *rig) follow(i int, old int64, value string) (o driver.Outcome, err error) {
	if old == 0 {
		old = driver.IfEmpty
	}
	outs, err := r.stores[i].CompareAndSwap(r.Context(), []driver.Write{{Key: aKey, Old: old, Value: []byte(value)}})
	if err == nil {
		o = outs[0]
	}
	return o, err
}

// wins is a write that nobody else disputes.
func (r *rig) wins(i int, value string) int64 {
	r.Helper()
	o, err := r.write(i, value)
	if err != nil || !o.Won {
		r.Fatalf("%q: won is %v, error %v", value, o.Won, err)
	}
	return o.Record.Version
}

func (r *rig) holds(i int, version int64, value string) {
	r.Helper()
	if got := r.load(i); got.Version != version || string(got.Value) != value {
		r.Errorf("host %d reads version %d, %q; want %d, %q", i, got.Version, got.Value, version, value)
	}
}

// What was reported outlives a crash of the server, whichever host did it.
func TestReportedIsDurable(t *testing.T) {
	each(t, 2, func(r *rig) {
		for i := range 3 {
			value := fmt.Sprint("value ", i)
			version := r.wins(i%2, value)
			r.server.Crash()
			r.holds(i%2, version, value)
			r.holds(1-i%2, version, value)
		}
		free := r.wins(0, "")
		r.server.Crash()
		r.holds(1, free, "")
	})
}

// A then does something once a version has got its name.
type then func()

func (f then) Crashed(func(func(string, []byte))) {}

func (f then) Renamed(_, to string, _ func(string) ([]byte, time.Duration)) {
	if _, _, _, ok := versionAt(to); ok {
		f()
	}
}

// What another host has read outlives it too, though its writer never knew.
func TestReadIsDurable(t *testing.T) {
	each(t, 2, func(r *rig) {
		r.wins(0, "first")
		r.server.Watch(then(func() { r.hosts[0].Set(Faults{Sync: 1, Only: "fsyncdir"}) }))
		if o, err := r.write(0, "second"); err == nil {
			r.Fatalf("a write was answered that is not on disk: %+v", o)
		}
		got := r.load(1)
		if string(got.Value) != "second" {
			r.Errorf("another host reads %q", got.Value)
		}
		r.server.Crash()
		r.holds(1, got.Version, string(got.Value))
	})
}

// A write that was applied and told as failed, or as already done, is known to
// have won; so it is when others have followed it meanwhile, or it is not known.
func TestLostRename(t *testing.T) {
	for name, f := range map[string]Faults{"failed": {Lost: 1, Only: "rename"}, "retransmitted": {Again: 1, Only: "rename"}} {
		r := newRig(t, 1, Anyhow, 3)
		r.wins(0, "first")
		r.hosts[0].Set(f)
		o, err := r.write(0, "second")
		if err != nil || !o.Won {
			t.Errorf("%s: won is %v, error %v; it was applied", name, o.Won, err)
		}
		r.holds(1, o.Record.Version, "second")

		// Followed twice before its writer hears of it, by hosts that have it open.
		held := make(chan struct{})
		f.Held = held
		r.hosts[0].Set(f)
		third := make(chan error)
		var won bool
		go func() {
			o, err := r.follow(0, o.Record.Version, "third")
			won = o.Won
			third <- err
		}()
		soon(t, "it is applied", func() bool { return string(r.load(1).Value) == "third" })
		records, err := filepath.Glob(filepath.Join(r.hosts[1].Path, "names", "record-*"))
		must(t, err)
		for _, record := range records {
			if file, err := os.Open(record); err == nil {
				defer file.Close()
			}
		}
		r.wins(1, "fourth")
		last := r.wins(2, "fifth")
		r.hosts[0].Set(Faults{Stale: 10 * time.Second})
		close(held)
		if err := <-third; err == nil && !won {
			t.Errorf("%s: a write that had won is told to have lost", name)
		}
		r.hosts[0].Set(Faults{})
		r.holds(1, last, "fifth")
	}
}

// A rename that was not applied may be later: until somebody else has followed the
// same version nothing can be said; and from then on it never is.
func TestLateRename(t *testing.T) {
	r := newRig(t, 1, Anyhow, 2)
	first := r.wins(0, "first")
	r.hosts[0].Set(Faults{Late: 1, LateBy: 2 * time.Second, Only: "rename"})
	o, err := r.follow(0, first, "late")
	if err == nil {
		t.Errorf("a write that may still come is answered: %+v", o)
	}
	r.server.Settle()
	r.hosts[0].Set(Faults{})
	if got := r.load(1); string(got.Value) != "late" {
		t.Errorf("when the rename has come there is %q", got.Value)
	}

	first = r.load(0).Version
	r.hosts[0].Set(Faults{Late: 1, LateBy: time.Second, Only: "rename"})
	_, err = r.follow(0, first, "too late")
	r.hosts[0].Set(Faults{})
	o, other := r.follow(1, first, "other")
	r.server.Settle()
	if other != nil {
		t.Fatal(other)
	}
	if err == nil && o.Won || !o.Won && string(o.Record.Value) != "too late" {
		t.Errorf("of two that follow one version: %v, and %+v", err, o)
	}
	r.holds(0, o.Record.Version, string(o.Record.Value))
}

// A listing that is old leads to what is there now, at once, also where nothing was when
// it was made, and when many versions have gone by.
func TestOldListing(t *testing.T) {
	for _, f := range []Faults{{Stale: time.Minute}, {Stale: time.Minute, Views: true}} {
		r := newRig(t, 1, Anyhow, 2)
		for i := range 10 {
			r.hosts[1].Set(f)
			r.load(1)
			var last int64
			for n := range i {
				last = r.wins(0, fmt.Sprint("value ", i, n))
			}
			if i == 0 {
				continue
			}
			r.holds(1, last, fmt.Sprint("value ", i, i-1))
			if names, err := r.stores[1].Keys(t.Context(), driver.Names, "", 10); err != nil || len(names) > 1 {
				t.Errorf("host 1 lists %q, error %v", names, err)
			}
		}
	}
}

// Ages are by the server's clock, whatever the hosts' is.
func TestAge(t *testing.T) {
	for _, skew := range []time.Duration{time.Hour, -time.Hour} {
		r := newRig(t, 1, Anyhow, 2)
		r.server.Skew(skew)
		began := time.Now()
		r.wins(0, "value")
		for range 3 {
			time.Sleep(50 * time.Millisecond)
			if got, most := r.load(1).Age, time.Since(began)+time.Millisecond; got < 30*time.Millisecond || got > most {
				t.Errorf("with a server's clock %v ahead the record is %v old, want up to %v", skew, got, most)
			}
		}
	}
}

// A failed fsync of a record is that of its write: nothing follows by it.
func TestRecordNotSynced(t *testing.T) {
	each(t, 2, func(r *rig) {
		first := r.wins(0, "first")
		r.hosts[0].Set(Faults{Sync: 1, Only: "fsync"})
		if o, err := r.write(0, "second"); err == nil {
			r.Errorf("answered: %+v", o)
		}
		r.hosts[0].Set(Faults{})
		r.server.Crash()
		r.holds(1, first, "first")
		r.wins(0, "third")
	})
}

// Of a key that was never written all take it by one rename, also when the answer
// is lost or comes late.
func TestLostCreate(t *testing.T) {
	for _, f := range []Faults{{Lost: 1, Only: "rename"}, {Again: 1, Only: "rename"}, {Late: 1, LateBy: 300 * time.Millisecond, Only: "rename"}} {
		r := newRig(t, 1, Anyhow, 2)
		r.hosts[0].Set(f)
		o, err := r.follow(0, 0, "mine")
		r.hosts[0].Set(Faults{})
		other, otherErr := r.follow(1, 0, "other")
		if otherErr != nil {
			t.Fatal(otherErr)
		}
		if err == nil && o.Won == other.Won {
			t.Errorf("%+v: both are told that won is %v", f, o.Won)
		}
		r.server.Settle()
		if got := string(r.load(0).Value); err == nil && o.Won && got != "mine" || other.Won && got != "other" {
			t.Errorf("%+v: there is %q; won %v, %v", f, got, o.Won, other.Won)
		}
	}
}

// A create that the server makes twice brings back no version: a rename of it that
// is late would win a second time.
func TestDoubledCreate(t *testing.T) {
	r := newRig(t, 1, Anyhow, 2)
	r.hosts[0].Set(Faults{Twice: 1, LateBy: 300 * time.Millisecond, Only: "create"})
	var last int64
	for i := range 3 {
		last = r.wins(0, fmt.Sprint("value ", i))
	}
	r.hosts[0].Set(Faults{})
	r.server.Settle()
	var markers []string
	r.server.Walk(func(path string, _ []byte) {
		if strings.HasPrefix(filepath.Base(path), "version-") {
			markers = append(markers, path)
		}
	})
	if len(markers) != 1 {
		t.Errorf("of one key there are the versions %q", markers)
	}
	r.holds(1, last, "value 2")
}

// What a host cannot read is not left out of a list: the list fails.
func TestListIsWhole(t *testing.T) {
	for _, op := range []string{"lookup", "open", "read", "opendir", "readdir"} {
		r := newRig(t, 1, Durable, 2)
		r.wins(0, "value")
		list := func() []string {
			r.Helper()
			r.hosts[1].Set(Faults{Read: 1, Only: op})
			names, err := r.stores[1].Keys(t.Context(), driver.Names, "", 10)
			r.hosts[1].Set(Faults{})
			if err != nil {
				return []string{aKey.Name}
			}
			return names
		}
		before := list()
		if _, err := r.stores[1].Keys(t.Context(), driver.Names, "", 10); err != nil { // which knows its name now
			t.Fatal(err)
		}
		if after := list(); len(before) != 1 || len(after) != 1 {
			t.Errorf("where %s fails the key is not listed: %q, and %q once its name is known", op, before, after)
		}
	}
}

// A sweep on a host that does not see a key yet leaves its record, whatever time
// its file has.
func TestSweepOfTheUnseen(t *testing.T) {
	r := newRig(t, 1, Durable, 2)
	r.hosts[1].Set(Faults{Stale: time.Hour})
	sum := sha256.Sum256([]byte(aKey.Name))
	if _, err := os.Lstat(filepath.Join(r.hosts[1].Path, "names", hex.EncodeToString(sum[:]))); err == nil { // which it remembers
		t.Fatal("the key is there")
	}
	last := r.wins(0, "value")
	old := time.Now().Add(-3 * time.Hour)
	records, err := filepath.Glob(filepath.Join(r.hosts[0].Path, "names", "record-*"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records %q, error %v", records, err)
	}
	must(t, os.Chtimes(records[0], old, old))
	if _, err := r.stores[1].Sweep(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	r.holds(0, last, "value")
}

//go:build linux

package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/stores"
)

// A change is one call of a store, in which a process may die.
type change struct {
	what   string
	before []driver.Write // Old is set to what is there
	writes []driver.Write // Old 1 stands for the version that is there
	sweep  bool
}

func inName(name string) driver.Key { return driver.Key{Name: name} }

func sets(name, value string) driver.Write {
	return driver.Write{Key: inName(name), Old: driver.IfEmpty, Value: []byte(value)}
}

func follows(name, value string) driver.Write {
	return driver.Write{Key: inName(name), Old: 1, Value: []byte(value)}
}

var (
	long    = strings.Repeat("long ", 10_000)
	changes = []change{
		{what: "take a new name", writes: []driver.Write{sets("x", "new")}},
		{what: "take a free name", before: []driver.Write{sets("x", "old"), follows("x", "")}, writes: []driver.Write{sets("x", "new")}},
		{what: "follow", before: []driver.Write{sets("x", "old")}, writes: []driver.Write{follows("x", long)}},
		{what: "empty", before: []driver.Write{sets("x", long)}, writes: []driver.Write{follows("x", "")}},
		{what: "batch", before: []driver.Write{sets("x", "old"), sets("y", "old")}, writes: []driver.Write{
			follows("x", "new"), follows("y", ""), sets("z", "new"),
		}},
		{what: "sweep", before: []driver.Write{sets("x", "old"), follows("x", ""), sets("y", "old")}, sweep: true},
	}
)

// swap makes the call that is under test, between two marks.
func swap(args []string) error {
	p := newPart()
	text := p.String("writes", "", "")
	if err := p.Parse(args); err != nil {
		return err
	}
	s, err := stores.Open(p.ctx, os.Getenv("PROCESS_STORE"))
	if err != nil {
		return err
	}
	var writes []driver.Write
	if err := json.Unmarshal([]byte(*text), &writes); err != nil {
		return err
	}
	notch()
	var outcomes []driver.Outcome
	if writes != nil {
		outcomes, err = s.CompareAndSwap(p.ctx, writes)
	} else {
		_, err = s.Store.Sweep(p.ctx, 0)
	}
	notch()
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(os.Stdout).Encode(outcomes), s.Close())
}

// A process that is killed at any one of the system calls of a write leaves the
// record as it was or as it was to be, others go on from there, and nothing is
// left of it after sweeps.
func TestCrashInside(t *testing.T) {
	t.Parallel()
	for name, fresh := range onFiles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range changes {
				t.Run(c.what, func(t *testing.T) {
					t.Parallel()
					c.run(t, fresh)
				})
			}
		})
	}
}

func (c change) run(t *testing.T, fresh func(*testing.T) *world) {
	whole := fresh(t)
	told := c.die(t, whole, 0)
	whole.clear()
	tidy := whole.files()
	old, new, tries := 0, 0, 0
	for at := 1; ; at++ {
		if tries++; tries > 1000 {
			t.Fatalf("in 1000 processes, which were killed up to call %d, none had done it", at)
		}
		w := fresh(t)
		w.t = t
		got := c.die(t, w, at)
		if !got.Killed {
			if new > 0 {
				break
			}
			at = len(got.Calls) - 1 // processes before made more calls: this one was done sooner
			continue
		}
		if t.Failed() {
			t.Fatalf("it was killed at call %d of: %v", at, got)
		}
		if r := w.load("x"); c.sweep && r.Version == 0 || !c.sweep && r.Version != 0 && string(r.Value) == c.after("x") {
			new++
		} else {
			old++
		}
		c.judge(w)
		w.clear()
		if left := w.files(); !slices.Equal(left, tidy) {
			t.Errorf("left over after sweeps:\n%s\nafter a process that was not killed:\n%s", strings.Join(left, "\n"), strings.Join(tidy, "\n"))
		}
		if t.Failed() {
			t.Fatalf("it was killed at call %d of: %v", at, got)
		}
	}
	if old == 0 || new == 0 {
		t.Errorf("killed %d times before it was done and %d times after: one of them was not tried", old, new)
	}
	t.Logf("figure: %s, killed at each of %d system calls: %d times nothing had happened, %d times all; it takes: %v", c.what, old+new, old, new, told)
}

// now is the record of a key.
func (w *world) load(name string) driver.Record {
	w.t.Helper()
	recs, err := w.store.Load(w.t.Context(), []driver.Key{inName(name)}, driver.Fresh)
	must(w.t, err)
	return recs[0]
}

// win writes after what is there.
func (w *world) win(write driver.Write) driver.Record {
	w.t.Helper()
	if write.Old > 0 {
		write.Old = w.load(write.Key.Name).Version
	}
	outs, err := w.store.CompareAndSwap(w.t.Context(), []driver.Write{write})
	must(w.t, err)
	if !outs[0].Won {
		w.t.Fatalf("%q after version %d lost to version %d %.20q", write.Key.Name, write.Old, outs[0].Record.Version, outs[0].Record.Value)
	}
	return outs[0].Record
}

// die has another process make the change, and die at that system call.
func (c change) die(t *testing.T, w *world, at int) (told traced) {
	t.Helper()
	for _, b := range c.before {
		w.win(b)
	}
	writes := slices.Clone(c.writes)
	for i, wr := range writes {
		if wr.Old > 0 {
			writes[i].Old = w.load(wr.Key.Name).Version
		}
	}
	text, err := json.Marshal(writes)
	must(t, err)
	p := w.program("trace", fmt.Sprint(at), "swap", "-writes", string(text))
	p.wantStatus(0)
	if t.Failed() {
		t.FailNow()
	}
	must(t, json.Unmarshal(p.stdout.Bytes(), &told))
	if told.Missing != "" {
		t.Skipf("SKIPPED: no process can be traced here, so death inside a write is not tested: %s", told.Missing)
	}
	if !told.Killed && !c.sweep {
		var outcomes []driver.Outcome
		must(t, json.Unmarshal([]byte(told.Said), &outcomes))
		for _, o := range outcomes {
			if !o.Won {
				t.Fatalf("without a rival it lost to %d %.20q", o.Record.Version, o.Record.Value)
			}
		}
	}
	return told
}

// was and after are what a key held before and after.
func (c change) was(name string) (value string) {
	for _, b := range c.before {
		if b.Key.Name == name {
			value = string(b.Value)
		}
	}
	return value
}

func (c change) after(name string) string {
	value := c.was(name)
	for _, wr := range c.writes {
		if wr.Key.Name == name {
			value = string(wr.Value)
		}
	}
	return value
}

// judge looks at what the dead process has left, also as one does who opens the
// store only now, and goes on from there.
func (c change) judge(w *world) {
	t := w.t
	t.Helper()
	again, err := stores.Open(t.Context(), w.target)
	must(t, err)
	defer again.Close()
	for _, name := range []string{"x", "y", "z"} {
		r := w.load(name)
		if got := string(r.Value); got != c.was(name) && got != c.after(name) {
			t.Fatalf("%s is %.40q, and was %.40q and was to be %.40q", name, got, c.was(name), c.after(name))
		}
		recs, err := again.Load(t.Context(), []driver.Key{inName(name)}, driver.Fresh)
		must(t, err)
		if recs[0].Version != r.Version || string(recs[0].Value) != string(r.Value) {
			t.Fatalf("%s is version %d for one and %d for another", name, r.Version, recs[0].Version)
		}
		next := driver.Write{Key: inName(name), Old: r.Version, Value: []byte("next")}
		if r.Version == 0 {
			next.Old = driver.IfEmpty
		}
		outs, err := again.CompareAndSwap(t.Context(), []driver.Write{next})
		must(t, err)
		if !outs[0].Won || outs[0].Record.Version <= r.Version {
			t.Fatalf("%s after version %d: won is %v, as version %d", name, r.Version, outs[0].Won, outs[0].Record.Version)
		}
		if got := w.load(name); got.Version != outs[0].Record.Version || string(got.Value) != "next" {
			t.Fatalf("%s is version %d %.40q after version %d was written", name, got.Version, got.Value, outs[0].Record.Version)
		}
		lost, err := w.store.CompareAndSwap(t.Context(), []driver.Write{next})
		must(t, err)
		if lost[0].Won {
			t.Fatalf("%s was followed twice after version %d", name, r.Version)
		}
	}
}

// clear empties all names and sweeps until none is left.
func (w *world) clear() {
	t := w.t
	t.Helper()
	for _, name := range []string{"x", "y", "z"} {
		if r := w.load(name); len(r.Value) > 0 {
			w.win(driver.Write{Key: inName(name), Old: r.Version})
		}
	}
	sweeper := w.store.Store
	w.age()
	await(t, "all names are swept", func() bool {
		_, err := sweeper.Sweep(t.Context(), 0)
		must(t, err)
		return w.load("x").Version+w.load("y").Version+w.load("z").Version == 0
	})
}

// age has all files of a directory store be older than any call lasts.
func (w *world) age() {
	dir, ok := strings.CutPrefix(w.target, "dir:")
	if !ok {
		return
	}
	then := time.Now().Add(-24 * time.Hour)
	must(w.t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, then, then))
	}))
}

// bare is that nothing is left in a directory store of all who used it, after a
// sweep a day later.
func (w *world) bare() {
	w.t.Helper()
	w.age()
	sweeper := w.store.Store
	var left []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		_, err := sweeper.Sweep(w.t.Context(), 0)
		must(w.t, err)
		left = slices.DeleteFunc(w.files(), func(path string) bool {
			return !strings.HasPrefix(path, "/names/") && !strings.HasPrefix(path, "/sessions/") && !strings.HasPrefix(path, "/tmp/")
		})
		if len(left) == 0 || len(left) == 1 && strings.HasPrefix(left[0], "/tmp/clock-") { // that of this process
			return
		}
	}
	w.t.Errorf("left over in the directory after a sweep:\n%s", strings.Join(left, "\n"))
}

// random is what differs between the files of two worlds with the same names.
var random = regexp.MustCompile(`[0-9]{10,}|[0-9A-Z]{20,30}`)

// files are those in a directory store.
func (w *world) files() (all []string) {
	dir, ok := strings.CutPrefix(w.target, "dir:")
	if !ok {
		return nil
	}
	must(w.t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, random.ReplaceAllString(strings.TrimPrefix(path, dir), "*"))
		return err
	}))
	return all
}

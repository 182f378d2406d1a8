//go:build linux

package hostile

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// A ledger is every version that the server has seen, and what each crash left.
type ledger struct {
	mu      sync.Mutex
	steps   []check.Step
	crashes []crash
	found   []check.Violation

	newest map[string]int64 // version of each key's directory
	ghosts int
}

type crash struct {
	at       int64
	versions map[driver.Key]int64
}

var spaces = []string{"names", "sessions", "settings", "audits"}

// versionAt understands the name of a version, and says where its record is.
func versionAt(name string) (space int, version int64, record string, ok bool) {
	above := path.Dir(path.Dir(name))
	space = slices.Index(spaces, path.Base(above))
	rest, ok := strings.CutPrefix(path.Base(name), "version-")
	digits, nonce, _ := strings.Cut(rest, "-")
	version, err := strconv.ParseInt(digits, 10, 64)
	return space, version, path.Join(above, "record-"+strings.TrimSuffix(nonce, "-free")), ok && err == nil && space >= 0 && version > 0
}

// step is what a version is.
func step(name string, read func(path string) ([]byte, time.Duration)) (s check.Step, ok bool, err error) {
	space, version, record, ok := versionAt(name)
	if !ok {
		return s, false, nil
	}
	text, age := read(record)
	line, value, _ := bytes.Cut(text, []byte("\n"))
	var head struct {
		Name string
		Hex  string `json:"name_hex"`
		Size int
	}
	if err := json.Unmarshal(line, &head); err != nil || head.Size != len(value) {
		return s, false, fmt.Errorf("%s has no record but %q", name, text)
	}
	if raw, err := hex.DecodeString(head.Hex); err == nil && len(raw) > 0 {
		head.Name = string(raw)
	}
	key := driver.Key{Space: driver.Space(space), Name: head.Name}
	s = check.Step{Key: key, Version: version, Value: string(value), At: time.Duration(life.Now())}
	if rec, err := check.ReadSession(s.Value); key.Space == driver.Sessions && err == nil && rec.Dead == 0 {
		s.At -= age // a heartbeat counts from when it was written
	}
	return s, true, nil
}

func (l *ledger) Renamed(from, to string, read func(path string) ([]byte, time.Duration)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest == nil {
		l.newest = make(map[string]int64)
	}
	if _, version, _, ok := versionAt(to); ok {
		// A server that does again, late and in order, all that made a marker and
		// moved it since, has a second one follow the first. Nobody goes by it, for
		// the newest counts; it must never be the newest that comes back.
		if _, was, _, _ := versionAt(from); was < l.newest[path.Dir(to)] && version < l.newest[path.Dir(to)] {
			l.ghosts++
			return
		}
		l.newest[path.Dir(to)] = version
	}
	s, ok, err := step(to, read)
	if err != nil {
		l.found = append(l.found, story.Bad("record", "at %v: %v", time.Duration(life.Now()), err))
	}
	if ok {
		l.steps = append(l.steps, s)
	}
}

func (l *ledger) Crashed(walk func(f func(path string, data []byte))) {
	l.mu.Lock()
	defer l.mu.Unlock()
	files := make(map[string][]byte)
	walk(func(path string, data []byte) { files[path] = data })
	l.newest = make(map[string]int64)
	for name := range files {
		if _, version, _, ok := versionAt(name); ok {
			l.newest[path.Dir(name)] = max(l.newest[path.Dir(name)], version)
		}
	}
	read := func(path string) ([]byte, time.Duration) { return files[path], 0 }
	left := make(map[driver.Key]check.Step)
	for name := range files {
		s, ok, err := step(name, read)
		if err != nil {
			l.found = append(l.found, story.Bad("record", "after the crash at %v: %v", time.Duration(life.Now()), err))
		}
		if ok && s.Version > left[s.Key].Version {
			left[s.Key] = s
		}
	}
	c := crash{life.Now(), make(map[driver.Key]int64)}
	last := make(map[driver.Key]check.Step)
	for _, s := range l.steps {
		last[s.Key] = s
	}
	for key := range last {
		s := left[key]
		c.versions[key] = s.Version
		if s.Version != last[key].Version {
			s.Key, s.At, s.Restored = key, time.Duration(c.at), true
			l.steps = append(l.steps, s)
		}
	}
	l.crashes = append(l.crashes, c)
}

// audit checks every version, and that no crash took one that was reported.
func (e *episode) audit() (found []check.Violation, n int) {
	l := &e.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	found = l.found
	if l.ghosts > 0 {
		e.note("%d versions of second markers", l.ghosts)
	}
	keyOf := func(k driver.Key) string { return fmt.Sprintf("%d %s", k.Space, k.Name) }
	type write struct {
		key     string
		version int64
	}
	bits, who, killed := make(map[string]uint64), make(map[write]string), make(map[string]bool)
	for i, p := range e.workers {
		bits[p.ID] = 1 << i
		for _, ev := range p.Told() {
			switch ev.What {
			case story.Wrote:
				who[write{ev.Name, ev.Token}] = p.ID
				for _, c := range l.crashes {
					for key, version := range c.versions {
						if keyOf(key) == ev.Name && ev.At < c.at && ev.Token > version {
							found = append(found, story.Bad("durable", "version %d of %s was told to %s at %v, and after the crash at %v there is version %d",
								ev.Token, ev.Name, p.ID, time.Duration(ev.At), time.Duration(c.at), version))
						}
					}
				}
			case story.Beats:
				if p.Killed > 0 {
					killed[ev.Name] = true
				}
			}
		}
	}
	owners := make(map[string]uint64)
	steps := slices.Clone(l.steps)
	for i := range steps {
		s := &steps[i]
		if s.Writers = bits[who[write{keyOf(s.Key), s.Version}]]; s.Writers == 0 {
			s.Writers = ^uint64(0) // nobody was told that it won
		}
		rec, err := check.ReadSession(s.Value)
		if err == nil && s.Key.Space == driver.Sessions && rec.Beat > 0 && owners[s.Key.Name] == 0 {
			owners[s.Key.Name] = s.Writers
		}
	}
	owner := func(session string) uint64 {
		if owners[session] == 0 {
			return ^uint64(0) // it was killed, or cut off, before it had a session
		}
		return owners[session]
	}
	a := check.NewAudit(owner, e.leap)
	a.Gone = func(session string) bool { return killed[session] }
	return append(found, a.Check(steps)...), len(steps)
}

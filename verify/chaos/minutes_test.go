//go:build linux

package chaos

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/story"
)

var (
	minutes = flag.Float64("minutes", 0, "have TestMinutes run episodes for so long on each store, in random order")
	only    = flag.String("only", "", "faults whose name contains this, in TestMinutes")
	in      = flag.String("history", "", "write histories into this directory")
	every   = flag.Bool("every", false, "write all histories, not only of episodes with which something is wrong")
	tells   = flag.Bool("tell", false, "tell of progress as lines of JSON on standard output, and end soon when standard input ends")
)

// A group is some faults that need the same lane.
type group struct {
	name   string
	lane   func(t *testing.T) *lane
	faults []fault
}

// groupsOf are all that can happen on a store.
func groupsOf(t *testing.T, kind string) []group {
	clocks, versions := ofOwnClocks(), ofVersions(t, kind)
	more := slices.Concat(clocks, versions)
	k := servers.KindOf(kind)
	if len(clocks) > 0 && k.Server == nil { // where nobody can be cut off by itself
		more = slices.Concat(clocks[:len(clocks)-1], versions)
	}
	switch {
	case kind == "cassandra":
		return []group{{"nodes", newNodes, slices.Concat(ofNodes, moreOfNodes, ofWorkers[:3], more)}}
	case kind == "etcd":
		return []group{{"members", newMembers, slices.Concat(ofMembers, ofNodes, moreOfNodes, ofWorkers[:3], more)}}
	case k.Emulator != "":
		return []group{{"emulator", func(t *testing.T) *lane { return newEmulator(t, k) }, slices.Concat(ofEmulator, ofNetwork[1:], ofWorkers[:3], more)}}
	case k.Server == nil:
		faults := slices.Concat(ofWorkers[:3], more)
		if kind == "sqlite" {
			faults = slices.Concat(ofWorkers, more)
		}
		plain := func(*testing.T) *lane { return &lane{kind: kind} }
		return []group{
			{"workers", plain, faults},
			{"workers too", plain, faults},
			{"disk", func(t *testing.T) *lane { return &lane{kind: kind, disk: smallMount(t, "24m")} }, ofFiles},
		}
	}
	plain := func(t *testing.T) *lane { return newLane(t, kind, &servers.Options{}) }
	usual := slices.Concat(ofServer, ofNetwork, ofWorkers, more)
	all := []group{
		{"usual", plain, usual},
		{"usual too", plain, usual},
		{"clock", func(t *testing.T) *lane { return newLane(t, kind, &servers.Options{Faketime: true}) }, ofClock},
		{"disk", func(t *testing.T) *lane { return smallDisk(t, kind) }, ofDisk},
	}
	if kind == "postgres" {
		all = append(all, group{"pgbouncer", func(t *testing.T) *lane {
			l := plain(t)
			l.front = pooler(t, l.server)
			return l
		}, ofPooler})
	}
	return all
}

// TestMinutes is what go run ./verify chaos runs: episodes on each store of some for a
// time, of all kinds in random order. Without -minutes it does nothing.
func TestMinutes(t *testing.T) {
	if *minutes <= 0 {
		return
	}
	var stop atomic.Bool
	if *tells {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			stop.Store(true)
		}()
	}
	for kind := range strings.SplitSeq(*onStores, ",") {
		t.Run(kind, func(t *testing.T) { through(t, kind, &stop) })
		report(t)
	}
}

// through runs episodes on one store.
func through(t *testing.T, kind string, stop *atomic.Bool) {
	end := time.Now().Add(time.Duration(*minutes * float64(time.Minute)))
	t.Run("at once", func(t *testing.T) {
		for n, g := range groupsOf(t, kind) {
			faults := slices.DeleteFunc(slices.Clone(g.faults), func(f fault) bool { return !strings.Contains(f.name, *only) })
			if len(faults) == 0 {
				continue
			}
			t.Run(g.name, func(t *testing.T) {
				if servers.KindOf(kind).Emulator == "" { // which sets a variable for the whole process
					t.Parallel()
				}
				l := g.lane(t)
				rng := rand.New(rand.NewPCG(*seed, uint64(n)))
				var next []fault
				for round := 0; !stop.Load() && (time.Now().Before(end) || round == 0); round++ {
					if len(next) == 0 {
						next = slices.Clone(faults)
						rng.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
					}
					f := next[0]
					next = next[1:]
					telling(progress{Store: kind, Fault: f.name, Begins: true})
					r := unended
					t.Run(fmt.Sprintf("%s/%d", f.name, round), func(t *testing.T) {
						r = f.run(t, l, seedOf(*seed, kind, g.name, f.name, round))
					})
					p := progress{Store: kind, Fault: f.name, Holds: r.Holds, Histories: r.Histories}
					for _, v := range r.Found {
						p.Found = append(p.Found, v.String())
					}
					telling(p)
				}
			})
		}
	})
}

// progress is what is told of an episode, at its begin and at its end.
type progress struct {
	Store     string   `json:"store"`
	Fault     string   `json:"fault"`
	Begins    bool     `json:"begins,omitempty"`
	Holds     int      `json:"holds,omitempty"`
	Histories int      `json:"histories,omitempty"`
	Found     []string `json:"found,omitempty"`
	Files     []string `json:"files,omitempty"`
	Picture   string   `json:"picture,omitempty"`
}

var told sync.Mutex

func telling(p progress) {
	if !*tells {
		return
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	told.Lock()
	defer told.Unlock()
	fmt.Printf("\nprogress: %s\n", text)
}

// save writes the history of an episode, and draws what was wrong with it.
func (e *episode) save(found []check.Violation) {
	if e.history == nil || len(found) == 0 && !(*every && *in != "") {
		return
	}
	dir := *in
	if dir == "" {
		dir = os.TempDir()
	}
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune("/ ,'", r) {
			return '-'
		}
		return r
	}, strings.TrimPrefix(e.t.Name(), "TestMinutes/"))
	file, err := os.CreateTemp(dir, name+"-*.jsonl")
	if err != nil {
		e.t.Log(err)
		return
	}
	p := progress{Store: e.lane.kind, Files: []string{file.Name()}}
	if err := e.history.Write(file, found); err != nil {
		e.t.Log(err)
	}
	must(e.t, file.Close())
	e.t.Logf("its history is in %s; to judge it again: go run ./verify chaos --judge %s", file.Name(), file.Name())
	if picture := e.history.Picture(found); picture != nil && len(found) > 0 {
		p.Picture = picture.Text()
		p.Files = append(p.Files, draw(e.t, picture, strings.TrimSuffix(file.Name(), filepath.Ext(file.Name()))+".svg"))
		e.t.Logf("%s is a picture of it:\n%s", p.Files[1], p.Picture)
	}
	if len(found) > 0 {
		telling(p)
	}
}

// draw writes a picture to a file and returns its name.
func draw(t testing.TB, p *story.Picture, path string) string {
	file, err := os.Create(path)
	must(t, err)
	must(t, p.SVG(file))
	must(t, file.Close())
	return path
}

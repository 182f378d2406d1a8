//go:build linux

package chaos

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/ledger"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/stores"
	"github.com/holdfast-lock/holdfast/verify/story"
)

var (
	histories = flag.Int("histories", 0, "of a crowd, on each store; 0: a few, or with -full as many as make ten thousand of all")
	onStores  = flag.String("stores", "", "those of a crowd; all by default")
)

// laneOf starts what a store needs, or skips.
func laneOf(t *testing.T, kind string) *lane {
	switch k := servers.KindOf(kind); {
	case kind == "cassandra":
		return newNodes(t)
	case kind == "etcd":
		return newMembers(t)
	case k.Emulator != "":
		return newEmulator(t, k)
	case k.Server == nil:
		return &lane{kind: kind}
	}
	return newLane(t, kind, &servers.Options{})
}

// newEmulator starts one, or skips.
func newEmulator(t *testing.T, k servers.Kind) *lane {
	l := &lane{kind: k.Name, server: k.Server(t, &servers.Options{})}
	l.ttl = ttlOn(t, l.database(t, t.TempDir()))
	t.Logf("figure: %s; TTL %v", l.server.Name, l.ttl)
	return l
}

// ofEmulator are what can happen to an emulator, which keeps everything in memory, and to
// its answers.
var ofEmulator = []fault{
	{"server stalled", ofServer[3].do, nil},
	{"server stalled now and then", func(e *episode) {
		for range 4 {
			must(e.t, e.lane.server.Freeze())
			e.sleep(e.part(0.05, 0.4))
			must(e.t, e.lane.server.Thaw())
			e.sleep(e.part(0.02, 0.2))
		}
	}, nil},
	{"answers thrown away, with their connections", func(e *episode) {
		for end := time.Now().Add(e.part(0.8, 1.4)); time.Now().Before(end); e.sleep(e.between(20*time.Millisecond, 150*time.Millisecond)) {
			e.loseAnswer(e.anyone())
		}
		e.keepAnswers()
	}, nil},
}

// TestEmulators goes through what can happen to emulators and to those who use them.
func TestEmulators(t *testing.T) {
	faults := slices.Concat(ofEmulator, ofWorkers[:3])
	if *full {
		faults = slices.Concat(ofEmulator, ofNetwork[1:], ofWorkers[:3])
	}
	for _, k := range servers.Kinds {
		if k.Emulator != "" {
			t.Run(k.Name, func(t *testing.T) { rounds(t, newEmulator(t, k), number(1, 6), faults) })
		}
	}
	report(t)
}

// TestFiles goes through what can happen to a SQLite or a directory on a local disk,
// and to those who use it. File servers that lie are those of verify/hostile.
func TestFiles(t *testing.T) {
	t.Run("on", func(t *testing.T) {
		for _, kind := range []string{"sqlite", "directory"} {
			for _, g := range groupsOf(t, kind) {
				if !*full && g.name == "workers too" {
					continue
				}
				t.Run(kind+" "+g.name, func(t *testing.T) {
					t.Parallel()
					rounds(t, g.lane(t), number(1, 12), g.faults)
				})
			}
		}
	})
	report(t)
}

// TestCrowd has many sessions use many names for a short time: each name is a
// history short enough to be judged by search, as that of a lock and that of what
// the lock guards.
func TestCrowd(t *testing.T) {
	for _, k := range stores.Kinds {
		if *onStores != "" && !slices.Contains(strings.Split(*onStores, ","), k.Name) {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			l := laneOf(t, k.Name)
			want := *histories
			if want == 0 {
				want = number(20, k.Crowd)
			}
			gather(t, l, want)
		})
	}
}

// gather makes so many histories and enters them in the ledger.
func gather(t *testing.T, l *lane, want int) {
	began, searches, undecided := time.Now(), check.Searches.Load(), check.Undecided.Load()
	line := ledger.Begin("histories", l.kind, "crowd: exclusive, shared, slots, sets; fenced writes and reads; lost answers, resets, stops, kills")
	var sum entry
	for batch := 0; sum.Histories < want; batch++ {
		steps := min(60, max(10, (want-sum.Histories+1)/2+2))
		if l.ttl != 0 {
			steps = min(steps, 40)
		}
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			r := crowd(t, l, seedOf(*seed, l.kind, "crowd", batch), steps, fmt.Sprintf("c%d-", batch))
			r.Fault = l.kind + ": crowd"
			sum.Episodes, sum.Histories = sum.Episodes+1, sum.Histories+r.Histories
			sum.Holds, sum.Losses, sum.Writes, sum.Cuts = sum.Holds+r.Holds, sum.Losses+r.Losses, sum.Writes+r.Writes, sum.Cuts+r.Cuts
			sum.Found = append(sum.Found, r.Found...)
		})
		if t.Failed() && sum.Histories == 0 {
			break
		}
	}
	must(t, line.End(sum.Histories, len(sum.Found)))
	t.Logf("figure: %s: %d histories of one name in %v, %d grants, %d lost, replies thrown away %d; %d searches, undecided %d; violations %d",
		l.kind, sum.Histories, time.Since(began).Round(time.Second), sum.Holds, sum.Losses, sum.Cuts,
		check.Searches.Load()-searches, check.Undecided.Load()-undecided, len(sum.Found))
}

// crowd is one episode: sessions in three processes, of which some are stopped,
// one may be killed, and answers are lost.
func crowd(t *testing.T, l *lane, seed uint64, steps int, tag string) entry {
	slow, err := life.Slowness()
	must(t, err)
	e := newEpisode(t, l, seed)
	e.counter = ""
	e.note("%s: a crowd, seed %d", l.kind, seed)
	var names []string
	for step := range steps {
		names = append(names, story.Pair(tag, step)...)
	}
	must(t, e.store.Registers.Make(t.Context(), names...))
	clients := []int{2, 2, 1}
	flags := []string{"-steps", fmt.Sprint(steps), "-sessions", "5", "-meet", t.TempDir(), "-tag", tag, "-lanes", "12", "-long", "0.003"}
	if e.store.Native {
		flags = append(flags, "-native")
	}
	for i, n := range clients {
		e.start(fmt.Sprint(i%2), append(flags, "-clients", fmt.Sprint(n))...)
	}
	e.await("the first locks are granted", func() bool { return e.each(story.Granted, 0) })
	from := life.Now()
	e.disturb()
	e.faults = append(e.faults, [2]int64{from, life.Now()})
	r := e.verdict(life.Now(), slow)
	e.show(r)
	return r
}

// disturb does this and that to a crowd until it ends.
func (e *episode) disturb() {
	over := func() bool { return !slices.ContainsFunc(e.workers, func(p *process) bool { return !p.Ended() }) }
	kill, stop := e.rng.IntN(4) == 0, e.rng.IntN(2) == 0
	quiet := e.rng.IntN(6) == 0
	begin := 0
	if e.lane.nodes != nil {
		for n := range servers.Nodes {
			begin -= e.lane.nodes.Clients(n).Cuts()
		}
	}
	for end := time.Now().Add(5 * time.Minute); !over(); e.sleep(e.between(50*time.Millisecond, 400*time.Millisecond)) {
		if time.Now().After(end) {
			break // what waits for ever is found by the judge
		}
		if quiet {
			continue
		}
		switch p := e.anyone(); e.rng.IntN(8) {
		case 0:
			if kill {
				e.kill(p)
				kill = false
			}
		case 1, 2:
			if stop {
				e.stop(p, e.part(0.4, 1.5))
				stop = e.rng.IntN(2) == 0
			}
		case 3:
			if p.proxy != nil {
				p.proxy.Cut()
			} else if e.lane.nodes != nil {
				e.lane.nodes.Clients(e.rng.IntN(servers.Nodes)).Cut()
			}
		default:
			e.loseAnswer(p)
		}
	}
	e.keepAnswers()
	if e.lane.nodes != nil {
		e.cuts += begin
	}
}

// loseAnswer throws away the next answer that tells what became of a write.
func (e *episode) loseAnswer(p *process) {
	switch {
	case e.lane.nodes != nil:
		e.lane.nodes.Clients(e.rng.IntN(servers.Nodes)).CutOnReply(e.lane.nodes.tells, 1)
	case e.lane.of().Emulator != "":
		p.proxy.CutOnReply(func(reply []byte) bool { return len(reply) > 60 }, 1)
	case p.proxy != nil:
		p.proxy.CutAfterCommit(1)
	}
}

// keepAnswers ends that, and counts them.
func (e *episode) keepAnswers() {
	e.cuts = 0
	if e.lane.nodes != nil {
		for n := range servers.Nodes {
			e.lane.nodes.Clients(n).CutOnReply(nil, 0)
			e.cuts += e.lane.nodes.Clients(n).Cuts()
		}
	}
	for _, p := range e.workers {
		if p.proxy != nil {
			p.proxy.CutOnReply(nil, 0)
			p.proxy.CutAfterCommit(0)
			e.cuts += p.proxy.Cuts()
		}
	}
}

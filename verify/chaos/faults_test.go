//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// A fault is what happens to an episode. It returns when it has ended.
type fault struct {
	name string
	do   func(e *episode)
	more []string // flags of its workers
}

// ofServer are what can happen to a server.
var ofServer = []fault{
	{"server killed", func(e *episode) {
		must(e.t, e.lane.server.Kill())
		e.note("server killed")
		e.sleep(e.part(0, 1.6))
		must(e.t, e.lane.server.Restart(e.t.Context()))
	}, nil},
	{"server restarted", func(e *episode) {
		must(e.t, e.lane.server.Restart(e.t.Context()))
	}, nil},
	{"server killed, a holder too", func(e *episode) {
		p := e.who(false)
		must(e.t, e.lane.server.Kill())
		e.note("server killed")
		e.kill(p)
		e.sleep(e.part(0, 0.8))
		must(e.t, e.lane.server.Restart(e.t.Context()))
		e.start("0")
	}, nil},
	{"server stalled", func(e *episode) {
		must(e.t, e.lane.server.Freeze())
		e.note("server stopped")
		e.sleep(e.part(0.3, 2))
		must(e.t, e.lane.server.Thaw())
	}, nil},
}

// ofNetwork are what can happen between a worker and its server.
var ofNetwork = []fault{
	{"replies of commits thrown away", func(e *episode) {
		for end := time.Now().Add(e.part(1.5, 2.5)); time.Now().Before(end); e.sleep(e.between(20*time.Millisecond, 120*time.Millisecond)) {
			e.anyone().proxy.CutAfterCommit(1)
		}
		for _, p := range e.workers {
			p.proxy.CutAfterCommit(0)
			e.cuts += p.proxy.Cuts()
		}
	}, nil},
	{"one cut off, nothing arrives either way", func(e *episode) { e.cutOff(true, true, e.who(false)) }, nil},
	{"one cut off, nothing arrives at the server", func(e *episode) { e.cutOff(true, false, e.who(false)) }, nil},
	{"one cut off, nothing arrives from the server", func(e *episode) { e.cutOff(false, true, e.who(e.rng.IntN(2) == 0)) }, nil},
	{"all cut off", func(e *episode) {
		way := e.rng.IntN(3)
		e.cutOff(way != 1, way != 2, e.workers...)
	}, nil},
	{"connections reset", func(e *episode) {
		for range 4 {
			for _, p := range e.workers {
				if e.rng.IntN(2) == 0 {
					p.proxy.Cut()
				}
			}
			e.sleep(e.part(0.05, 0.3))
		}
		d := e.part(0.2, 1.5)
		e.note("connections refused for %v", d)
		for _, p := range e.workers {
			p.proxy.Refuse(true)
		}
		e.sleep(d)
		for _, p := range e.workers {
			p.proxy.Refuse(false)
		}
	}, nil},
	{"slow network", func(e *episode) {
		for _, p := range e.workers {
			p.proxy.Delay(e.between(0, 120*time.Millisecond))
		}
		e.sleep(e.part(1.5, 2.5))
		for _, p := range e.workers {
			p.proxy.Delay(0)
		}
	}, nil},
}

// cutOff loses what goes to the server or comes from it, for a while.
func (e *episode) cutOff(intoServer, intoClient bool, some ...*process) {
	d := e.part(0.4, 2.3)
	for _, p := range some {
		e.note("cut off for %v: %s", d, p.ID)
		p.proxy.Blackhole(intoServer, intoClient)
	}
	e.sleep(d)
	for _, p := range some {
		p.proxy.Blackhole(false, false)
	}
}

// ofWorkers are what can happen to a process.
var ofWorkers = []fault{
	{"holders killed", func(e *episode) {
		for range 3 {
			e.kill(e.who(false))
			e.start(fmt.Sprint(e.rng.IntN(2)))
			e.sleep(e.part(0.1, 0.5))
		}
	}, nil},
	{"waiters killed", func(e *episode) {
		for range 3 {
			e.kill(e.who(true))
			e.start(fmt.Sprint(e.rng.IntN(2)))
			e.sleep(e.part(0.1, 0.5))
		}
	}, nil},
	{"a holder stopped", func(e *episode) { e.stop(e.who(false), e.part(0.8, 2.3)) }, nil},
	{"a holder stopped in its transaction", stopInTransaction, nil},
}

// stopInTransaction has a holder stop between the fence and the commit.
func stopInTransaction(e *episode) {
	from := life.Now()
	p := e.start("0", "-lanes", "1", "-freeze", "transaction")
	e.await("the holder stops itself", func() bool { return p.State() == 'T' })
	e.note("%s stands still", p.ID)
	e.sleep(e.part(0.8, 2.5))
	e.resume(p, from)
}

// ofClock are what can happen to the server's clock. Nobody is cut off
// meanwhile: a leap forward is what the rule of ages does not stand then (A4).
var ofClock = []fault{
	{"clock an hour ahead", func(e *episode) { e.clock(time.Hour) }, nil},
	{"clock an hour back", func(e *episode) { e.clock(-time.Hour) }, nil},
	{"clock a TTL ahead", func(e *episode) { e.clock(e.part(0.7, 1.5)) }, nil},
	{"clock a TTL back", func(e *episode) { e.clock(-e.part(0.7, 1.5)) }, nil},
}

func (e *episode) clock(by time.Duration) {
	e.leap = 2 * time.Hour
	must(e.t, e.lane.server.SetClock(by))
	e.note("clock set to %+v", by)
	e.sleep(e.part(1, 2))
	must(e.t, e.lane.server.SetClock(0))
	e.note("clock set back")
	e.sleep(e.part(0.5, 1))
}

var ofDisk = []fault{{"disk full", diskFull, nil}}

var ofPooler = []fault{
	{"pooler restarted", func(e *episode) {
		for range 2 {
			must(e.t, e.lane.front.Kill())
			e.note("pooler killed")
			e.sleep(e.part(0, 0.8))
			must(e.t, e.lane.front.Restart(e.t.Context()))
			e.sleep(e.part(0.2, 0.8))
		}
	}, nil},
	{"server killed behind a pooler", ofServer[0].do, nil},
}

// unended is an episode that was broken off.
var unended = entry{Found: []check.Violation{story.Bad("P6", "the episode did not come to its end")}}

// run is one episode.
func (f fault) run(t *testing.T, l *lane, seed uint64) (r entry) {
	r = unended
	defer func() {
		r.Fault = l.kind + ": " + f.name
		enter(r)
	}()
	slow, err := life.Slowness()
	must(t, err)
	e := newEpisode(t, l, seed)
	e.note("%s: %s, seed %d", l.kind, f.name, seed)
	e.crowd(f.more...)
	e.sleep(e.part(0.1, 0.6))
	from := life.Now()
	f.do(e)
	e.faults = append(e.faults, [2]int64{from, life.Now()})
	return e.finish(slow)
}

// rounds runs each fault so often in a lane.
func rounds(t *testing.T, l *lane, n int, faults ...[]fault) {
	for round := range n {
		for _, fs := range faults {
			for _, f := range fs {
				t.Run(fmt.Sprintf("%s/%d", f.name, round), func(t *testing.T) {
					f.run(t, l, seedOf(*seed, l.kind, f.name, round))
				})
			}
		}
	}
}

// TestFaults goes through all faults on both servers.
func TestFaults(t *testing.T) {
	t.Run("on", func(t *testing.T) {
		for _, kind := range []string{"postgres", "mysql"} {
			if own {
				t.Run(kind, func(t *testing.T) {
					t.Parallel()
					rounds(t, newLane(t, kind, &servers.Options{}), number(1, 4), ofPackets)
				})
				continue
			}
			var more []fault
			if *full {
				more = slices.Concat(ofOwnClocks(), ofVersions(t, kind))
			}
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				rounds(t, newLane(t, kind, &servers.Options{}), number(1, 6), ofServer, ofNetwork, ofWorkers, more)
			})
			t.Run(kind+" clock", func(t *testing.T) {
				t.Parallel()
				rounds(t, newLane(t, kind, &servers.Options{Faketime: true}), number(1, 6), ofClock)
			})
			t.Run(kind+" disk", func(t *testing.T) {
				t.Parallel()
				rounds(t, smallDisk(t, kind), number(1, 5), ofDisk)
			})
		}
		if own {
			return
		}
		t.Run("pgbouncer", func(t *testing.T) {
			t.Parallel()
			l := newLane(t, "postgres", &servers.Options{})
			l.front = pooler(t, l.server)
			rounds(t, l, number(1, 5), ofPooler)
		})
		t.Run("packets", func(t *testing.T) {
			t.Parallel()
			inNamespace(t)
		})
	})
	report(t)
}

// newLane starts a server of its own, or skips.
func newLane(t *testing.T, kind string, opts *servers.Options) *lane {
	t.Helper()
	s := servers.KindOf(kind).Server(t, opts)
	if !s.Own {
		t.Skipf("SKIPPED: %s was pointed at, and is not ours to break", s.Name)
	}
	must(t, account(t.Context(), s))
	return &lane{kind: kind, server: s}
}

// smallMount is the directory of a disk of that size.
func smallMount(t *testing.T, size string) string {
	t.Helper()
	const prefix = "chaos-disk-"
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*")) // of tests that were killed
	for _, dir := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		if _, err := os.Stat("/proc/" + pid); err != nil {
			syscall.Unmount(dir, syscall.MNT_DETACH)
			os.Remove(dir)
		}
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid()))
	must(t, err)
	t.Cleanup(func() { os.Remove(dir) })
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size+",mode=0755", "holdfast-test", dir).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: a small disk cannot be mounted here, so a full one is not tested: %v: %s", err, out)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// smallDisk is a server whose data are on a file system of its own.
func smallDisk(t *testing.T, kind string) *lane {
	t.Helper()
	dir := smallMount(t, "320m")
	opts := &servers.Options{Dir: dir}
	if kind == "postgres" {
		opts.Settings = []string{"max_wal_size=48MB", "min_wal_size=32MB"}
	}
	l := newLane(t, kind, opts)
	l.disk = dir
	return l
}

// diskFull fills the disk, so that nothing can be written any more, and frees it.
func diskFull(e *episode) {
	pad := e.fill()
	for end := time.Now().Add(e.part(0.8, 2.2)); time.Now().Before(end); {
		// What is allocated already fills up, too.
		ctx, cancel := context.WithTimeout(e.t.Context(), time.Until(end))
		_, err := e.store.DB.ExecContext(ctx, pad)
		cancel()
		if err != nil {
			e.note("%.200v", err)
			e.sleep(50 * time.Millisecond)
		}
	}
	e.empty()
	// A server that did not survive it is started again, as whoever runs it would.
	ctx, cancel := context.WithTimeout(e.t.Context(), 2*time.Second)
	err := e.store.DB.PingContext(ctx)
	cancel()
	if err != nil {
		e.note("server started again: %.200v", err)
		must(e.t, e.lane.server.Kill())
		must(e.t, e.lane.server.Restart(e.t.Context()))
	}
	_, err = e.store.DB.ExecContext(e.t.Context(), `drop table pad`)
	must(e.t, err)
}

// fill leaves no room, and returns a statement that uses up what the server has
// set aside.
func (e *episode) fill() (pad string) {
	_, err := e.store.DB.ExecContext(e.t.Context(), `create table pad (n int, x varchar(5000))`)
	must(e.t, err)
	e.fillUp()
	switch {
	case e.lane.kind == "mysql":
		return `insert into pad select seq, repeat(md5(seq), 100) from seq_1_to_1000`
	case e.rng.IntN(3) == 0:
		return `insert into pad select n, repeat(md5(n::text), 100) from generate_series(1, 1000) n`
	}
	return `select length(pg_logical_emit_message(false, 'pad', repeat('x', 1000000))::text)` // only log
}

// fillUp leaves no room on a disk.
func (e *episode) fillUp() {
	file, err := os.Create(filepath.Join(e.lane.disk, "filler"))
	must(e.t, err)
	defer file.Close()
	for size := 1 << 20; size > 0; {
		if _, err = file.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		e.t.Fatal(err)
	}
	e.note("disk full")
}

// ofFiles are what can happen to a disk on which a SQLite or a directory is.
var ofFiles = []fault{
	{"disk full", func(e *episode) {
		e.fillUp()
		e.sleep(e.part(0.8, 2.2))
		e.empty()
	}, nil},
	{"disk full now and then", func(e *episode) {
		for range 4 {
			e.fillUp()
			e.sleep(e.part(0.05, 0.5))
			e.empty()
			e.sleep(e.part(0.02, 0.3))
		}
	}, nil},
	{"disk full, holders killed", func(e *episode) {
		e.fillUp()
		e.kill(e.who(false))
		e.sleep(e.part(0.1, 1))
		e.empty()
		e.start("0")
	}, nil},
}

// empty frees the disk.
func (e *episode) empty() {
	must(e.t, os.Remove(filepath.Join(e.lane.disk, "filler")))
	e.note("disk freed")
}

// number is n in a normal run and more in a full one.
func number(n, more int) int {
	if *full {
		return more
	}
	return n
}

// pooler is a PgBouncer that asks again soon for a server that has gone; else it
// waits for 15 seconds.
func pooler(t *testing.T, pg *servers.Server) *servers.Server {
	t.Helper()
	s, err := servers.StartPgBouncer(t.Context(), pg, &servers.Options{Settings: []string{"server_login_retry=1"}})
	if errors.Is(err, servers.ErrMissing) {
		t.Skipf("SKIPPED: %v", err)
	}
	must(t, err)
	t.Cleanup(func() { s.Stop() })
	return s
}

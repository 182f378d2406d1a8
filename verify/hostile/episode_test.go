//go:build linux

package hostile

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// names are the locks of an episode, and how they are asked for.
const names = "one/x,both/s,slots/2"

// patience is how long an episode waits for what has to happen.
const patience = 2 * time.Minute

// An episode is a server, hosts, workers on them, faults, and an end.
type episode struct {
	t       *testing.T
	rng     *rand.Rand
	dir     string
	server  *Server
	hosts   []*Mount
	judge   *Mount // nothing is wrong with it
	store   *directory.Store
	client  *holdfast.Client // only looks
	in      string           // the store's directory, on each host
	usual   Faults           // what is never repaired
	ttl     time.Duration
	leap    time.Duration
	pauses  bool // processes were stopped
	workers []*worker
	ledger  ledger

	mu    sync.Mutex
	notes []note
}

type worker struct {
	*story.Process
	host int
}

type note struct {
	at   int64
	text string
}

func (e *episode) note(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, note{life.Now(), fmt.Sprintf(format, args...)})
}

// newEpisode makes a server, hosts and an empty store.
func newEpisode(t *testing.T, seed uint64) *episode {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { checkEmpty(t, dir) })
	e := &episode{t: t, rng: rand.New(rand.NewPCG(seed, 1)), dir: dir, ttl: 1300 * time.Millisecond}
	if e.rng.IntN(3) == 0 {
		e.in = "locks"
	}
	names := Durable // else a handle of that directory is lost in a crash, and the store with it
	if e.in == "" {
		names = Names(e.rng.IntN(3))
	}
	e.server = NewServer(seed, names)
	t.Cleanup(func() { must(t, e.server.Close()) })
	e.judge = host(t, e.server)
	if e.in != "" {
		must(t, os.Mkdir(filepath.Join(e.judge.Path, e.in), 0o700))
		must(t, fsync(e.judge.Path))
	}
	must(t, directory.Migrate(filepath.Join(e.judge.Path, e.in)))
	e.server.Watch(&e.ledger)
	for i := range 2 + e.rng.IntN(2) {
		e.hosts = append(e.hosts, host(t, e.server))
		must(t, os.Mkdir(e.run(i), 0o700))
	}
	must(t, os.Mkdir(e.counters(), 0o700))
	e.usual = Faults{Stale: time.Duration(e.rng.IntN(4)) * 100 * time.Millisecond, Views: e.rng.IntN(3) == 0}
	e.all(e.usual)
	e.client = e.open(e.ttl)
	return e
}

// open is a client on the host with which nothing is wrong.
func (e *episode) open(ttl time.Duration) *holdfast.Client {
	e.t.Helper()
	if e.store == nil {
		var err error
		e.store, err = directory.New(filepath.Join(e.judge.Path, e.in), directory.FileTimes)
		must(e.t, err)
		e.t.Cleanup(func() { e.store.Close() })
	}
	c, err := holdfast.New(e.store, &holdfast.Options{TTL: ttl, RuntimeDir: os.DevNull})
	must(e.t, err)
	e.t.Cleanup(func() { c.Close() })
	return c
}

// run is the directory in which processes of a host prove each other's death.
func (e *episode) run(host int) string { return filepath.Join(e.dir, fmt.Sprint("run-", host)) }

func (e *episode) counters() string { return filepath.Join(e.dir, "counters") }

func (e *episode) all(f Faults) {
	f.Stale, f.Views = max(f.Stale, e.usual.Stale), f.Views || e.usual.Views
	for _, m := range e.hosts {
		m.Set(f)
	}
}

const mark = "HOSTILE_EPISODE="

// start starts a worker on some host.
func (e *episode) start() *worker {
	e.t.Helper()
	return e.startOn(e.rng.IntN(len(e.hosts)))
}

func (e *episode) startOn(host int, flags ...string) *worker {
	e.t.Helper()
	w := &worker{host: host}
	id := fmt.Sprintf("w%d", len(e.workers))
	self, err := os.Executable()
	must(e.t, err)
	args := []string{"-store", "dir:" + filepath.Join(e.hosts[w.host].Path, e.in), "-id", id, "-ttl", e.ttl.String(), "-names", names,
		"-seed", fmt.Sprint(e.rng.Uint64()), "-fences=false", "-writes", "-counter", e.counters(), "-think", "30ms"}
	cmd := exec.Command(self, append(args, flags...)...)
	cmd.Dir = e.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir, "USER=ana", mark + e.dir, role + "=worker", "XDG_RUNTIME_DIR=" + e.run(w.host)}
	w.Process, err = story.Start(cmd, id, e.ttl)
	must(e.t, err)
	e.t.Cleanup(func() {
		e.hosts[w.host].CutOff(Connected)
		w.Destroy()
	})
	e.workers = append(e.workers, w)
	e.note("%s is process %d on host %d", id, w.PID, w.host)
	return w
}

// checkEmpty is that no process of an episode is left.
func checkEmpty(t *testing.T, dir string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && strings.Contains(string(env), mark+dir+"\x00") {
			t.Errorf("left over: process %s", e.Name())
		}
	}
}

// crowd starts a few workers and returns when each has held a lock.
func (e *episode) crowd() {
	e.t.Helper()
	for range 3 + e.rng.IntN(3) {
		e.start()
	}
	e.await("each worker has held a lock", func() bool { return e.each(story.Granted, 0) })
}

// each says whether every worker that was not killed told of something after an
// instant.
func (e *episode) each(what string, after int64) bool {
	for _, w := range e.workers {
		if w.Killed == 0 && !w.Has(what, after) {
			return false
		}
	}
	return true
}

// await is until ok, or the end of the episode: what was awaited is missing.
func (e *episode) await(what string, ok func() bool) {
	e.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			e.t.Errorf("not within %v: %s", patience, what)
			e.dump()
			e.t.FailNow()
		}
	}
}

// between is a random time.
func (e *episode) between(least, most time.Duration) time.Duration {
	return least + time.Duration(e.rng.Int64N(int64(most-least)+1))
}

// part is about that part of the TTL.
func (e *episode) part(least, most float64) time.Duration {
	return e.between(time.Duration(least*float64(e.ttl)), time.Duration(most*float64(e.ttl)))
}

func (e *episode) sleep(d time.Duration) { time.Sleep(d) }

// who is a worker that holds or waits for a lock, or any that lives.
func (e *episode) who(waits bool) *worker {
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Second)
	defer cancel()
	var live []*worker
	for _, w := range e.workers {
		if w.Killed == 0 {
			live = append(live, w)
		}
	}
	for _, i := range e.rng.Perm(3) {
		name, _, _ := strings.Cut(strings.Split(names, ",")[i], "/")
		info, err := e.client.Show(ctx, name)
		if err != nil {
			break
		}
		claims := info.Holders
		if waits {
			claims = info.Waiters
		}
		for _, c := range claims {
			for _, w := range live {
				if w.PID == c.Owner.PID {
					return w
				}
			}
		}
	}
	return live[e.rng.IntN(len(live))]
}

// heal ends all faults but those that are usual, and what was to come later.
func (e *episode) heal() {
	for _, m := range e.hosts {
		m.CutOff(Connected)
	}
	e.all(Faults{})
	e.server.Fill(false)
	e.server.Settle()
}

// A result is what an episode has come to.
type result struct {
	plan                   string
	holds, losses, counted int
	steps, crashes         int
	found                  []check.Violation
	gap, slow              time.Duration
	faults                 map[string]int
}

// finish demands, after the faults have ended, that everything goes on, ends
// and leaves nothing, and judges what has happened.
func (e *episode) finish(slow func() time.Duration) (r result) {
	e.t.Helper()
	r = e.conclude(slow)
	for i, v := range r.found {
		if i < 10 {
			e.t.Error(v)
		}
	}
	if e.t.Failed() || *keep {
		e.dump()
	}
	if e.t.Failed() {
		e.t.Logf("the same plan again: go test ./verify/hostile -v -run '^%s$' -args -full=%v -seed %d", strings.ReplaceAll(e.t.Name(), "/", "$/^"), *full, *seed)
	}
	return r
}

func (e *episode) conclude(slow func() time.Duration) (r result) {
	e.t.Helper()
	e.heal()
	healed := life.Now()
	e.note("healed")
	e.await("each worker asks and is granted a lock after the faults have ended", func() bool {
		return e.each(story.Granted, healed) && e.each(story.Asks, healed)
	})
	e.sleep(e.ttl / 2)
	for _, w := range e.workers {
		w.End()
	}
	e.note("told to end")
	e.await("every worker ends", func() bool {
		return !slices.ContainsFunc(e.workers, func(w *worker) bool { return !w.Ended() })
	})
	h := &story.History{Healed: healed, Rows: make(map[string]bool), Slow: slow()}
	for _, w := range e.workers {
		h.Stories = append(h.Stories, &w.Story)
		if text := w.Said(); text != "" {
			r.found = append(r.found, story.Bad("worker", "%s says: %s", w.ID, text))
		}
	}
	r.slow = h.Slow
	r.found = append(r.found, h.Judge()...)
	r.found = append(r.found, e.fresh(h.Slow)...)
	r.found = append(r.found, e.residue()...)
	var found []check.Violation
	if found, r.counted = h.Counters(); !e.pauses {
		r.found = append(r.found, found...)
	}
	found, r.steps = e.audit()
	r.found, r.crashes = append(r.found, found...), len(e.ledger.crashes)
	var where string
	if r.gap, where = h.Gap(); r.gap > e.room(h.Slow) {
		r.found = append(r.found, story.Bad("P6", "%s was free for %v while somebody waited; TTL %v, slowness of the machine %v", where, r.gap, e.ttl, h.Slow))
	}
	for _, o := range h.Holds() {
		r.holds++
		if o.Lost() {
			r.losses++
		}
	}
	r.faults = make(map[string]int)
	for _, m := range e.hosts {
		for what, n := range m.Counts() {
			r.faults[what] += n
		}
	}
	return r
}

// room is how long it may take until the dead are known to be dead and a name is
// taken: every call asks the file server a dozen times, and waits for a processor.
func (e *episode) room(slow time.Duration) time.Duration {
	return 2*e.ttl + 3*time.Second + 2*e.usual.Stale + 8*slow
}

// fresh demands that a new client gets every name as soon as the dead can be
// known to be dead.
func (e *episode) fresh(slow time.Duration) (found []check.Violation) {
	c := e.open(5 * e.ttl) // on a busy machine a call may take a part of a TTL
	began := time.Now()
	for pair := range strings.SplitSeq(names, ",") {
		name, _, _ := strings.Cut(pair, "/")
		ctx, cancel := context.WithTimeout(e.t.Context(), patience)
		lock, err := c.Acquire(ctx, name)
		cancel()
		if err != nil {
			found = append(found, story.Bad("P6", "%q is blocked: %v", name, err))
			continue
		}
		must(e.t, lock.Release(e.t.Context()))
	}
	if took := time.Since(began); took > e.room(slow) {
		found = append(found, story.Bad("P6", "a new client had all names only after %v; TTL %v, slowness of the machine %v", took, e.ttl, slow))
	}
	if err := c.Close(); err != nil {
		found = append(found, story.Bad("P6", "a new client does not close: %v", err))
	}
	return found
}

// residue demands that all locks and sessions go.
func (e *episode) residue() (found []check.Violation) {
	c := e.open(5 * e.ttl)
	ctx := e.t.Context()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		_, err := c.Sweep(ctx)
		found = nil
		if err != nil {
			found = append(found, story.Bad("C7", "sweep: %v", err))
		}
		for _, space := range []driver.Space{driver.Names, driver.Sessions} {
			keys, err := e.store.Keys(ctx, space, "", 1000)
			must(e.t, err)
			for _, name := range keys {
				recs, err := e.store.Load(ctx, []driver.Key{{Space: space, Name: name}}, driver.Fresh)
				must(e.t, err)
				value := string(recs[0].Value)
				sess, err := check.ReadSession(value)
				switch {
				case value == "":
				case space == driver.Sessions && err == nil && sess.Dead != 0:
				case space == driver.Names && !strings.Contains(value, "session"):
				default:
					found = append(found, story.Bad("C7", "left is %v %s: %s", space, name, value))
				}
			}
		}
		if len(found) == 0 || time.Now().After(end) {
			return found
		}
	}
}

// dump writes down what has happened.
func (e *episode) dump() {
	lines := slices.Clone(e.notes)
	for _, w := range e.workers {
		for _, ev := range w.Told() {
			lines = append(lines, note{ev.At, fmt.Sprintf("%s %s %d %s/%d token %d sent %v %s", w.ID, ev.What, ev.ID, ev.Name, ev.Slots, ev.Token, time.Duration(ev.Sent), ev.Text)})
		}
		if w.Ended() && w.Said() != "" {
			lines = append(lines, note{life.Now(), w.ID + " said: " + w.Said()})
		}
	}
	e.ledger.mu.Lock()
	for _, s := range e.ledger.steps {
		lines = append(lines, note{int64(s.At), fmt.Sprintf("step %v %s version %d restored %v: %s", s.Key.Space, s.Key.Name, s.Version, s.Restored, s.Value)})
	}
	e.ledger.mu.Unlock()
	e.server.Walk(func(path string, data []byte) {
		lines = append(lines, note{life.Now(), fmt.Sprintf("left: %s: %.300q", path, data)})
	})
	slices.SortStableFunc(lines, func(a, b note) int { return cmp.Compare(a.at, b.at) })
	file, err := os.CreateTemp("", "hostile-*.log")
	if err != nil {
		e.t.Log(err)
		return
	}
	defer file.Close()
	for _, l := range lines {
		fmt.Fprintf(file, "%v %s\n", time.Duration(l.at), l.text)
	}
	e.t.Logf("all that happened is in %s", file.Name())
}

// seedOf is the seed of an episode.
func seedOf(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, parts...)
	return h.Sum64()
}

// results are those of all episodes.
type results struct {
	mu  sync.Mutex
	all []result
}

func (rs *results) add(r result) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.all = append(rs.all, r)
}

func (rs *results) report(t *testing.T) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	sums := make(map[string]*result)
	episodes := make(map[string]int)
	for _, r := range rs.all {
		for _, plan := range []string{r.plan, "all"} {
			s := sums[plan]
			if s == nil {
				s = &result{faults: make(map[string]int)}
				sums[plan] = s
			}
			episodes[plan]++
			s.holds, s.losses, s.counted, s.steps, s.crashes = s.holds+r.holds, s.losses+r.losses, s.counted+r.counted, s.steps+r.steps, s.crashes+r.crashes
			s.found = append(s.found, r.found...)
			for what, n := range r.faults {
				s.faults[what] += n
			}
			if r.gap > s.gap {
				s.gap, s.slow = r.gap, r.slow
			}
		}
	}
	for _, plan := range slices.Sorted(maps.Keys(sums)) {
		s := sums[plan]
		t.Logf("ledger: %-34s episodes %3d, holds %6d, lost %3d, increments %6d, versions audited %6d, crashes %3d, longest that a name was free and awaited after healing %6v (slowness of the machine %v), violations %d; faults: %v",
			plan, episodes[plan], s.holds, s.losses, s.counted, s.steps, s.crashes, s.gap.Round(time.Millisecond), s.slow.Round(time.Millisecond), len(s.found), s.faults)
	}
}

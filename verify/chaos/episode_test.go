//go:build linux

package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/ledger"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/stores"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// names are the locks of an episode, and how they are asked for.
const names = "one/x,both/s,slots/2"

// patience is how long an episode waits at least for what has to happen.
const patience = 60 * time.Second

func (e *episode) patience() time.Duration { return max(patience, 10*e.ttl) }

// A lane is a server, and what may stand in front of it. Its episodes come one
// after the other.
type lane struct {
	kind   string // of its store, by its package
	server *servers.Server
	nodes  *nodes          // in the place of a server
	front  *servers.Server // a PgBouncer
	disk   string          // the directory of a small disk on which its data are
	ttl    time.Duration   // 0: 1.5 seconds
}

func (l *lane) of() servers.Kind { return servers.KindOf(l.kind) }

// tells says whether it is the workers who tell which of them wrote what.
func (l *lane) tells() bool { return l.kind == "mysql" || l.kind == "sqlite" }

// database makes an empty one.
func (l *lane) database(t *testing.T, dir string) (target string) {
	if l.disk != "" && l.server == nil {
		var err error
		dir, err = os.MkdirTemp(l.disk, "")
		must(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	switch {
	case l.nodes != nil: // all episodes have the same
		return l.nodes.keyspace
	case l.kind == "sqlite":
		target = "sqlite:" + filepath.Join(dir, "locks.db")
	case l.kind == "directory":
		target = "dir:" + filepath.Join(dir, "locks")
		must(t, os.Mkdir(filepath.Join(dir, "locks"), 0o700))
	default:
		target = l.server.Database(t)
	}
	must(t, stores.Migrate(t.Context(), target))
	return target
}

func (l *lane) addr() string {
	s := l.server
	if l.front != nil {
		s = l.front
	}
	return fmt.Sprintf("127.0.0.1:%d", s.Port)
}

// An episode is a few workers, a fault, and its end.
type episode struct {
	t       *testing.T
	rng     *rand.Rand
	lane    *lane
	dir     string
	target  string // the database itself
	store   *stores.Store
	client  *holdfast.Client // only looks
	ttl     time.Duration
	leap    time.Duration // of the server's clock
	wrong   float64       // by so much those of the workers are, as a part of 1
	names   string        // see names
	workers []*process
	cuts    int
	known   map[string]int64 // versions that are known to be lost
	counter string           // the directory of counters that the locks guard, or ""
	pauses  bool             // somebody may have stood still between a look at its lock and what it did

	faults  [][2]int64     // when something was broken
	history *story.History // when it is over

	mu    sync.Mutex
	notes []story.Note
}

func (e *episode) note(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, story.Note{At: life.Now(), Text: fmt.Sprintf(format, args...)})
}

// newEpisode makes a database with a few workers' worth of tables.
func newEpisode(t *testing.T, l *lane, seed uint64) *episode {
	t.Helper()
	begun(l.kind)
	dir := t.TempDir()
	t.Cleanup(func() { checkEmpty(t, dir) })
	e := &episode{t: t, rng: rand.New(rand.NewPCG(seed, 1)), lane: l, dir: dir, ttl: 1500 * time.Millisecond, names: names, known: make(map[string]int64)}
	if l.ttl != 0 {
		e.ttl = l.ttl
	}
	e.target = l.database(t, dir)
	var err error
	e.store, err = stores.Open(t.Context(), as(e.target, "judge"))
	must(t, err)
	t.Cleanup(func() { e.store.Close() })
	if e.store.DB != nil {
		must(t, setUp(t.Context(), e.store.DB, l.kind))
	} else {
		e.counter = t.TempDir()
	}
	must(t, e.store.Registers.Make(t.Context(), "one", "both", "slots", "held"))
	e.client, err = holdfast.New(e.store.Store, &holdfast.Options{RuntimeDir: e.host("judge")})
	must(t, err)
	t.Cleanup(func() { e.client.Close() })
	return e
}

// host is the directory in which processes of a host prove each other's death.
func (e *episode) host(name string) string {
	dir := filepath.Join(e.dir, "run-"+name)
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		e.t.Fatal(err)
	}
	return dir
}

// crowd starts a few workers on two hosts and returns when each has held a lock.
func (e *episode) crowd(flags ...string) {
	e.t.Helper()
	n := 3 + e.rng.IntN(4)
	if e.lane.ttl != 0 {
		n = 3 + e.rng.IntN(2) // they share the machine with all nodes
	}
	for range n {
		e.start(fmt.Sprint(e.rng.IntN(2)), flags...)
	}
	e.await("each worker has held a lock", func() bool { return e.each(story.Granted, 0) })
}

// each says whether every worker that was not killed told of something after an
// instant.
func (e *episode) each(what string, after int64) bool {
	for _, p := range e.workers {
		if p.Killed == 0 && !p.Has(what, after) {
			return false
		}
	}
	return true
}

// await is until ok, or the end of the episode: what was awaited is missing.
func (e *episode) await(what string, ok func() bool) {
	e.t.Helper()
	for end := time.Now().Add(e.patience()); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			e.t.Errorf("not within %v: %s", e.patience(), what)
			e.dump()
			if e.history == nil {
				e.history = e.tales()
			}
			e.save([]check.Violation{story.Bad("P6", "not within %v: %s", e.patience(), what)})
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

// anyone is a worker that lives.
func (e *episode) anyone() *process {
	var live []*process
	for _, p := range e.workers {
		if p.Killed == 0 {
			live = append(live, p)
		}
	}
	return live[e.rng.IntN(len(live))]
}

// who is a worker that holds or waits for a lock, or anyone.
func (e *episode) who(waits bool) *process {
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Second)
	defer cancel()
	for _, i := range e.rng.Perm(3) {
		name, _, _ := strings.Cut(strings.Split(e.names, ",")[i], "/")
		info, err := e.client.Show(ctx, name)
		if err != nil {
			break
		}
		claims := info.Holders
		if waits {
			claims = info.Waiters
		}
		for _, c := range claims {
			for _, p := range e.workers {
				if p.Killed == 0 && p.PID == c.Owner.PID {
					return p
				}
			}
		}
	}
	return e.anyone()
}

// finish demands, after the faults have ended, that everything goes on, ends
// and leaves nothing, and judges what has happened.
func (e *episode) finish(slow func() time.Duration) (r entry) {
	e.t.Helper()
	r = e.conclude(slow)
	e.show(r)
	return r
}

// show tells of an episode what was wrong with it.
func (e *episode) show(r entry) {
	e.t.Helper()
	for i, v := range r.Found {
		if i < 10 {
			e.t.Error(v)
		}
	}
	if e.t.Failed() || *keep {
		e.dump()
	}
	e.save(r.Found)
	if e.t.Failed() {
		e.t.Logf("the same plan again: go test ./verify/chaos -v -run '^%s$' -args -full=%v -seed %d", strings.ReplaceAll(e.t.Name(), "/", "$/^"), *full, *seed)
	}
}

func (e *episode) conclude(slow func() time.Duration) (r entry) {
	e.t.Helper()
	healed := life.Now()
	e.note("healed")
	e.await("each worker asks and is granted a lock after the faults have ended", func() bool {
		return e.each(story.Granted, healed) && e.each(story.Asks, healed)
	})
	e.sleep(e.ttl / 2)
	for _, p := range e.workers {
		p.End()
	}
	e.note("told to end")
	return e.verdict(healed, slow)
}

// tales are what has been told so far.
func (e *episode) tales() *story.History {
	e.mu.Lock()
	h := &story.History{Title: e.t.Name(), Rows: make(map[string]bool), Faults: e.faults, Notes: slices.Clone(e.notes)}
	e.mu.Unlock()
	for _, p := range e.workers {
		h.Stories = append(h.Stories, p.Stories()...)
	}
	return h
}

// verdict judges an episode when its workers end.
func (e *episode) verdict(healed int64, slow func() time.Duration) (r entry) {
	e.t.Helper()
	e.await("every worker ends", func() bool {
		return !slices.ContainsFunc(e.workers, func(p *process) bool { return !p.Ended() })
	})
	h := e.tales()
	h.Healed, h.Slow, e.history = healed, slow(), h
	for _, p := range e.workers {
		if text := p.Said(); text != "" {
			r.Found = append(r.Found, story.Bad("worker", "%s says: %s", p.ID, text))
		}
	}
	if e.store.DB != nil {
		rows, err := e.store.DB.QueryContext(e.t.Context(), `select id from effects`)
		must(e.t, err)
		for rows.Next() {
			var id string
			must(e.t, rows.Scan(&id))
			h.Rows[id] = true
		}
		must(e.t, rows.Err())
	}
	r.Found = append(r.Found, h.Judge()...)
	r.Found = append(r.Found, e.residue(h.Slow)...)
	if e.store.DB != nil {
		found, n := e.audit()
		r.Found, r.Steps = append(r.Found, found...), n
	}
	if e.counter != "" {
		found, n := h.Counters()
		if r.Counted = n; !e.pauses {
			r.Found = append(r.Found, found...)
		}
	}
	var where string
	if r.Gap, where = h.Gap(); r.Gap > 2*e.ttl+1500*time.Millisecond+h.Slow {
		r.Found = append(r.Found, story.Bad("P6", "%s was free for %v while somebody waited; TTL %v, slowness of the machine %v", where, r.Gap, e.ttl, h.Slow))
	}
	for _, o := range h.Holds() {
		r.Holds++
		if o.Lost() {
			r.Losses++
		}
	}
	r.Writes, r.Slow, r.Cuts, r.Histories = len(h.Rows), h.Slow, e.cuts, h.Names()
	return r
}

// residue demands that all locks and sessions go.
func (e *episode) residue(slow time.Duration) (found []check.Violation) {
	c, err := holdfast.New(e.store.Store, &holdfast.Options{TTL: e.ttl, RuntimeDir: e.host("judge")})
	must(e.t, err)
	defer c.Close()
	ctx := e.t.Context()
	for end := time.Now().Add(2*e.ttl + 2*time.Second + slow); ; time.Sleep(50 * time.Millisecond) {
		_, err := c.Sweep(ctx)
		must(e.t, err)
		found = nil
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

// dump prints what has happened, the end of it if it is long.
func (e *episode) dump() {
	lines := slices.Clone(e.notes)
	for _, p := range e.workers {
		for _, ev := range p.Told() {
			text := fmt.Sprintf("%s %s", p.ID, ev.What)
			if ev.ID != 0 {
				text += fmt.Sprintf(" %d %s/%d", ev.ID, ev.Name, ev.Slots)
			} else {
				text += " " + ev.Name
			}
			if ev.Token != 0 {
				text += fmt.Sprint(" token ", ev.Token)
			}
			if ev.Sent != 0 {
				text += fmt.Sprint(" sent ", time.Duration(ev.Sent))
			}
			lines = append(lines, story.Note{At: ev.At, Text: text + " " + ev.Text})
		}
		if p.Ended() && p.Said() != "" {
			lines = append(lines, story.Note{At: life.Now(), Text: p.ID + " said: " + p.Said()})
		}
	}
	slices.SortFunc(lines, func(a, b story.Note) int { return cmp.Compare(a.At, b.At) })
	file, err := os.CreateTemp("", "chaos-*.log")
	if err != nil {
		e.t.Log(err)
		return
	}
	defer file.Close()
	for _, l := range lines {
		fmt.Fprintf(file, "%v %s\n", time.Duration(l.At), l.Text)
	}
	if e.store.DB == nil {
	} else if all, err := e.steps(context.Background()); err == nil {
		for _, s := range all {
			fmt.Fprintf(file, "step at %v by %b lazy %v: %v %s version %d: %s\n", s.At, s.Writers, s.Lazy, s.Key.Space, s.Key.Name, s.Version, s.Value)
		}
	}
	e.t.Logf("all that happened is in %s", file.Name())
	for _, l := range lines {
		if !strings.HasPrefix(l.Text, "w") {
			e.t.Logf("%v %s", time.Duration(l.At), l.Text)
		}
	}
}

// seedOf is the seed of an episode.
func seedOf(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, parts...)
	return h.Sum64()
}

// An entry is what an episode, or all of a kind, have come to.
type entry struct {
	Fault                                        string
	Episodes, Holds, Writes, Losses, Cuts, Steps int
	Counted                                      int // increments of counters
	Histories                                    int // of one name each
	Found                                        []check.Violation
	Gap, Slow                                    time.Duration
}

var entries struct {
	sync.Mutex
	of        map[string]*entry
	runs      map[string]*ledger.Run // of each store, since its first episode
	undecided int64
}

// entryMark begins a line by which another process tells its entries.
const entryMark = "entry: "

// enter adds an episode to the ledger.
func enter(e entry) {
	entries.Lock()
	defer entries.Unlock()
	if own {
		text, _ := json.Marshal(e)
		fmt.Printf("\n%s%s\n", entryMark, text)
	}
	if entries.of == nil {
		entries.of = make(map[string]*entry)
	}
	for _, fault := range []string{e.Fault, "all"} {
		l := entries.of[fault]
		if l == nil {
			l = &entry{Fault: fault}
			entries.of[fault] = l
		}
		l.Episodes++
		l.Holds += e.Holds
		l.Writes += e.Writes
		l.Losses += e.Losses
		l.Cuts += e.Cuts
		l.Steps += e.Steps
		l.Counted += e.Counted
		l.Histories += e.Histories
		l.Found = append(l.Found, e.Found...)
		if e.Gap > l.Gap {
			l.Gap, l.Slow = e.Gap, e.Slow
		}
	}
}

// begun is when the first episode of a store begins.
func begun(store string) {
	entries.Lock()
	defer entries.Unlock()
	if entries.runs == nil {
		entries.runs = make(map[string]*ledger.Run)
	}
	if entries.runs[store] == nil {
		entries.runs[store] = ledger.Begin("chaos", store, "")
	}
}

// report prints what all episodes since the last report have come to, and enters it
// in the ledger.
func report(t *testing.T) {
	entries.Lock()
	defer entries.Unlock()
	kinds, sums := make(map[string][]string), make(map[string]*entry)
	for _, fault := range slices.Sorted(maps.Keys(entries.of)) {
		l := entries.of[fault]
		t.Logf("ledger: %-58s episodes %3d, holds %6d, lost %3d, fenced writes %5d, increments %5d, replies thrown away %3d, writes audited %6d, histories of a name %4d, longest that a name was free and awaited after healing %6v (slowness of the machine %v), violations %d",
			fault, l.Episodes, l.Holds, l.Losses, l.Writes, l.Counted, l.Cuts, l.Steps, l.Histories, l.Gap.Round(time.Millisecond), l.Slow.Round(time.Millisecond), len(l.Found))
		store, kind, ok := strings.Cut(fault, ": ")
		if !ok {
			continue
		}
		if sums[store] == nil {
			sums[store] = new(entry)
		}
		sum := sums[store]
		kinds[store] = append(kinds[store], kind)
		sum.Episodes, sum.Histories, sum.Found = sum.Episodes+l.Episodes, sum.Histories+l.Histories, append(sum.Found, l.Found...)
	}
	for store, sum := range sums {
		if run := entries.runs[store]; run != nil && !own {
			must(t, run.Of("chaos", strings.Join(kinds[store], "; ")).End(sum.Episodes, len(sum.Found)))
			must(t, run.Of("histories", "in episodes of faults").End(sum.Histories, len(sum.Found)))
		}
		t.Logf("figure: %s: %d episodes of %d kinds, %d histories of one name, violations %d", store, sum.Episodes, len(kinds[store]), sum.Histories, len(sum.Found))
	}
	if n := check.Undecided.Load() - entries.undecided; n > 0 {
		t.Logf("figure: of %d searches for an order %d were given up undecided", check.Searches.Load(), n)
	}
	entries.of, entries.runs, entries.undecided = nil, nil, check.Undecided.Load()
}

// account makes the users of the workers on a MySQL.
func account(ctx context.Context, s *servers.Server) error {
	if u, err := url.Parse(s.URL); err != nil || u.Scheme != "mysql" {
		return err
	}
	store, err := stores.OpenDB(s.URL)
	if err != nil {
		return err
	}
	defer store.Close()
	for i := range 40 {
		user := fmt.Sprintf("w%d@'127.0.0.1'", i)
		if i == 39 {
			user = "judge@'127.0.0.1'"
		}
		for _, q := range []string{"create user if not exists " + user, "grant all on *.* to " + user} {
			if _, err := store.ExecContext(ctx, q); err != nil {
				return err
			}
		}
	}
	return nil
}

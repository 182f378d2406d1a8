//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/stores"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// lazyServer is a server that writes to disk what nobody waits for as late as it can.
func lazyServer(t *testing.T, kind string) *lane {
	t.Helper()
	opts := &servers.Options{}
	if kind == "postgres" {
		opts.Settings = []string{"wal_writer_delay=10s", "wal_writer_flush_after=1GB"}
	}
	return newLane(t, kind, opts)
}

// A server that is killed under load forgets writes that nobody waited for, and
// none that somebody did. No token repeats, no name stays blocked, and nobody
// waits for ever.
func TestLazyWritesLost(t *testing.T) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l := lazyServer(t, kind)
			n := number(10, 100)
			if kind == "mysql" {
				n = number(4, 40)
			}
			lazyWritesLost(t, l, n)
		})
	}
}

const lazyNames = "a/x,b/x,c/x,d/x,e/x,f/x,g/s,h/2"

func lazyWritesLost(t *testing.T, l *lane, n int) {
	slow, err := life.Slowness()
	must(t, err)
	e := newEpisode(t, l, seedOf(*seed, l.kind, "lazy"))
	e.ttl = 2 * time.Second
	e.names = lazyNames
	for i := range 4 {
		e.start(fmt.Sprint(i%2), "-writes", "-fences=false", "-think", "120ms", "-long", "0")
	}
	e.await("each worker has held a lock", func() bool { return e.each(story.Granted, 0) })
	probe, err := holdfast.New(e.store.Store, &holdfast.Options{TTL: e.ttl, RuntimeDir: e.host("judge")})
	must(t, err)
	var lost forgotten
	var longest time.Duration
	probes := 0
	for range n {
		e.sleep(e.between(150*time.Millisecond, 400*time.Millisecond))
		must(t, l.server.Kill())
		e.note("server killed")
		for _, p := range e.workers {
			p.proxy.Refuse(true)
		}
		must(t, l.server.Restart(t.Context()))
		lost.add(e.forgotten())
		for _, p := range e.workers {
			p.proxy.Refuse(false)
		}
		healed := life.Now()
		e.note("server started again")
		e.await("each worker is granted a lock", func() bool { return e.each(story.Granted, healed) })
		for pair := range strings.SplitSeq(e.names, ",") {
			name, _, _ := strings.Cut(pair, "/")
			began := life.Now()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			lock, err := probe.Acquire(ctx, name)
			cancel()
			if err != nil {
				t.Errorf("%q is blocked: %v", name, err)
				continue
			}
			took := time.Duration(life.Now() - began)
			probes, longest = probes+1, max(longest, took)
			must(t, lock.Release(t.Context()))
		}
	}
	must(t, probe.Close())
	r := e.conclude(slow)
	r.Found = append(r.Found, lost.found...)
	if limit := 3*time.Second + r.Slow; longest > limit {
		r.Found = append(r.Found, story.Bad("P6", "a name was obtained only after %v; TTL 2s, slowness of the machine %v", longest, r.Slow))
	}
	if n := len(lost.writes); l.kind == "postgres" && n == 0 {
		t.Error("no write was lost, so nothing was tested")
	}
	for _, v := range r.Found {
		t.Error(v)
	}
	if t.Failed() || *keep {
		e.dump()
	}
	t.Logf("figure: %s killed %d times under load: %d writes that were confirmed without the disk were lost, in %d kills (%d ends of holds or waits, %d places in a queue, %d of other records); "+
		"%d holds, %d lost locks, %d writes audited, violations %d; each name was obtained afterwards within %v, %d times; longest that a name was free and awaited %v",
		l.server.Name, n, len(lost.writes), lost.kills, lost.ends, lost.places, lost.others, r.Holds, r.Losses, r.Steps, len(r.Found),
		longest.Round(time.Millisecond), probes, r.Gap.Round(time.Millisecond))
}

// forgotten are confirmed writes that a crash has undone.
type forgotten struct {
	kills                int
	ends, places, others int
	writes               []story.Event
	found                []check.Violation
}

func (f *forgotten) add(g forgotten) {
	if len(g.writes) > 0 {
		f.kills++
	}
	f.ends, f.places, f.others = f.ends+g.ends, f.places+g.places, f.others+g.others
	f.writes, f.found = append(f.writes, g.writes...), append(f.found, g.found...)
}

// forgotten compares what stands, while nobody writes, with what was confirmed.
func (e *episode) forgotten() (f forgotten) {
	stands := make(map[string]int64)
	for _, space := range []driver.Space{driver.Names, driver.Sessions, driver.Settings, driver.Audits, driver.Histories} {
		keys := make(map[string]bool)
		for _, p := range e.workers {
			for _, ev := range p.Told() {
				if name, ok := strings.CutPrefix(ev.Name, fmt.Sprintf("%d ", space)); ok && ev.What == story.Wrote {
					keys[name] = true
				}
			}
		}
		for name := range keys {
			k := driver.Key{Space: space, Name: name}
			rec, err := load(e.store, k)
			must(e.t, err)
			stands[keyOf(k)] = rec.Version
		}
	}
	durable := int64(0) // when the last write that waited for the disk was sent
	for _, p := range e.workers {
		for _, ev := range p.Told() {
			if ev.What == story.Wrote && !ev.Lazy {
				durable = max(durable, ev.Sent)
			}
		}
	}
	for _, p := range e.workers {
		for _, ev := range p.Told() {
			if ev.What != story.Wrote || ev.Token <= stands[ev.Name] || e.known[ev.Name] >= ev.Token {
				continue
			}
			f.writes = append(f.writes, ev)
			e.known[ev.Name] = max(e.known[ev.Name], ev.Token)
			switch {
			case !ev.Lazy:
				f.found = append(f.found, story.Bad("A1", "a write that waited for the disk is gone: %+v; version %d stands", ev, stands[ev.Name]))
			case durable > ev.At:
				f.found = append(f.found, story.Bad("A1", "a lazy write is gone although one that was sent %v later, and waited for the disk, was confirmed: %+v; version %d stands",
					time.Duration(durable-ev.At), ev, stands[ev.Name]))
			case e.lane.kind == "mysql":
				f.found = append(f.found, story.Bad("A1", "a confirmed write is gone: %+v", ev))
			}
			switch {
			case !strings.HasPrefix(ev.Name, "0 "):
				f.others++
			case strings.Contains(ev.Text, `"waiters"`):
				f.places++
			default:
				f.ends++
			}
		}
	}
	return f
}

// load reads a record, the second time if a connection was of before a crash.
func load(s driver.Store, k driver.Key) (driver.Record, error) {
	var errs []error
	for range 10 {
		recs, err := s.Load(context.Background(), []driver.Key{k}, driver.Fresh)
		if err == nil {
			return recs[0], nil
		}
		errs = append(errs, err)
	}
	return driver.Record{}, errors.Join(errs...)
}

// A lock that was given back without waiting for the disk stands there again
// after a crash, and its session, which lives on, removes it: nobody has to wait
// until it dies. A place in a queue that was lost is taken again.
func TestLazyWriteRepaired(t *testing.T) {
	t.Parallel()
	l := lazyServer(t, "postgres")
	target := l.server.Database(t)
	must(t, stores.Migrate(t.Context(), target))
	direct, err := stores.Open(t.Context(), target)
	must(t, err)
	t.Cleanup(func() { direct.Close() })
	const ttl = 6 * time.Second
	user := func() *holdfast.Client {
		s, err := stores.Open(t.Context(), target)
		must(t, err)
		t.Cleanup(func() { s.Close() })
		c, err := holdfast.New(s.Store, &holdfast.Options{TTL: ttl, RuntimeDir: t.TempDir()})
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	one, two := user(), user()
	show := func(name string) (text string) {
		rec, err := load(direct, driver.Key{Space: driver.Names, Name: name})
		must(t, err)
		return string(rec.Value)
	}
	holds := func(name string) bool { return strings.Contains(show(name), `"holders"`) }
	waits := func(name string) bool { return strings.Contains(show(name), `"waiters"`) }
	crash := func() {
		must(t, l.server.Kill())
		must(t, l.server.Restart(t.Context()))
	}
	releases, places := 0, 0
	var repair, regain time.Duration
	rounds := number(3, 30)
	for i := range rounds {
		name := fmt.Sprint("released ", i)
		lock, err := one.Acquire(t.Context(), name)
		must(t, err)
		must(t, lock.Release(t.Context()))
		crash()
		began := life.Now()
		if value := show(name); strings.Contains(value, `"holders"`) {
			releases++
			_, session, _ := strings.Cut(value, `"session":"`)
			session, _, _ = strings.Cut(session, `"`)
			for holds(name) && time.Duration(life.Now()-began) < 2*ttl {
				time.Sleep(5 * time.Millisecond)
			}
			repair = max(repair, time.Duration(life.Now()-began))
			rec, err := load(direct, driver.Key{Space: driver.Sessions, Name: session})
			must(t, err)
			sess, err := check.ReadSession(string(rec.Value))
			if err != nil || sess.Dead != 0 || sess.Beat == 0 {
				t.Errorf("the session that had released %q does not live: %q", name, rec.Value)
			}
		}

		name = fmt.Sprint("queued ", i)
		lock, err = one.Acquire(t.Context(), name)
		must(t, err)
		token := lock.Token()
		got := make(chan *holdfast.Lock, 1)
		go func() {
			l, err := two.Acquire(t.Context(), name)
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		for !waits(name) {
			time.Sleep(time.Millisecond)
		}
		crash()
		if !waits(name) {
			places++
		}
		began = life.Now()
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		select {
		case lock = <-got:
			regain = max(regain, time.Duration(life.Now()-began))
			if lock == nil || lock.Token() <= token {
				t.Fatalf("after token %d came %v", token, lock)
			}
			must(t, lock.Release(t.Context()))
		case <-time.After(patience):
			t.Fatalf("who waited for %q waits for ever", name)
		}
	}
	if releases == 0 || places == 0 {
		t.Errorf("of %d releases %d were lost, of as many places in a queue %d: nothing was tested", rounds, releases, places)
	}
	if repair > ttl {
		t.Errorf("a lost release was repaired only after %v; TTL %v", repair, ttl)
	}
	if regain > ttl+time.Second {
		t.Errorf("who had lost its place held the lock only %v after the release; TTL %v", regain, ttl)
	}
	t.Logf("figure: of %d releases before a crash %d were lost, and gone again by their session within %v of the restart; of %d places in a queue %d were lost, and who waited held the lock within %v of the release (TTL %v)",
		rounds, releases, repair.Round(time.Millisecond), rounds, places, regain.Round(time.Millisecond), ttl)
}

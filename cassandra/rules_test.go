package cassandra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
	load "github.com/holdfast-lock/holdfast/internal/busy"
)

// A subject is a store behind a tap, and another one on the same table that
// nothing happens to.
type subject struct {
	*Store
	tap   *tap
	other *Store
}

func tappedStore(t *testing.T, change func(*gocql.ClusterConfig)) *subject {
	t.Helper()
	session, _ := keyspace(t)
	opts := table(t)
	p, own := tapped(t, change)
	return &subject{open(t, own, opts), p, open(t, session, opts)}
}

// nameKey is a name for a test alone: of a table that was truncated the next round
// of consensus may bring a row back.
func nameKey(t *testing.T, name string) driver.Key {
	return driver.Key{Space: driver.Names, Name: t.Name() + " " + name}
}

// swap is one write.
func swap(t *testing.T, s driver.Store, name string, old int64, value string) (driver.Outcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return swapIn(ctx, s, nameKey(t, name), old, value)
}

func swapIn(ctx context.Context, s driver.Store, k driver.Key, old int64, value string) (driver.Outcome, error) {
	outs, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: old, Value: []byte(value)}})
	if err != nil {
		return driver.Outcome{}, err
	}
	return outs[0], outs[0].Err
}

// put is a write that has to win.
func put(t *testing.T, s driver.Store, name string, old int64, value string) driver.Record {
	t.Helper()
	out, err := swap(t, s, name, old, value)
	if err != nil || !out.Won {
		t.Fatalf("write %q of %q over %d: got %+v, %v, want it to win", value, name, old, out, err)
	}
	return out.Record
}

// get is what stands.
func get(t *testing.T, s driver.Store, name string) driver.Record {
	t.Helper()
	recs, err := s.Load(t.Context(), []driver.Key{nameKey(t, name)}, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	return recs[0]
}

// swept wants the row of a name that holds nothing to go.
func swept(t *testing.T, s driver.Store, name string) {
	t.Helper()
	if n, err := s.Sweep(t.Context(), 0); err != nil || n == 0 {
		t.Errorf("%d rows are swept, %v", n, err)
	}
	if rec := get(t, s, name); rec.Version != 0 {
		t.Errorf("%q has still a row after a sweep: %+v", name, rec)
	}
}

// stands wants a value and version to be what stands.
func (s *subject) stands(t *testing.T, name, value string, version int64) {
	t.Helper()
	if rec := get(t, s.other, name); string(rec.Value) != value || rec.Version != version {
		t.Errorf("%q is %q at version %d, want %q at %d", name, rec.Value, rec.Version, value, version)
	}
}

// once has the first call of a kind meet a fate, and all others pass.
func once(kind string, f fate) func(*call) fate {
	var done atomic.Bool
	return func(c *call) fate {
		if c.is(kind) && done.CompareAndSwap(false, true) {
			return f
		}
		return pass
	}
}

// row makes a row as it could be, in one lightweight transaction.
func (s *subject) row(t *testing.T, name string, version int64, value string) {
	t.Helper()
	exec(t, s.other.session, s.tables.expand(`insert into {records} (space, name, version, value, attempt, follows) values (0, ?, ?, ?, 0x00, 0) if not exists`),
		[]byte(nameKey(t, name).Name), version, []byte(value))
}

// P20: a write timeout of type CAS says nothing. Whether the transaction was
// carried out or not, its write is told so: it has won, once.
func TestP20WriteTimeoutIsUnknown(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fate{"carried out": timedOut, "not carried out": busy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tappedStore(t, nil)
			s.tap.set(once("insert", f))
			first := put(t, s, "x", driver.IfEmpty, "one")
			s.stands(t, "x", "one", first.Version)
			s.tap.set(once("update", f))
			second := put(t, s, "x", first.Version, "two")
			s.stands(t, "x", "two", second.Version)
			s.tap.set(once("update", f))
			third := put(t, s, "x", second.Version, "")
			s.tap.set(once("update", f))
			last := put(t, s, "x", driver.IfEmpty, "three")
			if last.Version <= third.Version {
				t.Errorf("version %d after %d", last.Version, third.Version)
			}
			s.stands(t, "x", "three", last.Version)
		})
	}
}

// P20: an answer that is thrown away, with the connection.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	for _, f := range []fate{cut, lost} {
		name := fmt.Sprint(f)
		connected(t, s.session)
		s.tap.set(once("insert", f))
		rec := put(t, s, name, driver.IfEmpty, "one")
		s.stands(t, name, "one", rec.Version)
		for i, old := range []int64{0, 0, driver.IfEmpty} {
			connected(t, s.session) // a node that was cut off comes back
			s.tap.set(once("update", f))
			value := []string{"two", "", "three"}[i]
			if old == 0 {
				old = rec.Version
			}
			rec = put(t, s, name, old, value)
			s.stands(t, name, value, rec.Version)
		}
	}
}

// A client that takes a key that has no row, and gets no answer, may have taken it when it
// had one.
func TestTakenAndSweptIsUnknown(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	s.row(t, "x", 5, "")
	var n atomic.Int64
	s.tap.set(func(c *call) fate {
		switch {
		case !c.is("update"):
		case n.Add(1) == 1:
			return cut
		case n.Load() == 2:
			rec := get(t, s.other, "x")
			put(t, s.other, "x", rec.Version, "")
			swept(t, s.other, "x")
		}
		return pass
	})
	if out, err := swap(t, s, "x", driver.IfEmpty, "one"); !errors.Is(err, errUnknown) {
		t.Errorf("got %+v, %v, want that it is unknown", out, err)
	}
}

// A stubborn driver asks the same node again.
type stubborn struct{}

func retrying(c *gocql.ClusterConfig) { c.RetryPolicy, c.DefaultIdempotence = stubborn{}, true }

func (stubborn) Attempt(q gocql.RetryableQuery) bool    { return q.Attempts() <= 3 }
func (stubborn) GetRetryType(err error) gocql.RetryType { return gocql.Retry }

// A write whose answer was lost, and that somebody has followed since, is not
// said to have lost. The driver's own retries would hide that there was one.
func TestFollowedSinceIsUnknown(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, retrying)
	first := put(t, s, "x", driver.IfEmpty, "one")
	for _, f := range []fate{cut, timedOut} {
		var n atomic.Int64
		s.tap.set(func(c *call) fate {
			if !c.is("update") {
				return pass
			}
			if n.Add(1) == 1 {
				return f
			}
			if n.Load() == 2 {
				second := get(t, s.other, "x")
				first = put(t, s.other, "x", second.Version, "three")
			}
			return pass
		})
		out, err := swap(t, s, "x", first.Version, "two")
		if err == nil || !errors.Is(err, errUnknown) {
			t.Errorf("fate %d: got %+v, %v for a write that was carried out and then followed, want that it is unknown", f, out, err)
		}
		s.stands(t, "x", "three", first.Version)
	}
}

// A write that may have been carried out is known to have lost when another has
// followed the version that it wanted to follow: only one can.
func TestFollowedInsteadIsLost(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	first := put(t, s, "x", driver.IfEmpty, "one")
	var second driver.Record
	var n atomic.Int64
	s.tap.set(func(c *call) fate {
		switch {
		case !c.is("update"):
			return pass
		case n.Add(1) == 1:
			return busy
		}
		second = put(t, s.other, "x", first.Version, "another")
		return pass
	})
	out, err := swap(t, s, "x", first.Version, "two")
	if err != nil || out.Won || out.Record.Version != second.Version || string(out.Record.Value) != "another" {
		t.Errorf("got %+v, %v, want to have lost to %+v", out, err, second)
	}
}

// A statement that arrives when its write has long been answered does nothing,
// whatever has happened to the row since.
func TestLateStatements(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	late := func(kind string, nth int64) (send func()) {
		var held *call
		var n atomic.Int64
		s.tap.set(func(c *call) fate {
			if c.is(kind) && n.Add(1) == nth {
				held = c
				return lost
			}
			return pass
		})
		return func() {
			t.Helper()
			s.tap.set(nil)
			if held == nil {
				t.Fatalf("there was no %s number %d", kind, nth)
			}
			held.send()
		}
	}

	rec := put(t, s, "x", driver.IfEmpty, "one")
	rec = put(t, s, "x", rec.Version, "")
	send := late("update", 1) // a take of an empty row
	rec = put(t, s, "x", driver.IfEmpty, "two")
	rec = put(t, s, "x", rec.Version, "")
	send()
	s.stands(t, "x", "", rec.Version)

	rec = put(t, s, "x", driver.IfEmpty, "three")
	send = late("update", 1)
	rec = put(t, s, "x", rec.Version, "four")
	rec = put(t, s, "x", rec.Version, "five")
	send()
	s.stands(t, "x", "five", rec.Version)

	send = late("update", 1) // the fill of a placeholder: "x" was new, so that of "y" comes first
	rec = put(t, s, "y", driver.IfEmpty, "one")
	put(t, s, "y", rec.Version, "")
	swept(t, s.other, "y")
	send()
	if rec := get(t, s.other, "y"); rec.Version != 0 {
		t.Errorf("a swept row is back: %+v", rec)
	}
}

// A fill that comes late finds that the placeholder is another one.
func TestLateFill(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	var held *call
	var fills atomic.Int64
	s.tap.set(func(c *call) fate {
		if c.is("update") && fills.Add(1) == 2 {
			held = c
			return lost
		}
		return pass
	})
	rec := put(t, s, "x", driver.IfEmpty, "old")
	put(t, s, "x", rec.Version, "")
	swept(t, s.other, "x")
	fills.Store(0)
	s.tap.set(func(c *call) fate {
		if c.is("update") && fills.Add(1) == 2 {
			held.send()
		}
		return pass
	})
	next := put(t, s, "x", driver.IfEmpty, "new")
	if next.Version <= rec.Version {
		t.Errorf("version %d after %d", next.Version, rec.Version)
	}
	s.stands(t, "x", "new", next.Version)
}

const hour = int64(time.Hour / time.Microsecond)

// A row that comes back is above what was swept, also if that happened while the
// placeholder was on its way, and by a clock that was ahead.
func TestFloorIsReadAfterThePlaceholder(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	high := time.Now().UnixMicro() + hour
	var done sync.Once
	s.tap.set(func(c *call) fate {
		if c.is("insert") {
			done.Do(func() {
				s.row(t, "x", high, "")
				swept(t, s.other, "x")
			})
		}
		return pass
	})
	if rec := put(t, s, "x", driver.IfEmpty, "new"); rec.Version <= high {
		t.Errorf("version %d, want more than %d, which was swept", rec.Version, high)
	}
}

// The floor is raised before a row goes.
func TestFloorIsRaisedBeforeRowsGo(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	high := time.Now().UnixMicro() + hour
	s.row(t, "x", high, "")
	s.tap.set(func(c *call) fate {
		if c.is("delete") && string(c.values[1]) == nameKey(t, "x").Name {
			if floor, err := s.other.floor(t.Context()); err != nil || floor < high {
				t.Errorf("the floor is %d, %v when a row of version %d is removed", floor, err, high)
			}
		}
		return pass
	})
	swept(t, s, "x")
}

// A table without its floor gives nothing new.
func TestNoFloor(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	exec(t, s.other.session, s.tables.expand(`delete from {records} where space = -1 and name = 0x00 if exists`))
	if out, err := swap(t, s, "x", driver.IfEmpty, "one"); !errors.Is(err, errNoFloor) {
		t.Errorf("got %+v, %v, want %v", out, err, errNoFloor)
	}
}

// A row that was taken after the sweep has seen it empty stays.
func TestSweepSparesWhatIsTaken(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	rec := put(t, s, "x", driver.IfEmpty, "one")
	put(t, s, "x", rec.Version, "")
	var taken driver.Record
	var done sync.Once
	s.tap.set(func(c *call) fate {
		if c.is("delete") && string(c.values[1]) == nameKey(t, "x").Name {
			done.Do(func() { taken = put(t, s.other, "x", driver.IfEmpty, "two") })
		}
		return pass
	})
	if _, err := s.Sweep(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if taken.Version == 0 {
		t.Error("no row was removed")
	}
	s.stands(t, "x", "two", taken.Version)
}

// Versions grow though the clock is behind.
func TestVersionsOutrunTheClock(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	high := time.Now().UnixMicro() + hour
	s.row(t, "x", high, "")
	rec := put(t, s, "x", driver.IfEmpty, "one")
	if rec.Version <= high {
		t.Errorf("taken as version %d over %d", rec.Version, high)
	}
	if next := put(t, s, "x", rec.Version, "two"); next.Version <= rec.Version {
		t.Errorf("followed as version %d over %d", next.Version, rec.Version)
	}
}

// X15: whatever changes a row is a lightweight transaction at SERIAL, release
// and sweep included, nothing has a TTL, and what counts is read at SERIAL.
func TestX15LightweightTransactionsOnly(t *testing.T) {
	t.Parallel()
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprintf("local=%v", local), func(t *testing.T) {
			t.Parallel()
			s := tappedStore(t, nil)
			serial, quorum := gocql.Serial, gocql.Quorum
			if local {
				opts := s.opts
				opts.Allow = []string{"local-serial"}
				if err := s.session.Query(`select data_center from system.local`).Scan(&opts.LocalDC); err != nil {
					t.Fatal(err)
				}
				s.Store = open(t, s.session, &opts)
				serial, quorum = gocql.LocalSerial, gocql.LocalQuorum
			}
			s.tap.set(nil)
			rec := put(t, s, "x", driver.IfEmpty, "one")
			rec = put(t, s, "x", rec.Version, "two")
			put(t, s, "x", rec.Version, "")
			get(t, s, "x")
			if _, err := s.Load(t.Context(), []driver.Key{nameKey(t, "x"), nameKey(t, "y")}, driver.Stale); err != nil {
				t.Fatal(err)
			}
			swept(t, s, "x")
			for _, kind := range []string{"insert", "update", "delete"} {
				if len(s.tap.seen(kind)) == 0 {
					t.Errorf("nothing was written by %s", kind)
				}
			}
			loads, staleReads := 0, 0
			for _, c := range s.tap.seen("") {
				text := strings.ToLower(c.text)
				switch {
				case strings.Contains(text, " ttl"):
					t.Errorf("with a TTL: %s", c.text)
				case c.is("select") && c.text == s.text.load && len(c.values[0]) == 1 && c.values[0][0] != 0xff:
					if loads++; c.consistency != serial {
						t.Errorf("read at %v: %s", c.consistency, c.text)
					}
				case c.is("select"):
					if c.text == s.text.stale {
						staleReads++
					}
					if c.consistency != quorum {
						t.Errorf("read at %v: %s", c.consistency, c.text)
					}
				case !strings.Contains(text, " if "):
					t.Errorf("not conditional: %s", c.text)
				case c.serial != serial || c.consistency != quorum:
					t.Errorf("agreed at %v, written at %v: %s", c.serial, c.consistency, c.text)
				}
			}
			if loads == 0 || staleReads == 0 {
				t.Errorf("%d loads and %d stale reads, want some of each", loads, staleReads)
			}
			var ttl int
			if err := s.session.Query(`select default_time_to_live from system_schema.tables where keyspace_name = ? and table_name = ?`,
				s.opts.Keyspace, s.opts.Prefix+"records").Scan(&ttl); err != nil || ttl != 0 {
				t.Errorf("rows live for %d s, %v", ttl, err)
			}
		})
	}
}

// All stores ask one node about a row, as long as it answers.
func TestOneCoordinator(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	p, session := tapped(t, nil)
	two := open(t, session, &s.opts)
	for i := range 5 {
		name := fmt.Sprint(i)
		s.tap.set(nil)
		p.set(nil)
		rec := put(t, s, name, driver.IfEmpty, "one")
		rec = put(t, two, name, rec.Version, "two")
		put(t, s, name, rec.Version, "three")
		get(t, two, name)
		var hosts []string
		for _, c := range append(s.tap.seen(""), p.seen("")...) {
			if len(c.values) > 1 && c.text != s.text.floor || c.text == s.text.load && c.values[0][0] != 0xff {
				hosts = append(hosts, c.host)
			}
		}
		slices.Sort(hosts)
		if hosts = slices.Compact(hosts); len(hosts) != 1 {
			t.Errorf("about %q were asked %v", name, hosts)
		}
	}
}

// A node that does not answer is left for another, and not asked again soon.
func TestUnresponsiveCoordinator(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	rec := put(t, s, "x", driver.IfEmpty, "0")
	var mu sync.Mutex
	deaf := ""
	s.tap.set(func(c *call) fate {
		mu.Lock()
		defer mu.Unlock()
		if deaf == "" {
			deaf = c.host
		}
		if c.host == deaf {
			return silence
		}
		return pass
	})
	for i := range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		out, err := swapIn(ctx, s, nameKey(t, "x"), rec.Version, fmt.Sprint(i+1))
		cancel()
		if err != nil || !out.Won {
			t.Fatalf("write %d: %+v, %v", i, out, err)
		}
		rec = out.Record
	}
	asked := 0
	for _, c := range s.tap.seen("update") {
		if c.host == deaf {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("a deaf node was asked %d times by 5 writes, want once", asked)
	}
}

// Too many who write the same row is no reason to give up before time is up, and
// said to be just that.
func TestBusy(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	first := put(t, s, "x", driver.IfEmpty, "one")
	var n atomic.Int64
	s.tap.set(func(c *call) fate {
		if c.is("update") && n.Add(1) <= 6 {
			return busy
		}
		return pass
	})
	second := put(t, s, "x", first.Version, "two")
	s.tap.set(func(*call) fate { return busy })
	ctx, cancel := context.WithTimeout(t.Context(), load.Times(2*time.Second))
	defer cancel()
	if out, err := swapIn(ctx, s, nameKey(t, "x"), second.Version, "three"); !driver.Busy(err) {
		t.Errorf("got %+v, %v, want a BusyError", out, err)
	}
}

// The driver does not send anything again by itself: a store goes on to the
// next node, once, and then says that it does not know.
func TestDriverDoesNotRetry(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, retrying)
	rec := put(t, s, "x", driver.IfEmpty, "one")
	s.tap.set(func(*call) fate { return failed })
	if out, err := swap(t, s, "x", rec.Version, "two"); err == nil {
		t.Errorf("got %+v, want an error", out)
	}
	var hosts []string
	for _, c := range s.tap.seen("update") {
		hosts = append(hosts, c.host)
	}
	slices.Sort(hosts)
	if len(hosts) != 3 || len(slices.Compact(slices.Clone(hosts))) != 3 {
		t.Errorf("asked were %v, want each of three nodes once", hosts)
	}
}

// What a node refuses is not asked of others, and was not carried out.
func TestRefusedIsNotUnknown(t *testing.T) {
	t.Parallel()
	session, _ := keyspace(t)
	opts := *table(t)
	s := open(t, session, &opts)
	s.text.follow = strings.Replace(s.text.follow, "set version", "set no_such_column", 1)
	out, err := swap(t, s, "x", 5, "one")
	if err == nil || errors.Is(err, errUnknown) {
		t.Errorf("got %+v, %v, want an error that does not say unknown", out, err)
	}
}

// Names that wait for a slow cluster do not keep heartbeats waiting, and no more
// than so many statements are under way.
func TestLanes(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	full, more, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var n atomic.Int64
	s.tap.set(func(c *call) fate {
		if len(c.values) > 4 && c.values[4][0] == byte(driver.Sessions) || len(c.values) < 5 && c.values[0][0] == byte(driver.Sessions) {
			return pass
		}
		switch n.Add(1) {
		case maxCalls:
			close(full)
		case maxCalls + 1:
			close(more)
		}
		<-end
		return pass
	})
	writes := make([]driver.Write, maxCalls+4)
	for i := range writes {
		writes[i] = driver.Write{Key: nameKey(t, fmt.Sprint(i)), Old: 5, Value: []byte("x")}
	}
	answered := make(chan error, 1)
	go func() {
		_, err := s.CompareAndSwap(t.Context(), writes)
		answered <- err
	}()
	select {
	case <-full:
	case <-time.After(10 * time.Second):
		t.Errorf("only %d statements are under way", n.Load())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	out, err := swapIn(ctx, s, driver.Key{Space: driver.Sessions, Name: "beat"}, 5, "x")
	if err != nil || out.Won {
		t.Errorf("a heartbeat: %+v, %v, want to be told that there is nothing", out, err)
	}
	select {
	case <-more:
		t.Errorf("more than %d statements are under way", maxCalls)
	default:
	}
	close(end)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

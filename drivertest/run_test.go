package drivertest_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/memory"
)

// Each of these stores breaks the contract in one way that has been seen in
// the wild, and fails the case named.
var brokenStores = map[string]struct {
	fails string
	spoil func(*broken)
}{
	"zero is absent": {"zero", func(s *broken) {
		s.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			writes = slices.Clone(writes)
			for i := range writes {
				if writes[i].Old == 0 {
					writes[i].Old = driver.IfEmpty
				}
			}
			return s.Store.CompareAndSwap(ctx, writes)
		}
	}},
	"check then act": {"race to follow", func(s *broken) {
		s.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			w := writes[0]
			before, err := s.Store.Load(ctx, []driver.Key{w.Key}, driver.Fresh)
			if err != nil || len(writes) > 1 || before[0].Version != w.Old || w.Old <= 0 {
				return s.Store.CompareAndSwap(ctx, writes)
			}
			for {
				time.Sleep(time.Millisecond)
				o, err := s.Store.CompareAndSwap(ctx, []driver.Write{w})
				if err != nil || o[0].Won {
					return o, err
				}
				w.Old = o[0].Record.Version
			}
		}
	}},
	"losers are told nothing": {"take", func(s *broken) {
		s.answer = func(o []driver.Outcome) {
			for i := range o {
				if !o[i].Won {
					o[i].Record = driver.Record{}
				}
			}
		}
	}},
	"a delete forgets the version": {"versions are kept", func(s *broken) {
		s.read = func(r []driver.Record) {
			for i := range r {
				if len(r[i].Value) == 0 {
					r[i] = driver.Record{}
				}
			}
		}
	}},
	"a batch stops at the first loss": {"batch", func(s *broken) {
		s.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			all := make([]driver.Outcome, len(writes))
			for i := range writes {
				o, err := s.Store.CompareAndSwap(ctx, writes[i:i+1])
				if err != nil {
					return nil, err
				}
				if all[i] = o[0]; !o[0].Won {
					break
				}
			}
			return all, nil
		}
	}},
	"batches do not compare versions": {"batch after old versions", func(s *broken) {
		s.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			writes = slices.Clone(writes)
			for i, w := range writes {
				r, err := s.Store.Load(ctx, []driver.Key{w.Key}, driver.Fresh)
				if err != nil {
					return nil, err
				}
				if len(writes) > 1 && w.Old > 0 && len(r[0].Value) > 0 {
					writes[i].Old = r[0].Version
				}
			}
			return s.Store.CompareAndSwap(ctx, writes)
		}
	}},
	"outcomes are in the order of keys": {"big batch", func(s *broken) {
		s.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			writes = slices.Clone(writes)
			slices.SortFunc(writes, func(a, b driver.Write) int { return strings.Compare(a.Key.Name, b.Key.Name) })
			return s.Store.CompareAndSwap(ctx, writes)
		}
	}},
	"lazy writes are seen later": {"lazy", func(s *broken) {
		s.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			if !writes[0].Lazy {
				return s.Store.CompareAndSwap(ctx, writes)
			}
			return []driver.Outcome{{Won: true, Record: driver.Record{Version: time.Now().UnixMicro(), Value: writes[0].Value}}}, nil
		}
	}},
	"long values are cut": {"value too large", func(s *broken) {
		s.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			writes = slices.Clone(writes)
			for i, w := range writes {
				writes[i].Value = w.Value[:min(len(w.Value), driver.MaxValue)]
			}
			return s.Store.CompareAndSwap(ctx, writes)
		}
	}},
	"names are compared as words": {"strange keys", func(s *broken) { s.rename = strings.ToLower }},
	"names are trimmed":           {"strange keys", func(s *broken) { s.rename = func(n string) string { return "." + strings.TrimRight(n, " ") } }},
	"names end at a zero byte":    {"strange keys", func(s *broken) { s.rename = func(n string) string { n, _, _ = strings.Cut(n, "\x00"); return n + "." } }},
	"names are made UTF-8":        {"strange keys", func(s *broken) { s.rename = func(n string) string { return strings.ToValidUTF8(n, "\ufffd") } }},
	"keys are sorted as words": {"keys", func(s *broken) {
		s.list = func(names []string) {
			slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
		}
	}},
	"ages are in the wrong unit": {"age", func(s *broken) {
		s.read = func(r []driver.Record) {
			for i := range r {
				r[i].Age *= 1000
			}
		}
	}},
	"ages stand still": {"age", func(s *broken) {
		s.read = func(r []driver.Record) {
			for i := range r {
				r[i].Age = 0
			}
		}
	}},
	"only some answers have ages": {"age", func(s *broken) {
		s.answer = func(o []driver.Outcome) {
			for i := range o {
				o[i].Record.Age = -1
			}
		}
	}},
	"notifications name another space":        {"watch", func(s *broken) { s.notification = func(k driver.Key) driver.Key { k.Space = driver.Audits; return k } }},
	"notifications tell no record":            {"watch", func(s *broken) { s.claims = true }},
	"notifications tell what was not written": {"watch", func(s *broken) { s.tells = func(h *driver.Notification) { h.Version, h.Value = 1, "1" } }},
	"notifications are cut": {"watch strange keys", func(s *broken) {
		s.notification = func(k driver.Key) driver.Key { k.Name = k.Name[:min(len(k.Name), 200)]; return k }
	}},
	"a done context is not seen": {"cancelled before", func(s *broken) {
		s.swap = func(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
			return s.Store.CompareAndSwap(context.WithoutCancel(ctx), writes)
		}
	}},
	"stale reads show what was never written": {"stale read of what was", func(s *broken) {
		s.staleRead = func(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
			r, err := s.Load(ctx, keys, driver.Fresh)
			for i := range r {
				r[i].Version++ // a write that may still lose
			}
			return r, err
		}
	}},
	"stale reads stand still": {"stale read catches up", func(s *broken) {
		seen := make(map[driver.Key]driver.Record)
		var mu sync.Mutex
		s.staleRead = func(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
			mu.Lock()
			defer mu.Unlock()
			r, err := s.Load(ctx, keys, driver.Fresh)
			for i := range r {
				if first, ok := seen[keys[i]]; ok {
					r[i] = first
				}
				seen[keys[i]] = r[i]
			}
			return r, err
		}
	}},
	"stale reads are in the order of keys": {"stale read", func(s *broken) {
		s.staleRead = func(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
			keys = slices.Clone(keys)
			slices.SortFunc(keys, func(a, b driver.Key) int { return strings.Compare(a.Name, b.Name) })
			return s.Load(ctx, keys, driver.Fresh)
		}
	}},
	"stale reads have no age": {"stale read age", func(s *broken) {
		s.staleRead = func(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
			r, err := s.Load(ctx, keys, driver.Fresh)
			for i := range r {
				r[i].Age = -1
			}
			return r, err
		}
	}},
	"a stale read with a done context is answered": {"stale read cancelled", func(s *broken) {
		s.staleRead = func(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
			return s.Load(context.WithoutCancel(ctx), keys, driver.Fresh)
		}
	}},
	"single writes have an error of their own": {"take", func(s *broken) {
		s.answer = func(o []driver.Outcome) {
			if len(o) == 1 && !o[0].Won {
				o[0].Err = &driver.BusyError{Err: errors.New("crowded")}
			}
		}
	}},
	"a write is not awaited":          {"await nothing", func(s *broken) { s.awaits = true; s.slow = func(time.Duration) time.Duration { return 0 } }},
	"a write is awaited to the limit": {"await", func(s *broken) { s.awaits, s.deaf = true, true }},
	"a sweep takes all that is empty": {"sweep too young", func(s *broken) { s.idle = func(time.Duration) time.Duration { return 0 } }},
}

// broken is a store whose methods can be bent; a nil func bends nothing.
type broken struct {
	*memory.Store
	swap         func(context.Context, []driver.Write) ([]driver.Outcome, error)
	answer       func([]driver.Outcome)
	read         func([]driver.Record)
	rename       func(string) string
	list         func([]string)
	notification func(driver.Key) driver.Key
	tells        func(*driver.Notification)
	claims       bool // to tell records
	awaits       bool
	slow         func(limit time.Duration) time.Duration
	deaf         bool
	idle         func(time.Duration) time.Duration
	staleRead    func(context.Context, []driver.Key) ([]driver.Record, error)
}

func (s *broken) Traits() driver.Traits {
	return driver.Traits{StaleReads: true, TellsRecords: s.claims, Awaits: s.awaits}
}

func (s *broken) Await(ctx context.Context, key driver.Key, version int64, every, limit time.Duration) (driver.Record, error) {
	if s.slow != nil {
		limit = s.slow(limit)
	}
	for end := time.Now().Add(limit); ; time.Sleep(every) {
		recs, err := s.Load(ctx, []driver.Key{key}, driver.Fresh)
		if err != nil || recs[0].Version != version && !s.deaf || time.Now().After(end) {
			return recs[0], err
		}
	}
}

func (s *broken) key(k driver.Key) driver.Key {
	if s.rename != nil && k.Check() == nil {
		k.Name = s.rename(k.Name)
		k.Name = k.Name[:min(len(k.Name), driver.MaxName)]
	}
	return k
}

func (s *broken) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if how == driver.Stale && s.staleRead != nil {
		return s.staleRead(ctx, keys)
	}
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i] = s.key(keys[i])
	}
	records, err := s.Store.Load(ctx, keys, how)
	if s.read != nil {
		s.read(records)
	}
	return records, err
}

func (s *broken) CompareAndSwap(ctx context.Context, writes []driver.Write) (outcomes []driver.Outcome, err error) {
	if s.rename != nil {
		for _, w := range writes { // one by one: names may be the same now
			w.Key = s.key(w.Key)
			o, err := s.Store.CompareAndSwap(ctx, []driver.Write{w})
			if err != nil {
				return nil, err
			}
			outcomes = append(outcomes, o[0])
		}
		return outcomes, nil
	}
	do := s.Store.CompareAndSwap
	if s.swap != nil && len(writes) > 0 {
		do = s.swap
	}
	outcomes, err = do(ctx, writes)
	if s.answer != nil {
		s.answer(outcomes)
	}
	return outcomes, err
}

func (s *broken) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	names, err := s.Store.Keys(ctx, space, after, n)
	if s.list != nil {
		s.list(names)
	}
	return names, err
}

func (s *broken) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	return s.Store.Watch(ctx, who, func(h driver.Notification) {
		if s.notification != nil {
			h.Key = s.notification(h.Key)
		}
		if s.tells != nil {
			s.tells(&h)
		}
		changed(h)
	})
}

func (s *broken) Sweep(ctx context.Context, idle time.Duration) (int, error) {
	if s.idle != nil {
		idle = s.idle(idle)
	}
	return s.Store.Sweep(ctx, idle)
}

// A ledger is a fence for a store in memory: it asks the record of each lock, and commits if no
// record has changed by then. The flags break it.
type ledger struct {
	driver.Store
	blind, unbound, one, forgetful, exclusive, calm bool

	mu        sync.Mutex
	registers map[string]string
	last      map[string]int64
}

// brokenFences are ways to break a ledger, each with the case that has to fail.
var brokenFences = map[string]struct {
	fails string
	spoil func(*ledger)
}{
	"nothing is asked":              {"released", func(l *ledger) { l.blind = true }},
	"the commit is not bound":       {"between fence and commit", func(l *ledger) { l.unbound = true }},
	"only the first lock is asked":  {"several", func(l *ledger) { l.one = true }},
	"tokens of a claim are all one": {"handed on", func(l *ledger) { l.forgetful = true }},
	"who shares is refused":         {"shared", func(l *ledger) { l.exclusive = true }},
	"who waits is in the way":       {"holder", func(l *ledger) { l.calm = true }},
}

func (l *ledger) fenced() drivertest.Fenced {
	l.Store = memory.New()
	l.registers, l.last = make(map[string]string), make(map[string]int64)
	return drivertest.Fenced{Store: l.Store, Put: l.put, Get: func(_ context.Context, name string) (string, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.registers[name], nil
	}}
}

// ask is the version of each lock's record, and what has to be remembered of it.
func (l *ledger) ask(ctx context.Context, locks []*holdfast.Lock) (versions, next []int64, err error) {
	for i, lock := range locks {
		r, err := l.Store.Load(ctx, []driver.Key{driver.Names.Key(lock.Name())}, driver.Fresh)
		if err != nil {
			return nil, nil, err
		}
		l.mu.Lock()
		last := l.last[lock.Name()]
		l.mu.Unlock()
		if l.forgetful {
			last = 0
		}
		n, err := r[0].Fence(lock.Name(), lock.Token(), last)
		switch {
		case l.exclusive && lock.Slots() != 1, l.calm && r[0].Version != lock.Token():
			err = holdfast.ErrLost
		case l.blind, l.one && i > 0:
			err = nil
		}
		if err != nil {
			return nil, nil, err
		}
		versions, next = append(versions, r[0].Version), append(next, n)
	}
	return versions, next, nil
}

func (l *ledger) put(ctx context.Context, value string, fenced func(), locks ...*holdfast.Lock) error {
	for {
		before, _, err := l.ask(ctx, locks)
		if err != nil {
			return err
		}
		if fenced != nil {
			fenced()
			fenced = nil
		}
		after, next, err := l.ask(ctx, locks)
		if !l.unbound && err != nil {
			return err
		}
		if !l.unbound && !slices.Equal(before, after) {
			continue
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for i, n := range next {
			l.last[locks[i].Name()] = n
		}
		l.registers[locks[0].Name()] = value
		return nil
	}
}

func TestFence(t *testing.T) {
	drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced { return new(ledger).fenced() })
}

// The suite finds what is wrong with a fence.
func TestBrokenFence(t *testing.T) {
	if os.Getenv(brokenHere) != "" {
		for name, b := range brokenFences {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced {
					l := new(ledger)
					b.spoil(l)
					return l.fenced()
				})
			})
		}
		return
	}
	fails := make(map[string]string)
	for name, b := range brokenFences {
		fails[name] = b.fails
	}
	findsBroken(t, fails)
}

// brokenHere is set in the process where what is broken has to fail.
const brokenHere = "HOLDFAST_DRIVERTEST_BROKEN"

// The suite finds what is wrong with a store. It runs in a process of its own,
// as it has to fail there.
func TestBroken(t *testing.T) {
	if os.Getenv(brokenHere) != "" {
		for name, b := range brokenStores {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				drivertest.Run(t, func(t *testing.T) driver.Store {
					s := &broken{Store: memory.New()}
					b.spoil(s)
					return s
				})
			})
		}
		return
	}

	fails := make(map[string]string)
	for name, b := range brokenStores {
		fails[name] = b.fails
	}
	findsBroken(t, fails)
}

// findsBroken runs this test again, in a process of its own, where of what is broken the case
// named has to fail.
func findsBroken(t *testing.T, fails map[string]string) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	// Only the cases that have to fail: others may wait long for what is broken.
	cases := map[string]bool{}
	for _, c := range fails {
		cases[strings.ReplaceAll(c, " ", "_")] = true
	}
	only := "^" + t.Name() + "$/./^(" + strings.Join(slices.Sorted(maps.Keys(cases)), "|") + ")$"
	cmd := exec.Command(os.Args[0], "-test.run="+only, "-test.parallel=16", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), brokenHere+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("the suite finds nothing wrong with anything that is broken")
	}
	for name, c := range fails {
		want := "--- FAIL: " + t.Name() + "/" + strings.ReplaceAll(name+"/"+c, " ", "_") + " ("
		if !strings.Contains(string(out), want) {
			t.Errorf("one where %s passes %q", name, c)
		}
	}
	if strings.Contains(string(out), "DATA RACE") || strings.Contains(string(out), "panic:") {
		t.Errorf("the suite is at fault itself:\n%s", out)
	}
}

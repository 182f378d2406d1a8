package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A fake is a dialect that keeps what it was asked, and fails as it is told.
type fake struct {
	rows  map[string]Row
	asked []string      // "swaps a b"
	tells bool          // a swap what it lost to
	fails []error       // of the next calls
	waits time.Duration // before a call fails
}

var errAgain, errLocked, errUnknown = errors.New("again"), errors.New("locked"), errors.New("unknown")

func (f *fake) ask(what string, ids ...[]byte) error {
	f.asked = append(f.asked, what+" "+string(bytes.Join(ids, []byte(" "))))
	if len(f.fails) == 0 {
		return nil
	}
	err := f.fails[0]
	f.fails = f.fails[1:]
	if err != nil {
		time.Sleep(f.waits)
	}
	return err
}

func (f *fake) Load(_ context.Context, ids [][]byte) (rows []Row, clock int64, err error) {
	if err := f.ask("load", ids...); err != nil {
		return nil, 0, err
	}
	for _, id := range ids {
		if r, ok := f.rows[string(id)]; ok {
			rows = append(rows, r)
		}
	}
	return rows, time.Now().UnixMicro(), nil
}

func (f *fake) Swap(_ context.Context, w Write) (int64, *Row, error) {
	what := "swap"
	if w.Hurry {
		what = "quick swap"
	}
	if err := f.ask(what, w.ID); err != nil {
		return 0, nil, err
	}
	old, there := f.rows[string(w.ID)]
	if w.Old == driver.IfEmpty && len(old.Value) > 0 || w.Old > 0 && (!there || old.Version != w.Old) {
		if f.tells {
			old.Clock = time.Now().UnixMicro()
			return 0, &old, nil
		}
		return 0, nil, nil
	}
	f.rows[string(w.ID)] = Row{ID: w.ID, Version: old.Version + 1, Value: w.Value}
	return old.Version + 1, nil, nil
}

func (f *fake) Swaps(ctx context.Context, ws []Write) (versions []int64, err error) {
	var ids [][]byte
	for _, w := range ws {
		ids = append(ids, w.ID)
	}
	if err := f.ask("swaps", ids...); err != nil {
		return nil, err
	}
	said := f.asked
	for _, w := range ws {
		version, _, _ := f.Swap(ctx, w)
		versions = append(versions, version)
	}
	f.asked = said
	return versions, nil
}

func (f *fake) Keys(context.Context, []byte, []byte, int) ([][]byte, error) { return nil, nil }

func (f *fake) Idle(_ context.Context, after []byte, _ time.Duration, n int) (found []Row, err error) {
	var all []Row
	for _, r := range f.rows {
		if bytes.Compare(r.ID, after) > 0 {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Row) int { return bytes.Compare(a.ID, b.ID) })
	return all[:min(n, len(all))], f.ask("idle")
}

func (f *fake) Remove(_ context.Context, rows []Row) (removed int, err error) {
	if err := f.ask("remove"); err != nil {
		return 0, err
	}
	for _, r := range rows {
		delete(f.rows, string(r.ID))
	}
	return len(rows), nil
}

func (f *fake) Means(err error) Meaning {
	switch err {
	case errAgain:
		return Again
	case errLocked:
		return Locked
	}
	return Ambiguous
}

func fakes() (s *Store, names, beats *fake) {
	names, beats = &fake{rows: map[string]Row{}}, &fake{rows: map[string]Row{}}
	return &Store{Names: names, Beats: beats}, names, beats
}

func write(space driver.Space, name string) driver.Write {
	return driver.Write{Key: driver.Key{Space: space, Name: name}, Old: driver.IfEmpty, Value: []byte(name)}
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: asked for %q, want %q", what, got, want)
	}
}

// Heartbeats have connections of their own, also to learn what they lost to;
// what is not only heartbeats does not take them.
func TestHeartbeatsApart(t *testing.T) {
	for _, test := range []struct {
		what         string
		writes       []driver.Write
		names, beats []string
	}{
		{"a heartbeat", []driver.Write{write(driver.Sessions, "s")}, nil, []string{"swap \x01s"}},
		{"one that loses", []driver.Write{{Key: driver.Key{Space: driver.Sessions, Name: "s"}, Old: 7}}, nil, []string{"swap \x01s", "load \x01s"}},
		{"two", []driver.Write{write(driver.Sessions, "s"), write(driver.Sessions, "t")}, nil, []string{"swaps \x01s \x01t"}},
		{"a claim", []driver.Write{write(driver.Names, "a")}, []string{"swap \x00a"}, nil},
		{"both", []driver.Write{write(driver.Sessions, "s"), write(driver.Names, "a")}, []string{"swaps \x00a \x01s"}, nil},
	} {
		s, names, beats := fakes()
		if _, err := s.CompareAndSwap(t.Context(), test.writes); err != nil {
			t.Fatal(err)
		}
		expect(t, test.what, names.asked, test.names...)
		expect(t, test.what, beats.asked, test.beats...)
	}
}

// A batch takes its locks in the order of ids, whatever that of its writes.
func TestBatchInOrder(t *testing.T) {
	s, names, _ := fakes()
	names.rows["\x00a"] = Row{ID: []byte("\x00a"), Version: 7, Value: []byte("held")}
	out, err := s.CompareAndSwap(t.Context(), []driver.Write{write(0, "c"), write(0, "a"), write(0, "b")})
	if err != nil || !out[0].Won || out[1].Won || !out[2].Won || string(out[1].Record.Value) != "held" {
		t.Errorf("%+v, error %v, want the second to lose", out, err)
	}
	expect(t, "a batch", names.asked, "swaps \x00a \x00b \x00c", "load \x00a")
}

// What was rolled back is tried again, but not for ever; what may have been
// applied never is.
func TestAgain(t *testing.T) {
	for _, n := range []int{1, 2} { // writes
		for _, test := range []struct {
			err   error
			times int // that it fails
			calls int // wanted
			won   bool
		}{
			{errAgain, 1, 2, true},
			{errAgain, attempts - 1, attempts, true},
			{errUnknown, 1, 1, false},
		} {
			s, names, _ := fakes()
			names.fails = slices.Repeat([]error{test.err}, test.times)
			out, err := s.CompareAndSwap(t.Context(), []driver.Write{write(0, "a"), write(0, "b")}[:n])
			if (err == nil) != test.won || err == nil && !out[0].Won || len(names.asked) != test.calls {
				t.Errorf("%d writes, %v %d times: %+v, error %v, after %d calls; want %d", n, test.err, test.times, out, err, len(names.asked), test.calls)
			}
		}
	}
	s, names, _ := fakes()
	names.fails = slices.Repeat([]error{errAgain}, 100)
	if _, err := s.CompareAndSwap(t.Context(), []driver.Write{write(0, "a")}); err != errAgain || len(names.asked) != attempts {
		t.Errorf("error %v after %d calls, want %d", err, len(names.asked), attempts)
	}
}

// Where a row stays locked a batch is written one by one, and only the write to
// that row loses, to what stands there. Those behind it do not wait as long again.
func TestLocked(t *testing.T) {
	s, names, _ := fakes()
	names.rows["\x00b"] = Row{ID: []byte("\x00b"), Version: 7}
	names.fails = []error{errLocked, nil, errLocked}
	out, err := s.CompareAndSwap(t.Context(), []driver.Write{write(0, "a"), write(0, "b"), write(0, "c")})
	if err != nil || !out[0].Won || out[1].Won || !out[2].Won || out[1].Record.Version != 7 {
		t.Errorf("%+v, error %v, want the second to lose to version 7", out, err)
	}
	expect(t, "a batch", names.asked, "swaps \x00a \x00b \x00c", "swap \x00a", "swap \x00b", "quick swap \x00c", "load \x00b")
}

// The writes of a batch that has waited long for a locked row do not wait for it again.
func TestLockedBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for waits, swap := range map[time.Duration]string{lockedBatch: "swap ", lockedBatch + 1: "quick swap "} {
			s, names, _ := fakes()
			names.fails, names.waits = []error{errLocked}, waits
			out, err := s.CompareAndSwap(t.Context(), []driver.Write{write(0, "a"), write(0, "b")})
			if err != nil || !out[0].Won || !out[1].Won {
				t.Errorf("after %v: %+v, error %v, want that both win", waits, out, err)
			}
			expect(t, fmt.Sprintf("a batch that fails after %v", waits), names.asked, "swaps \x00a \x00b", swap+"\x00a", swap+"\x00b")
		}
	})
}

// Many keys are loaded in parts, each key once, and put in the caller's order.
func TestLoadMany(t *testing.T) {
	s, names, _ := fakes()
	var keys []driver.Key
	for i := range 3 * maxLoad {
		k := driver.Key{Name: fmt.Sprint(i % (2*maxLoad + 1))}
		keys = append(keys, k)
		names.rows[string(ID(k))] = Row{ID: ID(k), Version: int64(i%(2*maxLoad+1)) + 1, Value: []byte(k.Name)}
	}
	recs, err := s.Load(t.Context(), keys, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range recs {
		if string(r.Value) != keys[i].Name {
			t.Fatalf("record %d holds %q, want %q", i, r.Value, keys[i].Name)
		}
	}
	if len(names.asked) != 3 {
		t.Errorf("%d loads of %d keys, want 3", len(names.asked), 2*maxLoad+1)
	}
}

// A sweep goes on behind rows that somebody keeps locked.
func TestSweepGoesOn(t *testing.T) {
	s, names, _ := fakes()
	for i := range 2*SweepBatch + 1 {
		id := ID(driver.Key{Name: fmt.Sprintf("%05d", i)})
		names.rows[string(id)] = Row{ID: id, Version: int64(i) + 1}
	}
	names.fails = []error{nil, errLocked}
	if n, err := s.Sweep(t.Context(), 0); n != SweepBatch+1 || err != nil || len(names.rows) != SweepBatch {
		t.Errorf("%d rows removed, %d left, error %v; want all but the first %d removed", n, len(names.rows), err, SweepBatch)
	}
}

// A client that learns from the statement what it lost to learns how old that is too:
// it need not look.
func TestAgeOfWhatWon(t *testing.T) {
	s, names, _ := fakes()
	names.tells = true
	names.rows["\x00a"] = Row{ID: []byte("\x00a"), Version: time.Now().Add(-time.Minute).UnixMicro(), Value: []byte("1")}
	out, err := s.CompareAndSwap(t.Context(), []driver.Write{write(0, "a")})
	if err != nil || out[0].Won || (out[0].Record.Age-time.Minute).Abs() > 10*time.Second {
		t.Errorf("%+v, error %v, want an age of a minute", out, err)
	}
	expect(t, "a write that loses", names.asked, "swap \x00a")
}

// A write that cannot win is not sent.
func TestZeroIsNotSent(t *testing.T) {
	s, names, _ := fakes()
	for _, old := range []int64{0, -2} {
		w := write(0, "a")
		w.Old = old
		if out, err := s.CompareAndSwap(t.Context(), []driver.Write{w, write(0, "b")}); err != nil || out[0].Won {
			t.Errorf("old %d: %+v, error %v", old, out, err)
		}
		names.rows = map[string]Row{}
	}
	expect(t, "two calls", names.asked, "swap \x00b", "load \x00a", "swap \x00b", "load \x00a")
}

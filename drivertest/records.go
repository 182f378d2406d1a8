package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// recordCases are about one record and one writer.
var recordCases = []testCase{
	{
		name: "absent",
		rule: "a key that was never written has Version 0 and the zero Value",
		run: func(h *harness) {
			h.same("a key that was never written", h.load(name("a")), driver.Record{})
		},
	},
	{
		name: "take",
		rule: "IfEmpty wins whatever the version, if the key holds nothing",
		run: func(h *harness) {
			k := name("a")
			first := h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1")})
			h.same("what was written", h.load(k), driver.Record{Version: first.Version, Value: []byte("1")})
			h.same("what a write that won was told", first, h.load(k))

			lost := h.lose(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("2")})
			h.same("what IfEmpty lost to", lost, first)
			h.same("the key after a write that lost", h.load(k), first)

			empty := h.win(driver.Write{Key: k, Old: first.Version})
			h.same("an emptied key", h.load(k), driver.Record{Version: empty.Version})
			again := h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("3")})
			h.same("the key taken again", h.load(k), driver.Record{Version: again.Version, Value: []byte("3")})
			if !(0 < first.Version && first.Version < empty.Version && empty.Version < again.Version) {
				h.Errorf("versions are %d, %d, %d and must grow", first.Version, empty.Version, again.Version)
			}
		},
	},
	{
		name: "empty an empty key",
		rule: "a write that leaves a key empty is a write: it wins by the same rules and has a version",
		run: func(h *harness) {
			k := name("a")
			first := h.win(driver.Write{Key: k, Old: driver.IfEmpty})
			if first.Version <= 0 {
				h.Errorf("version is %d and must be positive", first.Version)
			}
			second := h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte{}})
			third := h.win(driver.Write{Key: k, Old: second.Version})
			if !(first.Version < second.Version && second.Version < third.Version) {
				h.Errorf("versions are %d, %d, %d and must grow", first.Version, second.Version, third.Version)
			}
			h.same("the key", h.load(k), driver.Record{Version: third.Version})
		},
	},
	{
		name: "follow",
		rule: "a write wins if the key has the version that it names, and only then",
		run: func(h *harness) {
			k := name("a")
			first := h.put(k, "1")
			second := h.win(driver.Write{Key: k, Old: first.Version, Value: []byte("2")})
			h.same("what a write that won was told", second, h.load(k))
			for _, old := range []int64{first.Version, second.Version + 1, second.Version - 1, 1, -2, -second.Version, 1<<63 - 1, -1 << 63} {
				if old == second.Version {
					continue
				}
				lost := h.lose(driver.Write{Key: k, Old: old, Value: []byte("3")})
				h.same("what a write lost to", lost, second)
			}
			h.same("the key after writes that lost", h.load(k), second)

			empty := h.win(driver.Write{Key: k, Old: second.Version})
			h.same("what a write to an emptied key lost to", h.lose(driver.Write{Key: k, Old: second.Version, Value: []byte("4")}), empty)
			third := h.win(driver.Write{Key: k, Old: empty.Version, Value: []byte("5")})
			h.same("a key written after the version that emptied it", h.load(k), third)
		},
	},
	{
		name: "zero",
		rule: "Old 0 never wins: a key without a version is written with IfEmpty",
		run: func(h *harness) {
			k := name("a")
			h.same("what Old 0 lost to on an absent key", h.lose(driver.Write{Key: k, Value: []byte("1")}), driver.Record{})
			h.lose(driver.Write{Key: k})
			h.same("the absent key", h.load(k), driver.Record{})
			h.same("what another Old lost to on an absent key", h.lose(driver.Write{Key: k, Old: 1, Value: []byte("1")}), driver.Record{})

			held := h.put(k, "1")
			h.same("what Old 0 lost to", h.lose(driver.Write{Key: k, Value: []byte("2")}), held)
			empty := h.win(driver.Write{Key: k, Old: held.Version})
			h.same("what Old 0 lost to on an emptied key", h.lose(driver.Write{Key: k, Value: []byte("2")}), empty)
		},
	},
	{
		name: "values",
		rule: "a value is up to MaxValue bytes, of any bytes",
		run: func(h *harness) {
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			random := make([]byte, driver.MaxValue)
			for i := range random {
				random[i] = byte(i * i >> 7)
			}
			k := name("a")
			for _, value := range [][]byte{
				{0}, {' '}, []byte("' ' "), []byte(" a "), []byte("{}"), []byte("null"), []byte("\r\n"), {0xff, 0xfe}, {0, 0, 0},
				all, bytes.Repeat(all, 40), bytes.Repeat([]byte{0}, driver.MaxValue), random,
			} {
				won := h.put(k, string(value))
				if !bytes.Equal(won.Value, value) {
					h.Fatalf("a write of %d bytes won with %d other bytes", len(value), len(won.Value))
				}
				h.same("the key", h.load(k), won)
				h.same("what a write lost to", h.lose(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("b")}), won)
			}
		},
	},
	{
		name: "value too large",
		rule: "a value of more than MaxValue bytes is refused with an error, and nothing of the call is written",
		run: func(h *harness) {
			large := driver.Write{Key: name("b"), Old: driver.IfEmpty, Value: make([]byte, driver.MaxValue+1)}
			small := driver.Write{Key: name("a"), Old: driver.IfEmpty, Value: []byte("1")}
			h.refused(large)
			h.refused(small, large)
			h.refused(large, small)
			for _, r := range h.loadAll(large.Key, small.Key) {
				h.same("a key of a refused call", r, driver.Record{})
			}
		},
	},
	{
		name: "copies",
		rule: "the caller's bytes stay the caller's",
		run: func(h *harness) {
			k, value := name("a"), []byte("1")
			won := h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: value})
			if string(value) != "1" {
				h.Errorf("the store changed the caller's value to %q", value)
			}
			value[0] = 'x'
			won.Value[0] = 'y'
			h.load(k).Value[0] = 'z'
			h.lose(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("2")}).Value[0] = 'u'
			if got := string(h.load(k).Value); got != "1" {
				h.Errorf("the key holds %q, want %q", got, "1")
			}
		},
	},
	{
		name: "lazy",
		rule: "Lazy changes only what a crash may take back",
		run: func(h *harness) {
			k := name("a")
			first := h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1"), Lazy: true})
			h.same("the key", h.load(k), first)
			h.same("what a write lost to", h.lose(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("2"), Lazy: true}), first)
			second := h.win(driver.Write{Key: k, Old: first.Version, Value: []byte("2")})
			third := h.win(driver.Write{Key: k, Old: second.Version, Lazy: true})
			h.same("the key", h.load(k), driver.Record{Version: third.Version})
			mixed := h.swapAll(
				driver.Write{Key: k, Old: third.Version, Value: []byte("3")},
				driver.Write{Key: name("b"), Old: driver.IfEmpty, Value: []byte("4"), Lazy: true},
			)
			for i, r := range h.loadAll(k, name("b")) {
				h.same("a key of a batch with lazy and other writes", r, mixed[i].Record)
			}
		},
	},
	{
		name: "age",
		rule: "Age is how long ago the record was written, never negative, or always negative where there is no common clock",
		run:  age,
	},
	{
		name: "reported",
		rule: "Load sees every write that was reported as won before Load was called",
		run:  reported,
	},
}

func age(h *harness) {
	k := name("a")
	won := h.put(k, "1")
	clock := won.Age >= 0
	check := func(what string, r driver.Record) {
		h.Helper()
		if (r.Age >= 0) != clock {
			h.Fatalf("%s is %v old after an age of %v: the store has a clock or has none", what, r.Age, won.Age)
		}
	}
	young := func(what string, r driver.Record) {
		h.Helper()
		check(what, r)
		if r.Age > 10*time.Second {
			h.Fatalf("%s is %v old, and was just written", what, r.Age)
		}
	}
	young("a write that won", won)
	young("a record", h.load(k))
	young("what a write lost to", h.lose(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("2")}))
	if !clock {
		return
	}

	// Ages may be coarse, but must grow, and by no more than the time that passes.
	grow := func(what string) {
		h.Helper()
		began := time.Now()
		first := h.load(k).Age
		if first < 0 {
			h.Fatalf("%s is %v old", what, first)
		}
		for time.Since(began) < 5*time.Second {
			between := h.load(k).Age
			if between < first {
				h.Fatalf("%s was %v old, then %v", what, first, between)
			}
			if limit := first + time.Since(began)*2 + 2*time.Second; between > limit {
				h.Fatalf("%s is %v old, and can be at most %v", what, between, limit)
			}
			if between >= first+10*time.Millisecond {
				return
			}
			time.Sleep(time.Millisecond)
		}
		h.Fatalf("%s does not age", what)
	}
	grow("a record")
	lost := h.lose(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("2")})
	if lost.Age < 10*time.Millisecond {
		h.Errorf("what a write lost to is %v old, want at least the age that a Load showed before", lost.Age)
	}
	young("an emptied key", h.win(driver.Write{Key: k, Old: won.Version}))
	grow("an emptied key")

	// Every write makes the record young again.
	before := h.load(k)
	after := h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("3")})
	young("a record written again", after)
	if before.Age > 5*time.Second && after.Age >= before.Age {
		h.Errorf("a record of %v is %v old after a write", before.Age, after.Age)
	}
}

func reported(h *harness) {
	stores := h.both()
	const writers, rounds = 4, 25
	type report struct {
		key    driver.Key
		record driver.Record
	}
	reports := make(chan report)
	errs := make(chan error, writers)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			k, old := name("writer %d", i), driver.IfEmpty
			for n := range rounds {
				outcomes, err := swap(h.ctx, stores[i%len(stores)], driver.Write{Key: k, Old: old, Value: fmt.Append(nil, n), Lazy: n%2 == 0})
				if err == nil && !outcomes[0].Won {
					err = errors.New("a write with no rival lost")
				}
				if err != nil {
					errs <- err
					return
				}
				old = outcomes[0].Record.Version
				reports <- report{k, outcomes[0].Record}
			}
		})
	}
	go func() { wg.Wait(); close(reports); close(errs) }()

	readers := slices.Clone(stores)
	slices.Reverse(readers)
	n := 0
	for r := range reports {
		got, err := load(h.ctx, readers[n%len(readers)], r.key)
		n++
		if err != nil {
			h.Error(err)
			continue
		}
		if got[0].Version < r.record.Version {
			h.Errorf("%s was reported as %s, then read as %s", describe(r.key), show(r.record), show(got[0]))
		}
	}
	for err := range errs {
		h.Error(err)
	}
}

// refused does a call that has to fail.
func (h *harness) refused(writes ...driver.Write) {
	h.Helper()
	if _, err := h.store.CompareAndSwap(h.ctx, writes); err == nil {
		h.Fatalf("a call that is not allowed was answered")
	} else if h.ctx.Err() != nil {
		h.Fatal(err)
	}
}

package drivertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// batchCases are about many keys in one call.
var batchCases = []testCase{
	{
		name: "load of many",
		rule: "Load of many keys gives each what it gives it alone, whether many records lie between them or few, and whether all are there",
		run: func(h *harness) {
			var writes []driver.Write
			for i := range 170 {
				writes = append(writes, driver.Write{Key: name("%03d", i), Old: driver.IfEmpty, Value: fmt.Appendf(nil, "value %d", i)})
			}
			h.swapAll(writes...)
			alone := make([]driver.Record, len(writes))
			for i, w := range writes {
				alone[i] = h.load(w.Key)
			}
			for _, apart := range []int{1, 2, 5} {
				var keys []driver.Key
				var want []driver.Record
				for i := 0; i < len(writes); i += apart {
					keys = append(keys, writes[i].Key, name("%03d absent", i))
					want = append(want, alone[i], driver.Record{})
				}
				for i, r := range h.loadAll(keys...) {
					h.same(fmt.Sprintf("%d apart, %s", apart, describe(keys[i])), r, want[i])
				}
			}
		},
	},
	{
		name: "nothing",
		rule: "a call with no keys or writes has no records or outcomes",
		run: func(h *harness) {
			h.loadAll()
			h.swapAll()
		},
	},
	{
		name: "batch",
		rule: "each write of a call is attempted independently of the others, and outcomes are in the order of writes",
		run: func(h *harness) {
			held, emptied, absent := h.put(name("m"), "held"), h.put(name("z"), "emptied"), name("a")
			emptied = h.win(driver.Write{Key: name("z"), Old: emptied.Version})
			held2 := h.put(name("c"), "held")
			outcomes := h.swapAll(
				driver.Write{Key: name("z"), Old: driver.IfEmpty, Value: []byte("1")},
				driver.Write{Key: name("m"), Old: driver.IfEmpty, Value: []byte("2")},
				driver.Write{Key: absent, Old: driver.IfEmpty, Value: []byte("3")},
				driver.Write{Key: name("y"), Old: 7, Value: []byte("4")},
				driver.Write{Key: name("c"), Old: held2.Version},
				driver.Write{Key: name("b"), Old: 0, Value: []byte("5")},
			)
			for i, won := range []bool{true, false, true, false, true, false} {
				if outcomes[i].Won != won {
					h.Errorf("write %d: won is %v, want %v", i, outcomes[i].Won, won)
				}
			}
			h.same("what a write lost to", outcomes[1].Record, held)
			if outcomes[0].Record.Version <= emptied.Version {
				h.Errorf("a version does not grow in a batch")
			}
			for i, k := range []driver.Key{name("z"), name("m"), absent, name("y"), name("c"), name("b")} {
				h.same(fmt.Sprintf("the key of write %d", i), h.load(k), outcomes[i].Record)
			}
			for i, want := range []string{"1", "held", "3", "", "", ""} {
				if got := string(outcomes[i].Record.Value); got != want {
					h.Errorf("write %d: the record holds %q, want %q", i, got, want)
				}
			}
		},
	},
	{
		name: "batch after old versions",
		rule: "a write follows its very version also in a batch: one that names another version of a key that is there loses, and is told to what",
		run: func(h *harness) {
			for _, others := range []int{1, 20} {
				was := func(what string) (old, now driver.Record) {
					k := name("%s beside %d", what, others)
					old = h.put(k, "old")
					return old, h.win(driver.Write{Key: k, Old: old.Version, Value: []byte("now")})
				}
				held, heldNow := was("held")
				ahead, aheadNow := was("ahead")
				emptied, emptiedOnce := was("emptied")
				emptiedNow := h.win(driver.Write{Key: name("emptied beside %d", others), Old: emptiedOnce.Version})
				lost := []driver.Record{heldNow, aheadNow, emptiedNow}
				writes := []driver.Write{
					{Key: name("held beside %d", others), Old: held.Version, Value: []byte("late")},
					{Key: name("ahead beside %d", others), Old: aheadNow.Version + (aheadNow.Version - ahead.Version), Value: []byte("early")},
					{Key: name("emptied beside %d", others), Old: emptied.Version, Value: []byte("late")},
				}
				for i := range others {
					k := name("other %d of %d", i, others)
					writes = append(writes, driver.Write{Key: k, Old: h.put(k, "before").Version, Value: []byte("after")})
				}
				outcomes := h.swapAll(writes...)
				for i, o := range outcomes {
					if want := i >= len(lost); o.Won != want {
						h.Fatalf("%s after version %d: won is %v with %s, want %v", describe(writes[i].Key), writes[i].Old, o.Won, show(o.Record), want)
					}
					if i < len(lost) {
						h.same("what a write lost to", o.Record, lost[i])
					}
					h.same(describe(writes[i].Key), h.load(writes[i].Key), o.Record)
				}
			}
		},
	},
	{
		name: "batch of all spaces",
		rule: "keys of different spaces are different keys, also in one call",
		run: func(h *harness) {
			var writes []driver.Write
			var keys []driver.Key
			for _, space := range spaces {
				k := driver.Key{Space: space, Name: "a"}
				keys = append(keys, k)
				writes = append(writes, driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte(space.String())})
			}
			for i, o := range h.swapAll(writes...) {
				if !o.Won || string(o.Record.Value) != keys[i].Space.String() {
					h.Errorf("%s: won is %v with %s", describe(keys[i]), o.Won, show(o.Record))
				}
			}
			for i, r := range h.loadAll(keys...) {
				if got, want := string(r.Value), keys[i].Space.String(); got != want {
					h.Errorf("%s holds %q, want %q", describe(keys[i]), got, want)
				}
			}
		},
	},
	{
		name: "big batch",
		rule: "a call may have many writes, in any order of keys",
		run: func(h *harness) {
			const n = 500
			order := rand.New(rand.NewPCG(1, 2)).Perm(n)
			writes := make([]driver.Write, n)
			keys := make([]driver.Key, n)
			for i, j := range order {
				keys[i] = name("key %d", j)
				writes[i] = driver.Write{Key: keys[i], Old: driver.IfEmpty, Value: fmt.Append(nil, j)}
			}
			first := h.swapAll(writes...)
			for i, o := range first {
				if !o.Won {
					h.Fatalf("write %d of %d lost to %s", i, n, show(o.Record))
				}
			}
			// Every second one follows, the others come too late.
			for i := range writes {
				writes[i].Value = fmt.Append(nil, "again ", order[i])
				if i%2 == 0 {
					writes[i].Old = first[i].Record.Version
				}
			}
			second := h.swapAll(writes...)
			for i, r := range h.loadAll(keys...) {
				want := first[i].Record
				if i%2 == 0 {
					want = driver.Record{Version: second[i].Record.Version, Value: writes[i].Value}
				}
				if second[i].Won != (i%2 == 0) {
					h.Fatalf("write %d: won is %v", i, second[i].Won)
				}
				h.same(fmt.Sprintf("outcome %d", i), second[i].Record, want)
				h.same(describe(keys[i]), r, want)
			}
		},
	},
	{
		name: "load many",
		rule: "Load returns the record of each key, in order",
		run: func(h *harness) {
			const n = 1000
			var writes []driver.Write
			for i := range n / 2 {
				writes = append(writes, driver.Write{Key: name("key %d", 2*i), Old: driver.IfEmpty, Value: fmt.Append(nil, 2*i), Lazy: true})
			}
			h.swapAll(writes...)
			keys := make([]driver.Key, n)
			order := rand.New(rand.NewPCG(3, 4)).Perm(n)
			for i, j := range order {
				keys[i] = name("key %d", j)
			}
			for i, r := range h.loadAll(keys...) {
				want := ""
				if order[i]%2 == 0 {
					want = fmt.Sprint(order[i])
				}
				if got := string(r.Value); got != want || (r.Version == 0) != (want == "") {
					h.Fatalf("record %d is %s, want %q", i, show(r), want)
				}
			}
		},
	},
	{
		name: "load twice",
		rule: "a key may be loaded twice in one call",
		run: func(h *harness) {
			want := h.put(name("b"), "1")
			for i, r := range h.loadAll(name("b"), name("a"), name("b"), name("b")) {
				if i == 1 {
					h.same("an absent key", r, driver.Record{})
					continue
				}
				h.same("a key that is loaded three times", r, want)
			}
		},
	},
	{
		name: "batches that overlap",
		rule: "batches of the same keys in different orders end, and one write wins each key",
		run:  overlap,
	},
	{
		name: "heartbeats do not wait",
		rule: "a batch of Sessions keys does not wait behind other batches",
		run:  heartbeats,
	},
}

var spaces = []driver.Space{driver.Names, driver.Sessions, driver.Settings, driver.Audits, driver.Histories}

func overlap(h *harness) {
	const rivals, n, rounds = 8, 12, 8
	stores := h.both()
	for round := range rounds {
		outcomes := make([][]driver.Outcome, rivals)
		h.each(rivals, func(i int) error {
			random := rand.New(rand.NewPCG(uint64(round), uint64(i)))
			writes := make([]driver.Write, n)
			order := random.Perm(n)
			for at, j := range order {
				writes[at] = driver.Write{Key: name("round %d key %d", round, j), Old: driver.IfEmpty, Value: fmt.Append(nil, i)}
			}
			got, err := contend(h.ctx, stores[i%len(stores)], writes...)
			if err != nil {
				return err
			}
			outcomes[i] = make([]driver.Outcome, n)
			for at, j := range order {
				outcomes[i][j] = got[at]
			}
			return nil
		})
		for j := range n {
			k, told := name("round %d key %d", round, j), make([]driver.Outcome, rivals)
			for i := range rivals {
				told[i] = outcomes[i][j]
			}
			winners := 0
			if _, unsure := h.settle(told, driver.Write{Key: k, Old: driver.IfEmpty}); unsure {
				winners++
			}
			now := h.load(k)
			for i := range rivals {
				if told[i].Err != nil {
					continue
				}
				if outcomes[i][j].Won {
					winners++
					if string(now.Value) != fmt.Sprint(i) {
						h.Errorf("rival %d won a key that holds %q", i, now.Value)
					}
				}
				h.same("what a rival was told", outcomes[i][j].Record, now)
			}
			if winners != 1 {
				h.Fatalf("%d batches won the same key, want 1", winners)
			}
		}
	}
}

// heartbeats writes a session's record while big batches keep the store busy.
func heartbeats(h *harness) {
	ctx, stop := context.WithCancel(h.ctx)
	busy := make(chan error, 1)
	big := make([]driver.Write, 200)
	for i := range big {
		big[i] = driver.Write{Key: name("key %d", i), Old: driver.IfEmpty, Value: make([]byte, 1000), Lazy: true}
	}
	go func() {
		for ctx.Err() == nil {
			if _, err := contend(h.ctx, h.store, big...); err != nil {
				busy <- err
				return
			}
		}
		busy <- nil
	}()
	k, old, worst := driver.Key{Space: driver.Sessions, Name: "s"}, driver.IfEmpty, time.Duration(0)
	for range 20 {
		sent := time.Now()
		old = h.win(driver.Write{Key: k, Old: old, Value: []byte("beat")}).Version
		worst = max(worst, time.Since(sent))
	}
	stop()
	if err := <-busy; err != nil {
		h.Error(err)
	}
	if worst > holdfast.DefaultTTL {
		h.Errorf("a heartbeat took %v while other batches were written", worst)
	}
}

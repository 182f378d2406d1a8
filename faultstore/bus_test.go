package faultstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/memory"
)

// A bus without faults is a store like any other.
func TestNoFaults(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) driver.Store {
		bus := faultstore.NewBus(memory.New(), 1, faultstore.Faults{})
		t.Cleanup(bus.Close)
		return reopened{bus.Process("one"), bus}
	})
}

type reopened struct {
	*faultstore.Process
	bus *faultstore.Bus
}

func (r reopened) Reopen(*testing.T) driver.Store { return r.bus.Process("two") }

// Being slow and doing batches in parts, a store still keeps the contract.
func TestSlow(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	drivertest.Run(t, func(t *testing.T) driver.Store {
		bus := faultstore.NewBus(memory.New(), 1, faultstore.Faults{
			Delay: 100 * time.Microsecond, SlowReply: 100 * time.Microsecond, Split: 0.02, DoubleNotification: 0.3, DelayNotification: 10 * time.Millisecond,
		})
		t.Cleanup(bus.Close)
		return reopened{bus.Process("one"), bus}
	})
}

// Without notifications and a clock it is a store that promises less.
func TestPlain(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) driver.Store {
		return faultstore.NewBus(memory.New(), 1, faultstore.Faults{NoClock: true}).Process("one").Plain()
	})
}

var key = driver.Key{Name: "a"}

// write is one attempt to take the key.
func take(value string) []driver.Write {
	return []driver.Write{{Key: key, Old: driver.IfEmpty, Value: []byte(value)}}
}

// inBubble runs a test with a bus whose waiting takes no time.
func inBubble(t *testing.T, f faultstore.Faults, test func(t *testing.T, bus *faultstore.Bus, inner *memory.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		bus := faultstore.NewBus(inner, 7, f)
		defer bus.Close()
		test(t, bus, inner)
	})
}

func holds(t *testing.T, s driver.Store, want string) {
	t.Helper()
	records, err := s.Load(context.Background(), []driver.Key{key}, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(records[0].Value); got != want {
		t.Fatalf("the key holds %q, want %q", got, want)
	}
}

func fails(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func TestLose(t *testing.T) {
	inBubble(t, faultstore.Faults{Lose: 1}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p := bus.Process("p")
		_, err := p.CompareAndSwap(t.Context(), take("1"))
		fails(t, err, faultstore.ErrFault)
		_, err = p.Load(t.Context(), []driver.Key{key}, driver.Fresh)
		fails(t, err, faultstore.ErrFault)
		bus.Settle()
		holds(t, inner, "")
	})
}

func TestLoseReply(t *testing.T) {
	inBubble(t, faultstore.Faults{LoseReply: 1}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		_, err := bus.Process("p").CompareAndSwap(t.Context(), take("1"))
		fails(t, err, faultstore.ErrFault)
		holds(t, inner, "1")
	})
}

func TestLate(t *testing.T) {
	inBubble(t, faultstore.Faults{Late: 1, LateBy: time.Minute}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p := bus.Process("p")
		_, err := p.CompareAndSwap(t.Context(), take("late"))
		fails(t, err, faultstore.ErrFault)
		holds(t, inner, "")
		bus.SetFaults(faultstore.Faults{})
		time.Sleep(time.Minute)
		holds(t, p, "late")

		// A late write competes like any other.
		bus.SetFaults(faultstore.Faults{Late: 1})
		record, _ := inner.Load(t.Context(), []driver.Key{key}, driver.Fresh)
		_, err = p.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: record[0].Version, Value: []byte("later")}})
		fails(t, err, faultstore.ErrFault)
		inner.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: record[0].Version, Value: []byte("first")}})
		bus.Settle()
		holds(t, inner, "first")
	})
}

func TestHang(t *testing.T) {
	inBubble(t, faultstore.Faults{Lose: 1, Hang: 1}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		_, err := bus.Process("p").CompareAndSwap(ctx, take("1"))
		fails(t, err, context.DeadlineExceeded)
		if took := time.Since(began); took != time.Hour {
			t.Errorf("the call hung for %v, want until its context was done", took)
		}
	})
}

// What a slow Load tells is what was true when it was read.
func TestStale(t *testing.T) {
	inBubble(t, faultstore.Faults{SlowReply: time.Second}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p := bus.Process("p")
		p.At(1, faultstore.AfterApply, func() { inner.CompareAndSwap(t.Context(), take("1")) })
		began := time.Now()
		holds(t, p, "")
		if took := time.Since(began); took == 0 || took > time.Second {
			t.Errorf("the answer took %v, want up to a second", took)
		}
		holds(t, p, "1")
	})
}

// A call that is given up may arrive, now or later, or not.
func TestGivenUp(t *testing.T) {
	inBubble(t, faultstore.Faults{Delay: time.Second}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		arrived := map[bool]int{}
		for i := range 40 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
			k := driver.Key{Name: fmt.Sprint(i)}
			_, err := bus.Process(fmt.Sprint("p", i)).CompareAndSwap(ctx, []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1")}})
			cancel()
			fails(t, err, context.DeadlineExceeded)
			bus.Settle()
			records, _ := inner.Load(t.Context(), []driver.Key{k}, driver.Fresh)
			arrived[records[0].Version > 0]++
		}
		if arrived[true] == 0 || arrived[false] == 0 {
			t.Errorf("of 40 calls %d arrived, want some", arrived[true])
		}
	})
}

func batch(n int) (keys []driver.Key, writes []driver.Write) {
	for i := range n {
		k := driver.Key{Name: fmt.Sprint("key ", i)}
		keys = append(keys, k)
		writes = append(writes, driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1")})
	}
	return keys, writes
}

func count(t *testing.T, s driver.Store) int {
	t.Helper()
	names, err := s.Keys(context.Background(), driver.Names, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestSplit(t *testing.T) {
	inBubble(t, faultstore.Faults{Split: 1, Delay: time.Second}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		_, writes := batch(20)
		done := make(chan bool)
		go func() {
			defer close(done)
			outcomes, err := bus.Process("p").CompareAndSwap(t.Context(), writes)
			if err != nil {
				t.Error(err)
			}
			for i, o := range outcomes {
				if !o.Won {
					t.Errorf("write %d lost to %v", i, o.Record)
				}
			}
		}()
		seen := map[int]bool{}
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			seen[count(t, inner)] = true
		}
		<-done
		if len(seen) < 10 {
			t.Errorf("a batch of 20 was seen in %d states, want many", len(seen))
		}
	})
}

func TestPartial(t *testing.T) {
	inBubble(t, faultstore.Faults{Partial: 1}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		_, writes := batch(30)
		_, err := bus.Process("p").CompareAndSwap(t.Context(), writes)
		fails(t, err, faultstore.ErrFault)
		first := count(t, inner)
		bus.Settle()
		second := count(t, inner)
		if !(0 < first && first < second && second < 30) {
			t.Errorf("of 30 writes %d were applied, and %d in the end; want some applied, some late and some lost", first, second)
		}
	})
}

func TestPause(t *testing.T) {
	inBubble(t, faultstore.Faults{}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p := bus.Process("p")
		p.Pause()
		done := make(chan error, 1)
		go func() {
			_, err := p.CompareAndSwap(t.Context(), take("1"))
			done <- err
		}()
		time.Sleep(time.Hour)
		holds(t, inner, "")
		p.At(1, faultstore.AfterApply, p.Pause)
		p.Resume()
		time.Sleep(time.Hour)
		holds(t, inner, "1")
		select {
		case err := <-done:
			t.Fatalf("an answer came to a process that is paused, error %v", err)
		default:
		}
		p.Resume()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestPartition(t *testing.T) {
	inBubble(t, faultstore.Faults{}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p := bus.Process("p")
		p.Partition(true)
		ended := map[error]bool{}
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := p.CompareAndSwap(ctx, take("1"))
			cancel()
			for _, want := range []error{faultstore.ErrFault, context.DeadlineExceeded} {
				if errors.Is(err, want) {
					ended[want] = true
				}
			}
		}
		if len(ended) != 2 {
			t.Errorf("calls of a process that is cut off end with %v, want some to fail and some to hang", ended)
		}
		bus.Settle()
		holds(t, inner, "")
		p.Partition(false)
		holds(t, p, "")
	})
}

// A crash at a point of a call leaves the store as it was before or is after it.
func TestCrashAt(t *testing.T) {
	for _, c := range []struct {
		call  int
		point faultstore.Point
		want  string
	}{
		{1, faultstore.BeforeApply, ""},
		{1, faultstore.AfterApply, "1"},
		{2, faultstore.BeforeApply, "1"},
		{2, faultstore.AfterApply, "1"},
		{3, faultstore.BeforeApply, "1"},
		{3, faultstore.AfterApply, ""},
		{4, faultstore.BeforeApply, ""},
	} {
		t.Run(fmt.Sprint(c.call, " ", c.point), func(t *testing.T) {
			inBubble(t, faultstore.Faults{}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
				p := bus.Process("p")
				p.CrashAt(c.call, c.point)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var err error
				var records []driver.Record
				if _, err = p.CompareAndSwap(ctx, take("1")); err == nil {
					if records, err = p.Load(ctx, []driver.Key{key}, driver.Fresh); err == nil {
						_, err = p.CompareAndSwap(ctx, []driver.Write{{Key: key, Old: records[0].Version}})
					}
				}
				if c.call <= 3 {
					fails(t, err, context.DeadlineExceeded)
				} else if err != nil {
					t.Fatal(err)
				}
				if got, want := len(p.Calls()), min(c.call, 3); got != want {
					t.Errorf("the process has made %d calls, want %d: %q", got, want, p.Calls())
				}
				bus.Settle()
				holds(t, inner, c.want)
			})
		})
	}
}

// A call that fails at a point has happened, or has not.
func TestFailAt(t *testing.T) {
	inBubble(t, faultstore.Faults{}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p := bus.Process("p")
		p.FailAt(1, faultstore.BeforeApply)
		p.FailAt(2, faultstore.AfterApply)
		_, err := p.CompareAndSwap(t.Context(), take("1"))
		fails(t, err, faultstore.ErrFault)
		holds(t, inner, "")
		_, err = p.CompareAndSwap(t.Context(), take("2"))
		fails(t, err, faultstore.ErrFault)
		holds(t, p, "2")
	})
}

// A crash of the store loses lazy writes, newest first, and nothing else.
func TestCrashStore(t *testing.T) {
	lost := map[string]int{}
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			bus := faultstore.NewBus(memory.New(), seed, faultstore.Faults{})
			defer bus.Close()
			p := bus.Process("p")
			old := driver.IfEmpty
			var records []driver.Record
			for i, lazy := range []bool{true, false, true, true} {
				o, err := p.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: old, Value: fmt.Append(nil, i), Lazy: lazy}})
				if err != nil || !o[0].Won {
					t.Fatal(o, err)
				}
				old, records = o[0].Record.Version, append(records, o[0].Record)
				time.Sleep(100 * time.Millisecond)
			}
			n := bus.CrashStore()
			got, err := p.Load(t.Context(), []driver.Key{key}, driver.Fresh)
			if err != nil {
				t.Fatal(err)
			}
			lost[string(got[0].Value)]++
			if want := records[3-n]; got[0].Version != want.Version {
				t.Errorf("%d writes were lost, and the key is %+v, want %+v", n, got[0], want)
			}
			if want := time.Duration(n+1) * 100 * time.Millisecond; got[0].Age != want {
				t.Errorf("the key is %v old, want %v", got[0].Age, want)
			}
		})
	}
	if lost["0"] > 0 || lost["1"] == 0 || lost["2"] == 0 || lost["3"] == 0 {
		t.Errorf("after crashes the key held %v, want each from the last durable write on", lost)
	}

	// What is old or was never lazy stays, and calls on their way fail.
	inBubble(t, faultstore.Faults{Delay: time.Hour}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		inner.CompareAndSwap(t.Context(), take("1"))
		p, done := bus.Process("p"), make(chan error)
		go func() {
			_, err := p.Load(t.Context(), []driver.Key{key}, driver.Fresh)
			done <- err
		}()
		synctest.Wait()
		if n := bus.CrashStore(); n != 0 {
			t.Errorf("%d durable writes were lost", n)
		}
		fails(t, <-done, faultstore.ErrFault)
		holds(t, inner, "1")
	})
}

func TestJump(t *testing.T) {
	inBubble(t, faultstore.Faults{}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p := bus.Process("p")
		age := func() time.Duration {
			r, err := p.Load(t.Context(), []driver.Key{key}, driver.Fresh)
			if err != nil {
				t.Fatal(err)
			}
			return r[0].Age
		}
		p.CompareAndSwap(t.Context(), take("1"))
		time.Sleep(time.Second)
		bus.Jump(time.Hour)
		if got, want := age(), time.Hour+time.Second; got != want {
			t.Errorf("the record is %v old, want %v", got, want)
		}
		bus.Jump(-2 * time.Hour)
		if got := age(); got != 0 {
			t.Errorf("the record is %v old, want nothing below 0", got)
		}
		bus.SetFaults(faultstore.Faults{NoClock: true})
		if got := age(); got >= 0 {
			t.Errorf("the record is %v old, and there is no clock", got)
		}
	})
}

// Notifications are lost, doubled and late, and end when the store crashes.
func TestNotifications(t *testing.T) {
	inBubble(t, faultstore.Faults{LoseNotification: 0.3, DoubleNotification: 0.3, DelayNotification: time.Second}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p, done := bus.Process("p"), make(chan error)
		heard := map[string]int{}
		began, latest := time.Now(), time.Duration(0)
		go func() {
			done <- p.Watch(t.Context(), nil, func(k driver.Notification) {
				heard[k.Name]++
				latest = time.Since(began)
			})
		}()
		synctest.Wait()
		_, writes := batch(100)
		for i := range writes {
			writes[i].Notify = driver.Everyone
		}
		inner.CompareAndSwap(t.Context(), writes)
		time.Sleep(time.Minute)
		synctest.Wait()
		times := map[int]int{0: len(writes) - len(heard)}
		for _, n := range heard {
			times[n]++
		}
		if times[0] == 0 || times[1] == 0 || times[2] == 0 || len(times) > 3 {
			t.Errorf("keys were told so many times: %v, want some never, some once, some twice", times)
		}
		if latest == 0 || latest > time.Second {
			t.Errorf("the last notification came after %v, want up to a second", latest)
		}

		clear(heard)
		p.Partition(true)
		inner.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone}})
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(heard) != 0 {
			t.Errorf("a process that is cut off heard of %v", heard)
		}
		bus.CrashStore()
		fails(t, <-done, faultstore.ErrFault)
	})
}

// What happens to a call depends on its process and number, whatever others do.
func TestSeeds(t *testing.T) {
	run := func(seed uint64, others int) (story []string) {
		synctest.Test(t, func(t *testing.T) {
			f := faultstore.Faults{Delay: time.Second, Lose: 0.2, LoseReply: 0.2, Late: 0.2, Split: 0.3, Partial: 0.3}
			bus := faultstore.NewBus(memory.New(), seed, f)
			defer bus.Close()
			p, q := bus.Process("p"), bus.Process("q")
			keys, writes := batch(3)
			for i := range 30 {
				for range others {
					q.Load(t.Context(), keys, driver.Fresh)
					q.CompareAndSwap(t.Context(), take("1"))
				}
				if i%2 == 0 && others > 0 {
					p.Keys(t.Context(), driver.Names, "", 1) // another kind has its own chances
				}
				began := time.Now()
				_, err := p.CompareAndSwap(t.Context(), writes)
				story = append(story, fmt.Sprint(time.Since(began), err))
				began = time.Now()
				_, err = p.Load(t.Context(), keys, driver.Fresh)
				story = append(story, fmt.Sprint(time.Since(began), err))
			}
		})
		return story
	}
	first := run(1, 0)
	if !slices.Equal(first, run(1, 2)) {
		t.Errorf("the same seed makes other faults when others call too")
	}
	if slices.Equal(first, run(2, 0)) {
		t.Errorf("another seed makes the same faults")
	}
}

// Close ends what hangs.
func TestClose(t *testing.T) {
	inBubble(t, faultstore.Faults{}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p, done := bus.Process("p"), make(chan error)
		p.Crash()
		go func() {
			_, err := p.Load(context.Background(), []driver.Key{key}, driver.Fresh)
			done <- err
		}()
		go func() { done <- p.Watch(context.Background(), nil, func(driver.Notification) {}) }()
		synctest.Wait()
		bus.Close()
		fails(t, <-done, faultstore.ErrFault)
		fails(t, <-done, faultstore.ErrFault)
		_, err := bus.Process("q").Load(t.Context(), []driver.Key{key}, driver.Fresh)
		fails(t, err, faultstore.ErrFault)
	})
}

package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/memory"
)

func TestStore(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) driver.Store { return twice{memory.New()} })
}

// twice lets the suite open the store a second time over the same records.
type twice struct{ *memory.Store }

func (s twice) Reopen(*testing.T) driver.Store { return s.Store }

func BenchmarkStore(b *testing.B) {
	drivertest.Bench(b, func(b *testing.B) driver.Store { return memory.New() })
}

var jobs = driver.Key{Name: "jobs"}

// The clock of a store is the one of the bubble it is used in.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		began := time.Now()
		o := swap(t, s, driver.Write{Key: jobs, Old: driver.IfEmpty, Value: []byte("a")})
		if got, want := o.Record.Version, began.UnixMicro(); got != want {
			t.Errorf("version is %d, want the clock in µs, %d", got, want)
		}
		time.Sleep(time.Hour)
		if got := load(t, s, jobs); got.Age != time.Hour {
			t.Errorf("after an hour a record is %v old", got.Age)
		}
	})
}

// A caller may do what it likes with its bytes, before and after.
func TestCopies(t *testing.T) {
	s := memory.New()
	value := []byte("a")
	o := swap(t, s, driver.Write{Key: jobs, Old: driver.IfEmpty, Value: value})
	value[0] = 'b'
	o.Record.Value[0] = 'c'
	load(t, s, jobs).Value[0] = 'd'
	if got := string(load(t, s, jobs).Value); got != "a" {
		t.Errorf("the store holds %q, want what was written, %q", got, "a")
	}
}

// A watcher that does not listen holds up nobody, and then hears that it has
// missed something.
func TestWatchOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		listen := make(chan bool)
		heard := map[driver.Notification]int{}
		go s.Watch(ctx, nil, func(k driver.Notification) {
			<-listen
			heard[k]++
		})
		synctest.Wait()

		wake := func(name string) {
			swap(t, s, driver.Write{Key: driver.Key{Name: name}, Old: driver.IfEmpty, Value: []byte("a"), Notify: driver.Everyone})
		}
		for i := range 5000 {
			wake("name " + time.Duration(i).String())
		}
		close(listen)
		synctest.Wait()
		// The first zero key says that it listens, the second stands for too many.
		if len(heard) != 1 || heard[driver.Notification{}] != 2 {
			t.Errorf("heard of %d keys, want two zero keys alone", len(heard))
		}

		wake("last")
		synctest.Wait()
		if heard[driver.Notification{Key: driver.Key{Name: "last"}, To: driver.Everyone}] != 1 {
			t.Errorf("heard nothing of a write after too many")
		}
	})
}

// Restore gives a key the record it had, age and all.
func TestRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		swap(t, s, driver.Write{Key: jobs, Old: driver.IfEmpty, Value: []byte("a")})
		time.Sleep(time.Second)
		old := load(t, s, jobs)
		swap(t, s, driver.Write{Key: jobs, Old: old.Version, Value: []byte("b")})

		s.Restore(jobs, old)
		if got := load(t, s, jobs); got.Version != old.Version || string(got.Value) != "a" || got.Age != time.Second {
			t.Errorf("got %+v, want %+v", got, old)
		}
		s.Restore(jobs, driver.Record{})
		if got := load(t, s, jobs); got.Version != 0 || got.Value != nil || got.Age != 0 {
			t.Errorf("got %+v, want nothing", got)
		}
	})
}

func swap(t *testing.T, s driver.Store, w driver.Write) driver.Outcome {
	t.Helper()
	outcomes, err := s.CompareAndSwap(context.Background(), []driver.Write{w})
	if err != nil {
		t.Fatal(err)
	}
	return outcomes[0]
}

func load(t *testing.T, s driver.Store, k driver.Key) driver.Record {
	t.Helper()
	records, err := s.Load(context.Background(), []driver.Key{k}, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	return records[0]
}

func TestFence(t *testing.T) {
	drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced { return drivertest.Gated(memory.New(), nil) })
}

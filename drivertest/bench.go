package drivertest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// Bench measures what a Client does most with a store. open returns a store
// that nothing was written to.
func Bench(b *testing.B, open func(b *testing.B) driver.Store) {
	must := func(b *testing.B, s driver.Store, writes ...driver.Write) []driver.Outcome {
		outcomes, err := swap(b.Context(), s, writes...)
		if err != nil {
			b.Fatal(err)
		}
		for _, o := range outcomes {
			if !o.Won {
				b.Fatalf("a write with no rival lost to %s", show(o.Record))
			}
		}
		return outcomes
	}

	// One lock, taken and given back, by one client.
	b.Run("lock", func(b *testing.B) {
		s, k := open(b), name("a")
		for b.Loop() {
			taken := must(b, s, driver.Write{Key: k, Old: driver.IfEmpty, Value: make([]byte, 100)})
			must(b, s, driver.Write{Key: k, Old: taken[0].Record.Version, Lazy: true})
		}
	})
	// The same by many clients, each with its own lock.
	b.Run("locks", func(b *testing.B) {
		s := open(b)
		var client atomic.Int64
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			k := name("client %d", client.Add(1))
			for pb.Next() {
				taken, err := swap(b.Context(), s, driver.Write{Key: k, Old: driver.IfEmpty, Value: make([]byte, 100)})
				if err == nil {
					_, err = swap(b.Context(), s, driver.Write{Key: k, Old: taken[0].Record.Version, Lazy: true})
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	// 64 locks at once, as a busy client gathers them.
	b.Run("batch", func(b *testing.B) {
		s := open(b)
		writes := make([]driver.Write, 64)
		for b.Loop() {
			for i := range writes {
				writes[i] = driver.Write{Key: name("key %d", i), Old: driver.IfEmpty, Value: make([]byte, 100)}
			}
			for i, o := range must(b, s, writes...) {
				writes[i] = driver.Write{Key: writes[i].Key, Old: o.Record.Version, Lazy: true}
			}
			must(b, s, writes...)
		}
	})
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("load/%d", n), func(b *testing.B) {
			s := open(b)
			var keys []driver.Key
			for i := range n {
				keys = append(keys, name("key %d", i))
				must(b, s, driver.Write{Key: keys[i], Old: driver.IfEmpty, Value: make([]byte, 100)})
			}
			for b.Loop() {
				if _, err := load(b.Context(), s, keys...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("heartbeat", func(b *testing.B) {
		s, k, old := open(b), driver.Key{Space: driver.Sessions, Name: "s"}, driver.IfEmpty
		for b.Loop() {
			old = must(b, s, driver.Write{Key: k, Old: old, Value: make([]byte, 100)})[0].Record.Version
		}
	})
}

package claims

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A lock is no compare-and-swap, even one that keeps every promise: who holds
// "follow version 7" writes 8, and if that write takes longer than the lock
// lasts, another holds it by then and writes another 8. Both have an answer, and
// both answers say that this caller, and nobody else, followed 7. So there is no Store on
// claims.
func TestLockIsNoCompareAndSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		var record atomic.Value
		record.Store("7")
		follow := func(l *Locker, value string, slow time.Duration) (told bool) {
			ctx := context.Background()
			lock, err := l.Acquire(ctx, []byte("follow 7"), []byte("a"))
			if err != nil {
				t.Fatal(err)
			}
			if record.Load() != "7" {
				return false
			}
			time.Sleep(slow) // on its way to the table, or in it
			record.Store(value)
			lock.Release(ctx)
			return true
		}
		opts := Options{Expire: 10 * time.Second}
		first, second := locker(t, x, "first", &wall{}, opts), locker(t, x, "second", &wall{}, opts)
		told := make(chan bool)
		go func() {
			time.AfterFunc(time.Second, func() { x.cut("first") }) // so its claim lapses
			told <- follow(first, "8 of the first", time.Minute)
		}()
		time.Sleep(2 * time.Second)
		if !follow(second, "8 of the second", 0) {
			t.Fatal("the second did not get the lock")
		}
		if record.Load() != "8 of the second" {
			t.Fatalf("the second was told that its write was done, and the record is %q", record.Load())
		}
		if !<-told || record.Load() != "8 of the first" {
			t.Errorf("the record is %q; two should have been told that they followed 7", record.Load())
		}
	})
}

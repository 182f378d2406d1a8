package clienttest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// BenchList measures how long it takes to list 10,000 locks that 100 programs hold.
func BenchList(b *testing.B, open func(b *testing.B) driver.Store) {
	const programs, locks = 100, 100
	s := open(b)
	var wait sync.WaitGroup
	for p := range programs {
		c, err := holdfast.New(s, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		for i := range locks {
			wait.Go(func() {
				if _, err := c.Acquire(b.Context(), fmt.Sprintf("tenant/%d/%d", p, i), holdfast.Reason("nightly import")); err != nil {
					b.Error(err)
				}
			})
		}
		wait.Wait()
	}
	looker, err := holdfast.New(s, &holdfast.Options{ReadOnly: true})
	if err != nil {
		b.Fatal(err)
	}
	defer looker.Close()
	for b.Loop() {
		n := 0
		for info, err := range looker.List(b.Context(), "") {
			if err != nil {
				b.Fatal(err)
			}
			n += len(info.Holders)
		}
		if n != programs*locks {
			b.Fatalf("%d holders are listed, want %d", n, programs*locks)
		}
	}
}

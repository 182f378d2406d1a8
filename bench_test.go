package holdfast_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// BenchmarkHandOff passes one lock between goroutines, each with a token and a
// context of its own.
func BenchmarkHandOff(b *testing.B) {
	for _, n := range []int{2, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, err := holdfast.New(memory.New(), &holdfast.Options{RuntimeDir: "/dev/null"})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			ctx := context.Background()
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range n {
				wg.Go(func() {
					for range b.N / n {
						l, err := c.Acquire(ctx, "a")
						if err != nil {
							b.Error(err)
							return
						}
						_ = l.Context()
						if err := l.Release(ctx); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkFree takes and gives back a lock that nobody else wants.
func BenchmarkFree(b *testing.B) {
	c, err := holdfast.New(memory.New(), &holdfast.Options{RuntimeDir: "/dev/null"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	b.ReportAllocs()
	for range b.N {
		l, err := c.Acquire(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

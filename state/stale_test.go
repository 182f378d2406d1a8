package state

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A shelf is the simplest cache that follows a state: blobs by their keys, kept
// only if the key was the same before and after, and nobody wrote.
type shelf struct {
	mu    sync.Mutex
	blobs map[Key]int64
	hits  int
}

func (c *shelf) get(ctx context.Context, s *State, read func() int64) (int64, error) {
	before, err := s.Key(ctx)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	blob, ok := c.blobs[before]
	c.mu.Unlock()
	if ok && !before.Writing {
		c.mu.Lock()
		c.hits++
		c.mu.Unlock()
		return blob, nil
	}
	blob = read()
	after, err := s.Key(ctx)
	if err == nil && !before.Writing && !after.Writing && after.Equal(before) {
		c.mu.Lock()
		c.blobs[before] = blob
		c.mu.Unlock()
	}
	return blob, err
}

// With writers and readers at work, some of whom die in the middle, no reader is
// served what is older than a write that had ended when it asked.
func TestNotStale(t *testing.T) {
	kinds(t, func(t *testing.T, open func() *State) {
		const readers, writers = 3, 2
		var data, ended atomic.Int64
		var turn sync.Mutex // of writers that change the data
		c := &shelf{blobs: make(map[Key]int64)}
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		var all sync.WaitGroup
		for i := range writers {
			s := open()
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					w, err := s.Begin(ctx)
					if err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					turn.Lock()
					now := data.Add(1) // nothing else may be the end of it
					turn.Unlock()
					if f, ok := w.leased.(*dirWriter); ok && i == 0 && n%7 == 3 {
						f.die()
						continue
					}
					if err := w.End(t.Context()); err != nil {
						t.Error(err)
					}
					for old := ended.Load(); old < now && !ended.CompareAndSwap(old, now); old = ended.Load() {
					}
					time.Sleep(5 * time.Millisecond) // for the cache to be of use
				}
			})
		}
		for range readers {
			s := open()
			all.Go(func() {
				for ctx.Err() == nil {
					least := ended.Load()
					got, err := c.get(ctx, s, data.Load)
					if err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					if got < least {
						t.Errorf("served %d, when the write of %d had ended", got, least)
						return
					}
				}
			})
		}
		all.Wait()
		if c.hits == 0 || ended.Load() < 3 {
			t.Errorf("%d hits and %d writes, want more", c.hits, ended.Load())
		}
		t.Logf("%d hits, %d writes", c.hits, ended.Load())
	})
}

// die is what kill -9 does to a writer.
func (w *dirWriter) die() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	close(w.done)
	w.cancel(errors.New("killed"))
	w.loops.Wait()
	if w.file != nil {
		w.file.Close()
	}
}

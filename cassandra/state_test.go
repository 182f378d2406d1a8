package cassandra

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/state"
)

// What a cache gives is never older than the last write that had ended before it
// was asked, whoever wrote, and it does spare readers the work.
func TestState(t *testing.T) {
	t.Parallel()
	part := apart(t)
	ctx := t.Context()
	cache, err := state.OpenCache(filepath.Join(t.TempDir(), "cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	var value, ended, fills, asked atomic.Int64
	value.Store(1)
	process := func(s driver.Store) *state.State {
		c, err := holdfast.New(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return state.On(c, "repo")
	}
	// get asks the cache and says how new the answer is.
	get := func(s *state.State) int64 {
		asked.Add(1)
		before := ended.Load()
		blob, err := cache.Get(ctx, s, "value", func(_ context.Context, w io.Writer) error {
			fills.Add(1)
			_, err := fmt.Fprint(w, value.Load())
			return err
		})
		if err != nil {
			t.Error(err)
			return 0
		}
		defer blob.Close()
		text, _ := io.ReadAll(blob)
		got, _ := strconv.ParseInt(string(text), 10, 64)
		if got < before {
			t.Errorf("the cache gave %d after the write of %d had ended", got, before)
		}
		return got
	}
	writer, reader := process(part), process(part.Reopen(t))
	var wg sync.WaitGroup
	done := make(chan bool)
	for _, s := range []*state.State{writer, reader} {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					get(s)
				}
			}
		})
	}
	for range 5 {
		var now int64
		err := writer.Write(ctx, func(context.Context) error {
			now = value.Add(1)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		ended.Store(now)
		if got := get(reader); got != now {
			t.Errorf("the reader got %d after the write of %d had ended", got, now)
		}
	}
	close(done)
	wg.Wait()
	get(reader)
	before := fills.Load()
	for range 3 {
		get(writer)
		get(reader)
	}
	if n := fills.Load() - before; n > 0 {
		t.Errorf("what nobody writes to was computed %d times in six answers", n)
	}
	t.Logf("figure: asked %d times, computed %d times", asked.Load(), fills.Load())
}

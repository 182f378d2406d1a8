//go:build linux || darwin

package state

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/machine"
	"github.com/holdfast-lock/holdfast/memory"
)

// K1: a writer that readers took for dead has learnt of it before, and changes the
// key once more at its end.
func TestK1(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	path := t.TempDir()
	step, fail := failing()
	s := openWith(t, path, lease, step)
	reader := openDir(t, path, nil)
	keyOf(t, reader)
	began := time.Now()
	w := begin(t, s)
	if w.TTL() != lease || time.Until(w.Deadline()) > lease-holdfast.Margin(lease) {
		t.Errorf("a lease of %v ends in %v", w.TTL(), time.Until(w.Deadline()))
	}
	fail("renew") // as when the file server does not answer
	hide(t, path)
	ended := make(chan time.Time, 1)
	context.AfterFunc(w.Context(), func() { ended <- time.Now() })
	replaced := eventually(t, reader)
	at := time.Now()
	select {
	case end := <-ended:
		if end.After(at) {
			t.Errorf("the writer learns that its lease has ended %v after the reader", end.Sub(at))
		}
		if took := end.Sub(began); took > lease {
			t.Errorf("the writer believed for %v in a lease of %v", took, lease)
		}
	case <-time.After(5 * time.Second):
		t.Error("the writer does not learn that its lease has ended")
	}
	if cause := context.Cause(w.Context()); !isLost(cause) || !errors.Is(cause, errFault) {
		t.Errorf("its context's cause is %v, want ErrLost and why", cause)
	}
	fail("")
	for range 2 {
		if err := w.End(t.Context()); !isLost(err) {
			t.Errorf("End: %v, want ErrLost", err)
		}
	}
	if k := keyOf(t, reader); k.Equal(replaced) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// K1: a lease's end shows to all who ask though no timer has run yet.
func TestK1Clock(t *testing.T) {
	w := begin(t, openDir(t, t.TempDir(), nil))
	f := w.leased.(*dirWriter)
	f.mu.Lock()
	f.window = lease.Window{} // as if the process had been stopped until now
	f.window.ExtendTo(f.d.now()-1, f.d.now())
	f.mu.Unlock()
	if w.Context().Err() == nil || !isLost(context.Cause(w.Context())) {
		t.Errorf("the lease has ended, and its context's cause is %v", context.Cause(w.Context()))
	}
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
}

// K1: a renewal that is answered after the lease has ended does not bring it
// back.
func TestK1Late(t *testing.T) {
	t.Parallel()
	hold := make(chan bool)
	s := openWith(t, t.TempDir(), holdfast.MinTTL, func(what string) error {
		if what == "renew" {
			<-hold
		}
		return nil
	})
	w := begin(t, s)
	select {
	case <-w.Context().Done():
	case <-time.After(20 * time.Second):
		t.Error("while a renewal hangs the lease does not end")
	}
	close(hold)
	for deadline := time.Now().Add(holdfast.MinTTL); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if time.Until(w.Deadline()) > 0 {
			t.Fatalf("a lost lease lasts until %v", w.Deadline())
		}
	}
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
}

// K1: a renewed lease outlives its length, and each renewal causes a Heartbeat.
func TestK1Renewed(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	beats := make(chan time.Time, 100)
	s := openDir(t, path, &DirOptions{Lease: 3 * time.Second, Trace: &holdfast.Trace{Heartbeat: func(_ context.Context, e holdfast.Event) {
		if e.Err != nil {
			t.Errorf("renewal: %v", e.Err)
		}
		beats <- e.Until
	}}})
	w := begin(t, s)
	hide(t, path)
	last := w.Deadline()
	for range 4 {
		until := <-beats
		if !until.After(last) {
			t.Errorf("a renewal moves the end of the lease from %v to %v", last, until)
		}
		last = until
		if k := anyKey(t, openDir(t, path, nil)); !k.Writing {
			t.Fatalf("while it writes the key is %+v", k)
		}
	}
	if err := w.End(t.Context()); err != nil {
		t.Error(err)
	}
}

// K1: a lease is renewed as soon as its machine wakes up, though the timer of its renewals
// stood still.
func TestK1Slept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 30 * time.Second
		m := machine.New(machine.True, 1)
		s := openWith(t, t.TempDir(), lease, nil)
		s.keeper.(*dir).machine = m
		w := begin(t, s)
		m.Sleep(20 * time.Second) // the lease is trusted for 27 s, and renewed every 10 s
		time.Sleep(lease)
		if cause := context.Cause(w.Context()); cause != nil {
			t.Errorf("after a sleep of 20 s the lease ended: %v", cause)
		}
		if err := w.End(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// K1: the function of a Write learns that the lease is lost, and so does the caller who
// called it.
func TestK1Write(t *testing.T) {
	t.Parallel()
	step, fail := failing()
	s := openWith(t, t.TempDir(), holdfast.MinTTL, step)
	fail("renew")
	err := s.Write(t.Context(), func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			t.Error("the context of Write's function does not end")
		}
		if cause := context.Cause(ctx); !isLost(cause) {
			t.Errorf("its cause is %v, want ErrLost", cause)
		}
		return nil
	})
	if !isLost(err) {
		t.Errorf("Write: %v, want ErrLost", err)
	}
}

// K1: a lease counts from before its renewal was sent, not from the answer.
func TestK1Window(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	sent := make(chan time.Time, 100)
	s := openDir(t, t.TempDir(), nil)
	d := s.keeper.(*dir)
	until := make(chan time.Time, 100)
	d.Lease, d.Trace = lease, &holdfast.Trace{Heartbeat: func(_ context.Context, e holdfast.Event) { until <- e.Until }}
	d.step = func(what string) error {
		if what == "renew" {
			sent <- time.Now()
			time.Sleep(300 * time.Millisecond)
		}
		return nil
	}
	w := begin(t, s)
	if end, most := <-until, (<-sent).Add(lease-holdfast.Margin(lease)); end.After(most) {
		t.Errorf("the lease ends %v late", end.Sub(most))
	}
	if err := w.End(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lease to write causes Acquired, and then Released or Lost.
func TestTraceOfFiles(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	told := make(chan string, 10)
	note := func(what string) func(context.Context, holdfast.Event) {
		return func(_ context.Context, e holdfast.Event) {
			if e.Name != path {
				t.Errorf("%s: the name is %q, want %q", what, e.Name, path)
			}
			told <- what + " " + e.Reason
		}
	}
	s := openDir(t, path, &DirOptions{Trace: &holdfast.Trace{Acquired: note("acquired"), Released: note("released"), Lost: note("lost")}})
	w := begin(t, s)
	w.End(t.Context())
	w.End(t.Context())
	w = begin(t, s)
	if err := os.Remove(entries(t, path)[0]); err != nil {
		t.Fatal(err)
	}
	w.End(t.Context())
	close(told)
	var all []string
	for what := range told {
		all = append(all, what)
	}
	if want := []string{"acquired ", "released ", "acquired ", "lost its entry was removed"}; !slices.Equal(all, want) {
		t.Errorf("told %q, want %q", all, want)
	}
}

// K1: a writer whose entry was removed, or whose directory was replaced, learns
// of it with its next renewal, and if there is none at its end.
func TestK1Removed(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(path string) error{
		"entry": func(path string) error { return os.Remove(entries(t, path)[0]) },
		"directory": func(path string) error {
			if err := os.Rename(path+"/state", path+"/old"); err != nil {
				return err
			}
			return os.MkdirAll(path+"/state/pending", 0o755)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			s := openWith(t, path, holdfast.MinTTL, nil)
			w := begin(t, s)
			if err := remove(path); err != nil {
				t.Fatal(err)
			}
			select {
			case <-w.Context().Done():
			case <-time.After(20 * time.Second):
				t.Fatal("the writer's context does not end")
			}
			if cause := context.Cause(w.Context()); !isLost(cause) || !strings.Contains(cause.Error(), "removed") {
				t.Errorf("its context's cause is %v, want ErrLost and why", cause)
			}
			if err := w.End(t.Context()); !isLost(err) {
				t.Errorf("End: %v, want ErrLost", err)
			}
		})
	}
	path := t.TempDir()
	s := openDir(t, path, nil) // renewed each 10 s
	w := begin(t, s)
	if err := os.Remove(entries(t, path)[0]); err != nil {
		t.Fatal(err)
	}
	before := keyOf(t, s)
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
	if k := keyOf(t, s); k.Equal(before) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// K1: in a store, too, a writer that was taken for dead changes the key once
// more at its end. The reader itself declares it dead: nobody sweeps meanwhile, since a
// client with a long TTL rarely does, and the writer's own cannot write.
func TestK1On(t *testing.T) {
	t.Parallel()
	store := &silent{Store: memory.New()}
	s := On(newClient(t, store), "refs")
	c, err := holdfast.New(store.Store, &holdfast.Options{TTL: holdfast.MaxTTL, RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	reader := On(c, "refs")
	keyOf(t, reader)
	w := begin(t, s)
	store.set(true)
	replaced := eventually(t, reader)
	if cause := context.Cause(w.Context()); !isLost(cause) {
		t.Errorf("when readers took it for dead the cause of the writer's context was %v", cause)
	}
	store.set(false)
	if err := w.End(t.Context()); !isLost(err) {
		t.Errorf("End: %v, want ErrLost", err)
	}
	if k := keyOf(t, reader); k.Equal(replaced) {
		t.Errorf("after its end the key is still %+v", k)
	}
}

// A silent store does not answer for a time.
type silent struct {
	driver.Store
	mu  sync.Mutex
	now bool
}

func (s *silent) set(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
}

func (s *silent) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	if now {
		return nil, errFault
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

package monitor_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/monitor"
)

func client(t *testing.T, s driver.Store, m *monitor.Monitor) *holdfast.Client {
	t.Helper()
	var trace *holdfast.Trace
	if m != nil {
		trace = m.Trace()
	}
	c, err := holdfast.New(s, &holdfast.Options{RuntimeDir: os.DevNull, Trace: trace})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func text(t *testing.T, m *monitor.Monitor) string {
	t.Helper()
	var b strings.Builder
	if _, err := m.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func want(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
}

// What is counted is what was done.
func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, m := memory.New(), monitor.New(nil)
		way := &wire.Cut{Store: store}
		c, other := client(t, way, m), client(t, store, nil)
		defer other.Close()
		for range 10 {
			l, err := c.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			l.Release(t.Context())
		}
		taken, err := other.Acquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryAcquire(t.Context(), "b"); !errors.Is(err, holdfast.ErrHeld) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() { _, err := c.Acquire(ctx, "b"); gone <- err }()
		synctest.Wait()
		want(t, text(t, m), `holdfast_lock_waiting{mode="exclusive"} 1`)
		cancel()
		<-gone
		got := make(chan *holdfast.Lock)
		go func() { l, _ := c.Acquire(t.Context(), "b"); got <- l }()
		synctest.Wait()
		taken.Release(t.Context())
		held := <-got
		synctest.Wait()
		want(t, text(t, m), `holdfast_lock_held{mode="exclusive"} 1`, `holdfast_lock_waiting{mode="exclusive"} 0`,
			`holdfast_lock_wait_duration_seconds_count{outcome="acquired",queued="false"} 10`,
			`holdfast_lock_wait_duration_seconds_count{outcome="acquired",queued="true"} 1`,
			`holdfast_lock_wait_duration_seconds_count{outcome="held",queued="false"} 1`,
			`holdfast_lock_wait_duration_seconds_count{outcome="canceled",queued="true"} 1`,
			`holdfast_lock_hold_duration_seconds_count{end="released"} 10`,
			`holdfast_lock_hold_duration_seconds_sum{end="released"} 10`)
		way.Off.Store(true)
		<-held.Context().Done()
		synctest.Wait()
		want(t, text(t, m), `holdfast_lock_held{mode="exclusive"} 0`, `holdfast_lock_lost_total{reason="lease"} 1`, `holdfast_session_window_remaining_seconds 0`)
		if !strings.Contains(text(t, m), `holdfast_session_beat_duration_seconds_count{result="error"}`) {
			t.Error("no heartbeat has failed")
		}
		way.Off.Store(false)
		c.Close()
	})
}

// The trust window is that of a session that lives. One that has ended in order shows none, so nobody
// is woken for a lock with MinHold or AcquireFor. One that was lost shows an empty one for a while.
func TestWindowOfSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, m := memory.New(), monitor.New(nil)
		way := &wire.Cut{Store: store}
		c := client(t, way, m)
		is := func(when string, left, ttl time.Duration, known bool) {
			t.Helper()
			synctest.Wait()
			if l, d, ok := m.Remaining(); l > left || l < left/2 || d != ttl || ok != known {
				t.Errorf("%s: %v is left of a window with a TTL of %v, %v; want up to %v, %v, %v", when, l, d, ok, left, ttl, known)
			}
		}
		is("before", 0, 0, false)
		if _, err := c.AcquireFor(t.Context(), "for", time.Hour); err != nil {
			t.Fatal(err)
		}
		is("after AcquireFor", 0, 0, false)
		l, err := c.Acquire(t.Context(), "least", holdfast.MinHold(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, known := m.Remaining(); !known {
			t.Error("no window of a lock with MinHold")
		}
		l.Release(t.Context())
		is("after MinHold", 0, 0, false)
		if _, err := c.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		is("held", holdfast.DefaultTTL, holdfast.DefaultTTL, true)
		way.Off.Store(true)
		time.Sleep(holdfast.DefaultTTL)
		is("lost", 0, holdfast.DefaultTTL, true)
		way.Off.Store(false)
		time.Sleep(6 * time.Minute)
		is("lost long ago", 0, 0, false)
		if _, err := c.Acquire(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		is("held again", holdfast.DefaultTTL, holdfast.DefaultTTL, true)
		c.Close()
		is("closed", 0, 0, false)
	})
}

// Ten thousand names make no more series than a hundred.
func TestBounded(t *testing.T) {
	m := monitor.New(nil)
	c := client(t, memory.New(), m)
	defer c.Close()
	take := func(n int) int {
		for i := range n {
			l, err := c.Acquire(t.Context(), fmt.Sprintf("name-%d", i))
			if err != nil {
				t.Fatal(err)
			}
			l.Release(t.Context())
		}
		return len(regexp.MustCompile(`(?m)^holdfast_lock_[a-z_]+\{`).FindAllString(text(t, m), -1))
	}
	few, many := take(100), take(10000)
	if few == 0 || many != few {
		t.Errorf("%d series of locks after 100 names, %d after 10,000", few, many)
	}
	if strings.Contains(text(t, m), "name-") {
		t.Error("a name is a label")
	}
}

// A label of the user's own, with characters that would end it.
func TestLabel(t *testing.T) {
	m := monitor.New(&monitor.Options{Lock: func(name string) string { return strings.TrimPrefix(name, "x/") }})
	c := client(t, memory.New(), m)
	l, err := c.Acquire(t.Context(), `x/a"b\`)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer l.Release(t.Context())
	want(t, text(t, m), `holdfast_lock_held{mode="exclusive",lock="a\"b\\"} 1`)
}

// Each instrument has a name, help, and a line in the table of the documentation.
func TestTable(t *testing.T) {
	page, err := os.ReadFile("../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range monitor.Instruments {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(i.Name) + "` \\| `" + regexp.QuoteMeta(i.Prometheus()) + "` \\| " + string(i.Kind))
		if !row.Match(page) {
			t.Errorf("docs/monitoring.md has no row of %s, %s, %s", i.Name, i.Prometheus(), i.Kind)
		}
	}
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way := &wire.Cut{Store: memory.New()}
		c := client(t, way, nil)
		status := func() int {
			w := httptest.NewRecorder()
			monitor.Ready(c).ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
			return w.Code
		}
		if got := status(); got != 200 {
			t.Errorf("a client without a session: %d", got)
		}
		way.Off.Store(true)
		if got := status(); got != 503 {
			t.Errorf("a client whose store does not answer: %d", got)
		}
		way.Off.Store(false)
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if got := status(); got != 200 {
			t.Errorf("a client with a session: %d", got)
		}
		way.Off.Store(true)
		time.Sleep(11 * time.Second)
		if got := status(); got != 503 {
			t.Errorf("11 s of 15 without an answer: %d", got)
		}
		if err := c.Healthy(t.Context()); err == nil || !strings.Contains(err.Error(), "heartbeats are not answered") {
			t.Errorf("the reason is %v", err)
		}
		way.Off.Store(false)
		time.Sleep(2 * time.Second)
		if got := status(); got != 200 || l.Err() != nil {
			t.Errorf("after the cut: %d, %v", got, l.Err())
		}
		e := c.Election("leader")
		leader := monitor.Leader(e)
		w := httptest.NewRecorder()
		if leader.ServeHTTP(w, httptest.NewRequest("GET", "/", nil)); w.Code != 503 {
			t.Errorf("before the election: %d", w.Code)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- e.Run(ctx, nil) }()
		synctest.Wait()
		w = httptest.NewRecorder()
		if leader.ServeHTTP(w, httptest.NewRequest("GET", "/", nil)); w.Code != 200 {
			t.Errorf("the leader: %d", w.Code)
		}
		cancel()
		<-over
		l.Release(t.Context())
		c.Close()
		if got := status(); got != 503 {
			t.Errorf("a closed client: %d", got)
		}
	})
}

// BenchmarkTrace is what the counting costs a free lock.
func BenchmarkTrace(b *testing.B) {
	for _, counted := range []bool{false, true} {
		b.Run(map[bool]string{false: "without", true: "counted"}[counted], func(b *testing.B) {
			var trace *holdfast.Trace
			if counted {
				trace = monitor.New(nil).Trace()
			}
			c, err := holdfast.New(memory.New(), &holdfast.Options{RuntimeDir: os.DevNull, Trace: trace})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			for b.Loop() {
				l, err := c.Acquire(b.Context(), "a")
				if err != nil {
					b.Fatal(err)
				}
				l.Release(b.Context())
			}
		})
	}
}

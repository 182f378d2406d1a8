package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve/page"
)

// A town is a store with people in it, and its page.
type town struct {
	t     *testing.T
	store driver.Store
	look  *wire.Cut // the page's way to the store
	page  *httptest.Server
}

func newTown(t *testing.T, opts page.Options) *town {
	store := memory.New()
	w := &town{t: t, store: store, look: &wire.Cut{Store: store}}
	c, err := holdfast.New(w.look, &holdfast.Options{RuntimeDir: os.DevNull, Owner: holdfast.Owner{Host: "web-1", User: "holdfast", Program: "holdfast"}})
	if err != nil {
		t.Fatal(err)
	}
	h := page.New(c, &opts)
	mux := http.NewServeMux()
	mux.Handle("/", h)
	w.page = httptest.NewServer(mux)
	t.Cleanup(func() { w.page.CloseClientConnections(); h.Close(); w.page.Close(); c.Close() })
	return w
}

// client is one of a program on a host.
func (w *town) client(user, host, program string, pid int, ttl time.Duration) (*holdfast.Client, *wire.Cut) {
	way := &wire.Cut{Store: w.store}
	c, err := holdfast.New(way, &holdfast.Options{TTL: ttl, RuntimeDir: os.DevNull, Owner: holdfast.Owner{Host: host, User: user, Program: program, PID: pid}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { way.Off.Store(false); c.Close() })
	return c, way
}

func (w *town) holds(c *holdfast.Client, name string, opts ...holdfast.Option) *holdfast.Lock {
	l, err := c.Acquire(w.t.Context(), name, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// waits has somebody stand in line until the test ends.
func (w *town) waits(c *holdfast.Client, name string, opts ...holdfast.Option) {
	before, err := c.Show(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	go c.Acquire(w.t.Context(), name, opts...)
	for info := range c.Watch(w.t.Context(), name) {
		if len(info.Waiters) > len(before.Waiters) {
			return
		}
	}
}

// inhabit fills the store with what there is on an ordinary day.
func (w *town) inhabit() {
	ci, _ := w.client("ci", "runner-07", "deploy.py", 4711, 15*time.Second)
	w.holds(ci, "deploy/shop/production", holdfast.Reason("release 2026.11.4"))
	for i, host := range []string{"runner-02", "runner-11", "laptop", "runner-05"} {
		c, _ := w.client("ci", host, "deploy.py", 4712+i, 15*time.Second)
		w.waits(c, "deploy/shop/production", holdfast.Reason("release"))
	}
	ana, _ := w.client("ana", "db1", "holdfast", 24527, 15*time.Second)
	w.holds(ana, "nightly", holdfast.Reason("nightly backup"))
	for i := range 3 {
		c, _ := w.client("call", fmt.Sprintf("node-%d", i), "call.sh", 100+i, 15*time.Second)
		w.holds(c, "slow-api", holdfast.Slots(3))
		w.holds(c, "prices", holdfast.Shared())
		w.holds(c, fmt.Sprintf("import/customers/%d", 1791+i*7))
	}
	maria, _ := w.client("maria", "laptop", "terraform", 77, 15*time.Second)
	if _, err := maria.AcquireFor(w.t.Context(), "terraform/network", time.Hour, holdfast.Reason("OperationTypeApply")); err != nil {
		w.t.Fatal(err)
	}
	w.remember("deploy/shop/production", []event{
		{"ci", "runner-07", 58, 51, 0, "released", "", "release 2026.11.1"}, {"ci", "runner-02", 51, 44, 4, "released", "", "release 2026.11.2"},
		{"ci", "runner-11", 44, 42, 7, "released", "", "release 2026.11.2"}, {"ci", "runner-02", 41, 38, 0, "released", "", "hotfix"},
		{"www", "web-3", 36, 27, 0, "taken over", "silent for 15.0s", ""}, {"maria", "laptop", 23, 15, 3, "broken", "hangs, ticket 815", "hotfix by hand"},
		{"ci", "runner-11", 14, 9, 5, "released", "", "release 2026.11.3"},
	})
	worker, way := w.client("www", "web-3", "worker", 815, time.Second)
	w.holds(worker, "index/rebuild", holdfast.Reason("full rebuild"))
	way.Off.Store(true)
}

// An event is a hold that has ended: times are minutes before now.
type event struct {
	user, host      string
	from, to        int
	waited          int
	end, why, wants string
}

// remember writes an hour of history that nobody has time to wait for, as the library would.
func (w *town) remember(name string, events []event) {
	now := time.Now()
	at := func(minutes int) int64 { return now.Add(-time.Duration(minutes) * time.Minute).UnixMicro() }
	h := record.History{At: now.UnixMicro()}
	for _, e := range events {
		one := record.Hold{Token: record.Token(at(e.from)), Owner: record.Owner{Host: e.host, User: e.user, Program: "deploy.py"}, From: at(e.from), To: at(e.to),
			Waited: (time.Duration(e.waited) * time.Minute).Microseconds(), End: record.End(e.end), Reason: e.wants, Why: e.why}
		if e.why != "" {
			one.By = &record.Owner{Host: "db1", User: "ana"}
		}
		h.Holds = append([]record.Hold{one}, h.Holds...)
	}
	value, err := json.Marshal(h)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := w.store.CompareAndSwap(w.t.Context(), []driver.Write{{Key: driver.Histories.Key(name), Old: driver.IfEmpty, Value: value}})
	if err != nil || !out[0].Won {
		w.t.Fatal(out, err)
	}
}

package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve/page"
)

// A cable leads to a store, and can be cut.
type cable struct {
	driver.Store
	cut atomic.Bool
}

var errCut = errors.New("the network is unreachable")

func (c *cable) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.Store.Load(ctx, keys, how)
}

func (c *cable) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.Store.CompareAndSwap(ctx, writes)
}

// A town is a store with people in it, and its page.
type town struct {
	t     *testing.T
	store driver.Store
	look  *cable // the page's way to the store
	page  *httptest.Server
}

func newTown(t *testing.T, opts page.Options) *town {
	store := memory.New()
	w := &town{t: t, store: store, look: &cable{Store: store}}
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
func (w *town) client(user, host, program string, pid int, ttl time.Duration) (*holdfast.Client, *cable) {
	way := &cable{Store: w.store}
	c, err := holdfast.New(way, &holdfast.Options{TTL: ttl, RuntimeDir: os.DevNull, Owner: holdfast.Owner{Host: host, User: user, Program: program, PID: pid}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { way.cut.Store(false); c.Close() })
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
	worker, way := w.client("www", "web-3", "worker", 815, time.Second)
	w.holds(worker, "index/rebuild", holdfast.Reason("full rebuild"))
	way.cut.Store(true)
}

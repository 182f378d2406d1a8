package cassandra

import (
	"context"
	"crypto/rand"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
)

// calls of a store, by one who has a lock.
var everyCall = map[string]func(ctx context.Context, s *Store, k driver.Key) error{
	"load": func(ctx context.Context, s *Store, k driver.Key) error {
		_, err := s.Load(ctx, []driver.Key{k}, driver.Fresh)
		return err
	},
	"load of many": func(ctx context.Context, s *Store, k driver.Key) error {
		_, err := s.Load(ctx, many(k), driver.Fresh)
		return err
	},
	"stale read": func(ctx context.Context, s *Store, k driver.Key) error {
		_, err := s.Load(ctx, many(k), driver.Stale)
		return err
	},
	"take": func(ctx context.Context, s *Store, k driver.Key) error {
		_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1")}})
		return err
	},
	"follow": func(ctx context.Context, s *Store, k driver.Key) error {
		_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: 1, Value: []byte("1")}})
		return err
	},
	"batch": func(ctx context.Context, s *Store, k driver.Key) error {
		var writes []driver.Write
		for _, k := range many(k) {
			writes = append(writes, driver.Write{Key: k, Old: driver.IfEmpty})
		}
		outs, err := s.CompareAndSwap(ctx, writes)
		for _, o := range outs {
			if err == nil {
				err = o.Err
			}
		}
		return err
	},
	"beat": func(ctx context.Context, s *Store, k driver.Key) error {
		k.Space = driver.Sessions
		_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1")}})
		return err
	},
	"keys": func(ctx context.Context, s *Store, _ driver.Key) error {
		_, err := s.Keys(ctx, driver.Names, "", 10)
		return err
	},
	"sweep": func(ctx context.Context, s *Store, _ driver.Key) error {
		_, err := s.Sweep(ctx, time.Hour)
		return err
	},
	"diagnose": func(ctx context.Context, s *Store, _ driver.Key) error {
		_, err := s.Diagnose(ctx)
		return err
	},
	"open": func(ctx context.Context, s *Store, _ driver.Key) error {
		_, err := New(ctx, s.session, &s.opts)
		return err
	},
	"verify": func(ctx context.Context, s *Store, _ driver.Key) error {
		return Verify(ctx, s.session, &s.opts)
	},
}

func many(k driver.Key) (keys []driver.Key) {
	for i := range 40 {
		keys = append(keys, driver.Key{Space: k.Space, Name: k.Name + string(rune('a'+i))})
	}
	return keys
}

// A hole is between a session and the nodes, and swallows all packets once it is open.
type hole struct{ open atomic.Bool }

func (h *hole) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if h.open.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	return holeConn{conn, h}, err
}

type holeConn struct {
	net.Conn
	hole *hole
}

func (c holeConn) Write(b []byte) (int, error) {
	if c.hole.open.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c holeConn) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.hole.open.Load() {
			return n, err
		}
	}
}

// Whatever the nodes do, a call returns when its context ends, or a moment later.
func TestBounded(t *testing.T) {
	t.Parallel()
	opts := table(t)
	for _, test := range []struct {
		name  string
		fate  fate
		works bool
	}{{"nothing is in the way", pass, true}, {"connections break", lost, false}, {"nodes say that others do not answer", busy, false}, {"no packet comes through", silence, false}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var s *Store
			var stop func()
			if test.fate == silence {
				h := &hole{}
				c := config(t, cluster(t))
				c.Dialer = h
				s, stop = open(t, connect(t, c), opts), func() { h.open.Store(true) }
			} else {
				p, own := tapped(t, func(c *gocql.ClusterConfig) { c.ReconnectInterval = 100 * time.Millisecond })
				s, stop = open(t, own, opts), func() { p.set(func(*call) fate { return test.fate }) }
			}
			for what, call := range everyCall {
				if err := call(t.Context(), s, nameKey(t, what)); err != nil { // it is prepared
					t.Fatalf("%s, with nothing in the way: %v", what, err)
				}
			}
			stop()
			var asked sync.WaitGroup
			for what, call := range everyCall {
				asked.Go(func() {
					const limit = 4 * time.Second
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					began := time.Now()
					err := call(ctx, s, nameKey(t, what))
					took := time.Since(began)
					if test.works && err != nil {
						t.Errorf("the call %q: %v", what, err)
					}
					if !test.works && err == nil && what != "diagnose" && !(test.fate != silence && (what == "open" || what == "verify")) {
						t.Errorf("%s has no error", what)
					}
					if took > limit+time.Second {
						t.Errorf("%s took %v: %v", what, took, err)
					}
				})
			}
			asked.Wait()
		})
	}
}

// Nothing that a client bounds takes longer because no packet comes through.
func TestBounds(t *testing.T) {
	t.Parallel()
	opts := table(t)
	holes := make(map[driver.Store]*hole)
	clienttest.RunBounds(t, func(t *testing.T) driver.Store {
		h := &hole{}
		c := config(t, cluster(t))
		c.Dialer = h
		s := within{open(t, connect(t, c), opts), rand.Text()[:8] + " "}
		holes[s] = h
		return s
	}, clienttest.Obstacle{Name: "no packet comes through", Silent: true, Server: true, Begin: func(_ *testing.T, s driver.Store, _ string) func() {
		h := holes[s]
		h.open.Store(true)
		return func() { h.open.Store(false) }
	}})
}

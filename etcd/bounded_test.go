package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/busy"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// calls are all that a store is asked, by one who has a lock.
var calls = map[string]func(ctx context.Context, s *Store, l *holdfast.Lock) error{
	"load": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		_, err := s.Load(ctx, []driver.Key{lockA}, driver.Fresh)
		return err
	},
	"load of many": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		_, err := s.Load(ctx, make250(), driver.Fresh)
		return err
	},
	"write": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Name: "w"}, Old: driver.IfEmpty}})
		return err
	},
	"batch": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		var writes []driver.Write
		for _, k := range make250() {
			writes = append(writes, driver.Write{Key: k, Old: driver.IfEmpty})
		}
		_, err := s.CompareAndSwap(ctx, writes)
		return err
	},
	"beat": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Space: driver.Sessions, Name: "s"}, Old: driver.IfEmpty}})
		return err
	},
	"keys": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		_, err := s.Keys(ctx, driver.Names, "", 10)
		return err
	},
	"sweep": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		_, err := s.Sweep(ctx, time.Hour)
		return err
	},
	"diagnose": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		_, err := s.Diagnose(ctx)
		return err
	},
	"fence": func(ctx context.Context, s *Store, l *holdfast.Lock) error {
		_, _, err := Compare(ctx, l)
		return err
	},
	"open": func(ctx context.Context, s *Store, _ *holdfast.Lock) error {
		_, err := New(ctx, s.client, &Options{Prefix: s.prefix})
		return err
	},
}

func make250() (keys []driver.Key) {
	for i := range 250 {
		keys = append(keys, driver.Key{Name: fmt.Sprint("many ", i)})
	}
	return keys
}

// Whatever is in the way, a call returns when its context ends, or a moment later; and
// what one member cannot do another does.
func TestBounded(t *testing.T) {
	t.Parallel()
	limit := busy.Times(4 * time.Second)
	all := []int{0, 1, 2}
	each := func(members []int, f func(int) error) (err error) {
		for _, n := range members {
			err = errors.Join(err, f(n))
		}
		return err
	}
	cluster := servers.EtcdThree(t, &servers.ClusterOptions{Cuttable: true})
	if !cluster.Own {
		t.Skip("this cluster is not ours")
	}
	leader, err := cluster.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	follower := (leader + 1) % 3 // without a leader nothing works for a while
	for _, test := range []struct {
		name     string
		stop, on func() error
		works    bool
	}{
		{"nothing", func() error { return nil }, func() error { return nil }, true},
		{"a member is stopped", func() error { return cluster.Freeze(follower) }, func() error { return cluster.Thaw(follower) }, true}, // it may have had a write, of which nobody knows then
		{"the quorum is lost", func() error { return each(all[1:], cluster.Kill) }, func() error {
			return each(all[1:], func(n int) error { return cluster.Restart(t.Context(), n) })
		}, false},
		{"all are stopped", func() error { return each(all, cluster.Freeze) }, func() error { return each(all, cluster.Thaw) }, false},
		{"all are cut off from us", func() error { return each(all, cluster.CutOff) }, func() error { return each(all, cluster.Join) }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := dial(t, cluster.Endpoints())
			s := open(t, c, fresh(t, c))
			l := acquire(t, client(t, s), "a")
			if err := test.stop(); err != nil {
				t.Fatal(err)
			}
			var asked sync.WaitGroup
			for what, call := range calls {
				asked.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					began := time.Now()
					err := call(ctx, s, l)
					took := time.Since(began)
					perhaps := test.name == "a member is stopped" && slices.Contains([]string{"write", "batch", "beat"}, what)
					if (err == nil) != test.works && !perhaps && what != "diagnose" {
						t.Errorf("the call %q: %v, want an error: %v", what, err, !test.works)
					}
					if took > limit+busy.Times(time.Second) {
						t.Errorf("%s took %v: %v", what, took, err)
					}
				})
			}
			asked.Wait()
			if err := test.on(); err != nil {
				t.Fatal(err)
			}
			if err := cluster.Settled(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Nothing that a client bounds takes longer because the cluster stands still.
func TestBounds(t *testing.T) {
	t.Parallel()
	cluster := servers.EtcdThree(t, &servers.ClusterOptions{Cuttable: true})
	if !cluster.Own {
		t.Skip("this cluster is not ours")
	}
	each := func(f func(int) error) error { return errors.Join(f(0), f(1), f(2)) }
	clienttest.RunBounds(t, func(t *testing.T) driver.Store {
		if err := cluster.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := dial(t, cluster.Endpoints())
		return open(t, c, fresh(t, c))
	}, clienttest.Obstacle{Name: "a cluster that stands still", Silent: true, Server: true, Begin: func(t *testing.T, _ driver.Store, _ string) func() {
		if err := each(cluster.Freeze); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := errors.Join(each(cluster.Thaw), cluster.Settled(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}})
}

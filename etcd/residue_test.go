package etcd

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// Programs that take a lock, give it back and end leave no key each, also where none
// of them lives for long enough to sweep.
func TestShortProgramsLeaveNothing(t *testing.T) {
	c := connect(t)
	prefix := fresh(t, c)
	for range 20 {
		cl, err := holdfast.New(open(t, c, prefix), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := acquire(t, cl, "nightly").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := c.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	rest := map[string]bool{"epoch": true, "n/nightly": true, "c/sweep": true, "swept": true}
	for _, kv := range r.Kvs {
		if key := strings.TrimPrefix(string(kv.Key), prefix); !rest[strings.TrimPrefix(key, "/")] {
			t.Errorf("%q is left", key)
		}
	}
}

// A session that has ended is as one that was swept: nothing follows what it was, and
// whatever comes has a version above it.
func TestEndedSession(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	k := driver.Key{Space: driver.Sessions, Name: "s"}
	first := swap(t, s, driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1")}).Record.Version
	ended := swap(t, s, driver.Write{Key: k, Old: first})
	if !ended.Won || ended.Record.Version <= first {
		t.Fatalf("the end of version %d: %+v", first, ended)
	}
	for _, old := range []int64{first, ended.Record.Version} {
		if out := swap(t, s, driver.Write{Key: k, Old: old, Value: []byte("2")}); out.Won || len(out.Record.Value) > 0 {
			t.Errorf("a write that follows version %d after the end: %+v", old, out)
		}
	}
	// In a batch, and beside others.
	other := driver.Key{Space: driver.Sessions, Name: "other"}
	again := swap(t, s, driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("3")})
	outs, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: again.Record.Version}, {Key: other, Old: driver.IfEmpty, Value: []byte("1")}})
	if err != nil || !outs[0].Won || !outs[1].Won || again.Record.Version <= ended.Record.Version || outs[0].Record.Version <= again.Record.Version {
		t.Errorf("after %+v: %+v, %+v, error %v", ended, again, outs, err)
	}
	// An end of what was not there is a version, too.
	one := swap(t, s, driver.Write{Key: k, Old: driver.IfEmpty})
	if two := swap(t, s, driver.Write{Key: k, Old: driver.IfEmpty}); !one.Won || !two.Won || two.Record.Version <= one.Record.Version {
		t.Errorf("two ends of no session: %+v, %+v", one, two)
	}
}

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

var lockA = driver.Key{Space: driver.Names, Name: "a"}

func swap(t testing.TB, s *Store, w driver.Write) driver.Outcome {
	t.Helper()
	outs, err := s.CompareAndSwap(t.Context(), []driver.Write{w})
	if err != nil {
		t.Fatal(err)
	}
	return outs[0]
}

func client(t testing.TB, s driver.Store) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(s, &holdfast.Options{TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func acquire(t testing.TB, c *holdfast.Client, name string) *holdfast.Lock {
	t.Helper()
	l, err := c.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A cluster that was made anew, so that revisions begin at 1 again, has versions
// above those that were, also for a client that has seen those.
func TestNewEpoch(t *testing.T) {
	c := connect(t)
	prefix := fresh(t, c)
	s := open(t, c, prefix)
	first := swap(t, s, driver.Write{Key: lockA, Old: driver.IfEmpty, Value: []byte("1")})
	old, _ := s.now()
	if _, err := c.Delete(t.Context(), prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	again := swap(t, s, driver.Write{Key: lockA, Old: driver.IfEmpty, Value: []byte("2")})
	if !again.Won || again.Record.Version <= first.Record.Version {
		t.Errorf("version %d after the cluster was emptied, and %d before", again.Record.Version, first.Record.Version)
	}
	if e, _ := s.now(); e.base <= old.base {
		t.Errorf("base %d after %d", e.base, old.base)
	}
	// What follows a version of before has nothing to follow.
	if o := swap(t, s, driver.Write{Key: lockA, Old: first.Record.Version, Value: []byte("3")}); o.Won {
		t.Errorf("a write followed version %d of an epoch that is over, as version %d", first.Record.Version, o.Record.Version)
	}
	// Another process learns the same epoch.
	recs, err := open(t, connect(t), prefix).Load(t.Context(), []driver.Key{lockA}, driver.Fresh)
	if err != nil || recs[0].Version != again.Record.Version {
		t.Errorf("another process loads version %d, want %d: %v", recs[0].Version, again.Record.Version, err)
	}
}

// A store that has seen a later revision than the cluster has believes nothing that
// the cluster says, until the epoch is a new one.
func TestStoreWentBack(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	first := swap(t, s, driver.Write{Key: lockA, Old: driver.IfEmpty, Value: []byte("1")})
	s.mu.Lock()
	s.highest += 1_000_000 // as if the cluster had been there and was restored since
	s.mu.Unlock()
	if _, err := s.Load(t.Context(), []driver.Key{lockA}, driver.Fresh); !errors.Is(err, ErrWentBack) {
		t.Errorf("load: %v", err)
	}
	if _, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: lockA, Old: first.Record.Version, Value: []byte("2")}}); !errors.Is(err, ErrWentBack) {
		t.Errorf("write: %v", err)
	}
	if _, err := c.Delete(t.Context(), s.epochKey()); err != nil {
		t.Fatal(err)
	}
	recs, err := s.Load(t.Context(), []driver.Key{lockA}, driver.Fresh)
	if err != nil || recs[0].Version <= first.Record.Version+1_000_000 {
		t.Errorf("once the epoch is new: version %d after %d: %v", recs[0].Version, first.Record.Version, err)
	}
}

// Batches above etcd's limits are cut, and their answers in order.
func TestLargeBatches(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	for _, b := range []struct{ n, size int }{{1000, 10}, {12, 200_000}, {3, driver.MaxValue}} {
		t.Run(fmt.Sprintf("%d of %d bytes", b.n, b.size), func(t *testing.T) {
			var writes []driver.Write
			var keys []driver.Key
			for i := range b.n {
				k := driver.Key{Space: driver.Names, Name: fmt.Sprint(b.n, "/", i)}
				value := make([]byte, b.size)
				copy(value, fmt.Sprint(i))
				writes, keys = append(writes, driver.Write{Key: k, Old: driver.IfEmpty, Value: value}), append(keys, k)
			}
			outs, err := s.CompareAndSwap(t.Context(), writes)
			if err != nil {
				t.Fatal(err)
			}
			recs, err := s.Load(t.Context(), keys, driver.Fresh)
			if err != nil {
				t.Fatal(err)
			}
			for i, o := range outs {
				if !o.Won || recs[i].Version != o.Record.Version || string(recs[i].Value) != string(writes[i].Value) {
					t.Fatalf("write %d: won %v, version %d, loaded version %d of %d bytes", i, o.Won, o.Record.Version, recs[i].Version, len(recs[i].Value))
				}
			}
		})
	}
}

// A watch ends if what it has not seen yet was compacted, so that the next one says
// that anything may have changed.
func TestWatchCompacted(t *testing.T) {
	endpoints := servers.EtcdThree(t, nil).Endpoints()
	proxy, err := servers.NewProxy(t.Context(), endpoints[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	c := connect(t)
	s := open(t, c, fresh(t, c))
	far := open(t, dial(t, []string{proxy.Addr()}), s.prefix)
	begun, ended := make(chan bool), make(chan error, 1)
	go func() {
		ended <- far.Watch(t.Context(), []string{"x"}, func(h driver.Notification) {
			if h == (driver.Notification{}) {
				begun <- true
			}
		})
	}()
	<-begun
	proxy.Refuse(true)
	old := int64(driver.IfEmpty)
	for range 3 {
		old = swap(t, s, driver.Write{Key: lockA, Old: old, Value: []byte("1"), Notify: "x"}).Record.Version
	}
	_, highest := s.now()
	if _, err := c.Compact(t.Context(), highest); err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(false)
	select {
	case err := <-ended:
		if !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("the watch ended: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the watch goes on though wakes were compacted that it has not seen")
	}
}

// Waits end while the cluster is compacted and defragmented.
func TestCompaction(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	a, b := client(t, s), client(t, open(t, connect(t), s.prefix))
	for range 3 {
		l := acquire(t, a, "a")
		got := make(chan *holdfast.Lock)
		go func() { l, _ := b.Acquire(t.Context(), "a"); got <- l }()
		await(t, "b waits", func() bool {
			i, err := a.Show(t.Context(), "a")
			return err == nil && len(i.Waiters) == 1
		})
		_, highest := s.now()
		if _, err := c.Compact(t.Context(), highest); err != nil {
			t.Fatal(err)
		}
		for _, m := range c.Endpoints() {
			if _, err := c.Defragment(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case l := <-got:
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a wait does not end after a compaction")
		}
	}
}

func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	for began := time.Now(); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("not within 20s: %s", what)
		}
	}
}

// A watch gets the notifications of its own recipients and no others; a watch of all gets
// all of them.
func TestWatchRecipients(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	var mu sync.Mutex
	told := make(map[string][]driver.Notification)
	ready := make(chan bool)
	for _, who := range [][]string{{"x"}, {"y", "z"}, nil} {
		go s.Watch(t.Context(), who, func(h driver.Notification) {
			if h == (driver.Notification{}) {
				ready <- true
				return
			}
			mu.Lock()
			defer mu.Unlock()
			told[fmt.Sprint(who)] = append(told[fmt.Sprint(who)], h)
		})
	}
	for range 3 {
		<-ready
	}
	for _, wake := range []string{"x", "y", "z", "", "other/\xff", driver.Everyone} {
		swap(t, s, driver.Write{Key: driver.Key{Space: driver.Names, Name: "for " + wake}, Old: driver.IfEmpty, Value: []byte("1"), Notify: wake})
	}
	await(t, "all are told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told["[x]"]) == 2 && len(told["[y z]"]) == 3 && len(told["[]"]) == 5
	})
}

// A notification tells the record of a name, if that is not long, and nothing that a read would
// not have shown: nothing of another epoch, nothing from a cluster that has gone back.
func TestTold(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	other := open(t, connect(t), s.prefix)
	told := make(chan driver.Notification, 10)
	go s.Watch(t.Context(), []string{"x"}, func(h driver.Notification) { told <- h })
	<-told
	n := 0
	tells := func(space driver.Space, value string, want bool) {
		t.Helper()
		n++
		k := driver.Key{Space: space, Name: fmt.Sprint(n)}
		o := swap(t, other, driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte(value), Notify: "x"})
		h := driver.Notification{Key: k, To: "x"}
		if want {
			h.Version, h.Value = o.Record.Version, value
		}
		if got := <-told; got != h {
			t.Errorf("write %d: told %.100v, want %.100v", n, got, h)
		}
	}
	tells(driver.Names, "1", true)
	tells(driver.Sessions, "1", false)
	tells(driver.Names, strings.Repeat("1", maxTold+1), false)
	e, highest := s.now()
	s.adopt(epoch{e.base + 1, e.revision}, highest)
	tells(driver.Names, "1", false)
	s.adopt(e, highest)
	tells(driver.Names, "1", true)
	s.adopt(e, highest+1_000_000) // as if the cluster had been there and was restored since
	tells(driver.Names, "1", false)
}

// A fence lets the holder write, whatever others do with the lock meanwhile, and
// nobody after it.
func TestFence(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	a, b := client(t, s), client(t, open(t, connect(t), s.prefix))
	l := acquire(t, a, "a")
	k := s.prefix + "user"
	if _, err := Fence(t.Context(), []*holdfast.Lock{l}, clientv3.OpPut(k, "a")); err != nil {
		t.Fatal(err)
	}
	cmps, keep, err := Compare(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	put := func(cmps []clientv3.Cmp, keep []clientv3.Op, value string) bool {
		resp, err := c.Txn(t.Context()).If(cmps...).Then(append(keep, clientv3.OpPut(k, value))...).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	if !put(cmps, keep, "b") {
		t.Error("a comparison does not hold though the lock is held")
	}
	got := make(chan *holdfast.Lock)
	go func() { l, _ := b.Acquire(t.Context(), "a"); got <- l }()
	await(t, "b waits", func() bool {
		i, err := a.Show(t.Context(), "a")
		return err == nil && len(i.Waiters) == 1
	})
	if _, err := Fence(t.Context(), []*holdfast.Lock{l}, clientv3.OpPut(k, "c")); err != nil {
		t.Errorf("a fence does not hold because somebody waits: %v", err)
	}
	cmps, keep, err = Compare(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := <-got
	if put(cmps, keep, "late") {
		t.Error("who has given the lock back writes behind the next holder")
	}
	if _, err := Fence(t.Context(), []*holdfast.Lock{l}, clientv3.OpPut(k, "late")); !errors.Is(err, holdfast.ErrReleased) && !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("a fence of a lock that was given back: %v", err)
	}
	if _, _, err := s.compare(t.Context(), "a", l.Token()); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("a token that holds nothing any more: %v", err)
	}
	if _, err := Fence(t.Context(), []*holdfast.Lock{next}, clientv3.OpPut(k, "next")); err != nil {
		t.Error(err)
	}
	resp, err := c.Get(t.Context(), k)
	if err != nil || string(resp.Kvs[0].Value) != "next" {
		t.Errorf("the key holds %s: %v", resp.Kvs[0].Value, err)
	}
}

// A wrapped is a store with another around it, such as one that counts calls.
type wrapped struct{ driver.Store }

func (w wrapped) Unwrap() driver.Store { return w.Store }

// The fence of a store that the user has wrapped is that of the store. Without a lock nothing is
// done.
func TestFenceOfWrapped(t *testing.T) {
	t.Parallel()
	c := connect(t)
	prefix := fresh(t, c)
	client, err := holdfast.New(wrapped{open(t, c, prefix)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	l, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Fence(t.Context(), []*holdfast.Lock{l}, clientv3.OpPut(prefix+"what", "a")); err != nil {
		t.Error(err)
	}
	if _, err := Fence(t.Context(), nil, clientv3.OpPut(prefix+"what", "b")); err != driver.ErrNothingFenced {
		t.Errorf("without a lock: %v, want ErrNothingFenced", err)
	}
}

// Of goroutines that hand a lock on in memory, an older holder does not write
// behind a newer one that has, though the record is the same.
func TestFenceHandOff(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	a := client(t, s)
	first := acquire(t, a, "a")
	var wg sync.WaitGroup
	locks := make(chan *holdfast.Lock, 20)
	for range 20 { // so that a block of tokens is asked for
		wg.Go(func() {
			l, err := a.Acquire(context.Background(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			locks <- l
		})
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	k, late, inMemory := s.prefix+"user", 0, 0
	var old []clientv3.Cmp
	var oldKeep []clientv3.Op
	var version int64
	for range 20 {
		l := <-locks
		if old != nil {
			resp, err := Fence(t.Context(), []*holdfast.Lock{l}, clientv3.OpPut(k, "newer"))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp
			txn, err := c.Txn(t.Context()).If(old...).Then(append(oldKeep, clientv3.OpPut(k, "older"))...).Commit()
			if err != nil {
				t.Fatal(err)
			}
			if txn.Succeeded {
				late++
			}
		}
		recs, err := s.Load(t.Context(), []driver.Key{lockA}, driver.Fresh)
		if err != nil {
			t.Fatal(err)
		}
		if recs[0].Version == version {
			inMemory++
		}
		version = recs[0].Version
		if old, oldKeep, err = Compare(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if inMemory == 0 {
		t.Error("no hand-off was in memory")
	}
	if late > 0 {
		t.Errorf("%d older holders wrote behind newer ones", late)
	}
}

// The doctor sees three members, a leader, and that a watch tells.
func TestDiagnose(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	found, err := s.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	levels := make(map[string]driver.Level)
	for _, f := range found {
		levels[f.Subject] = max(levels[f.Subject], f.Level)
	}
	for _, subject := range []string{"server", "replication", "notifications", "epoch"} {
		if level, ok := levels[subject]; !ok || level != driver.Good {
			t.Errorf("%s: %v, told %v", subject, level, found)
		}
	}
}

// The doctor reports a history that nobody compacts.
func TestHistory(t *testing.T) {
	c := connect(t)
	s := open(t, c, fresh(t, c))
	old := int64(driver.IfEmpty)
	for range 6 {
		old = swap(t, s, driver.Write{Key: lockA, Old: old, Value: []byte("1")}).Record.Version
	}
	if kept, err := s.remembers(t.Context(), 5); err != nil || !kept {
		t.Errorf("it does not remember what was 5 revisions ago, says %v: %v", kept, err)
	}
	_, highest := s.now()
	if _, err := c.Compact(t.Context(), highest); err != nil {
		t.Fatal(err)
	}
	if kept, err := s.remembers(t.Context(), 5); err != nil || kept {
		t.Errorf("it remembers what was 5 revisions ago, says %v, after a compaction: %v", kept, err)
	}
}

// A question that may be sent again is, and no others but those that a member without
// a leader has refused; members that are gone are not asked without a pause.
func TestSend(t *testing.T) {
	gone := status.Error(codes.Unavailable, "connection refused")
	for _, test := range []struct {
		err         error
		again       bool
		least, most int
	}{
		{gone, true, 2, 20},
		{gone, false, 1, 1},
		{rpctypes.ErrNoLeader, false, 2, 20},
		{rpctypes.ErrPermissionDenied, true, 1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 19*rest+rest/2)
			defer cancel()
			n := 0
			_, err := send(ctx, test.again, func(context.Context) (int, error) { n++; return 0, test.err })
			if !errors.Is(err, test.err) || n < test.least || n > test.most {
				t.Errorf("%v: asked %d times, want %d to %d; got %v", test.err, n, test.least, test.most, err)
			}
		})
	}
}

// A question that may be sent again waits for the first member that it meets for half a second, and
// then as long as any: one of three members may be frozen.
func TestFrozenMember(t *testing.T) {
	for _, test := range []struct {
		again  bool
		frozen int // members that it meets first
		want   time.Duration
	}{
		{true, 1, quick + rest},
		{true, 2, quick + slow + 2*rest},
		{false, 1, slow},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, n := time.Now(), 0
			_, err := send(t.Context(), test.again, func(ctx context.Context) (int, error) {
				if n++; n > test.frozen {
					return 0, nil
				}
				<-ctx.Done()
				return 0, ctx.Err()
			})
			if took := time.Since(began); took != test.want || (err == nil) != test.again {
				t.Errorf("may be sent again: %v, of %d frozen members: %v after %v, want it after %v", test.again, test.frozen, err, took, test.want)
			}
		})
	}
}

// A client of etcd that its user has closed is a closed store.
func TestClosedClient(t *testing.T) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}}) // connects when it is used
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	s := &Store{client: client, prefix: DefaultPrefix}
	if _, err := s.Load(t.Context(), []driver.Key{driver.Names.Key("a")}, driver.Fresh); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

package spanner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

var lockA = driver.Key{Space: driver.Names, Name: "a"}

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

func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	for began := time.Now(); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("not within 20s: %s", what)
		}
	}
}

// Names that are made in order are spread over all shards, and so are sessions and
// names of the same bytes. Where a key is does not change from one version of the
// program to the next.
func TestShards(t *testing.T) {
	var n [shards]int
	for i := range 16_000 {
		n[shard(driver.Key{Space: driver.Names, Name: fmt.Sprintf("jobs/%06d", i)})]++
	}
	for i, n := range n {
		if n < 800 || n > 1200 {
			t.Errorf("shard %d has %d of 16000 names", i, n)
		}
	}
	for k, want := range map[driver.Key]int64{
		lockA: 10, {Space: driver.Sessions, Name: "a"}: 7, {Space: driver.Names, Name: "jobs/000001"}: 3,
	} {
		if got := shard(k); got != want {
			t.Errorf("%s %q is in shard %d, and was in %d", k.Space, k.Name, got, want)
		}
	}
}

// Batches above the limits are cut, and their answers in order.
func TestLargeBatches(t *testing.T) {
	s := open(t, fresh(t))
	for _, b := range []struct{ n, size int }{{2500, 10}, {100, 200_000}, {20, driver.MaxValue}} {
		var writes []driver.Write
		var keys []driver.Key
		for i := range b.n {
			k := driver.Key{Space: driver.Names, Name: fmt.Sprint(b.n, "/", i)}
			value := make([]byte, b.size)
			copy(value, fmt.Sprint(i))
			writes, keys = append(writes, driver.Write{Key: k, Old: driver.IfEmpty, Value: value}), append(keys, k)
		}
		for _, part := range split(writes) {
			size := 0
			for _, w := range part {
				size += len(w.Value)
			}
			if len(part) > 500 || size > 10<<20 {
				t.Errorf("a transaction of %d rows and %d bytes", len(part), size)
			}
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
				t.Fatalf("write %d: %v, won %v, version %d, loaded version %d of %d bytes", i, o.Err, o.Won, o.Record.Version, recs[i].Version, len(recs[i].Value))
			}
		}
	}
}

// Transactions that Spanner aborts are run again, and count once: an emulator that
// aborts commits at random has one winner for each version.
func TestReruns(t *testing.T) {
	e := servers.Spanner(t, &servers.Options{Settings: []string{"enable_fault_injection=true"}})
	c, admin := dial(t, e.URL)
	if err := Migrate(t.Context(), admin, c, nil); err != nil {
		t.Fatal(err)
	}
	var reruns atomic.Int64
	var mu sync.Mutex
	followed := make(map[int64]int)
	var wg sync.WaitGroup
	for range 4 {
		s := open(t, e.URL)
		wg.Go(func() {
			for range 20 {
				runs := 0
				_, err := s.transact(t.Context(), func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
					runs++
					r, err := txn.ReadRow(ctx, s.table, rowKey(lockA), []string{"value"})
					var value []byte
					if err == nil {
						err = r.Columns(&value)
					} else if spanner.ErrCode(err) == codes.NotFound {
						err = nil
					}
					if err != nil {
						return err
					}
					return txn.BufferWrite([]*spanner.Mutation{s.put(driver.Write{Key: lockA, Value: append(value, 'x')})})
				})
				if err != nil {
					t.Error(err)
					return
				}
				reruns.Add(int64(runs - 1))
			}
			var old int64 = driver.IfEmpty
			k := driver.Key{Space: driver.Names, Name: "b"}
			for range 40 {
				outs, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: old, Value: []byte("x")}})
				if err != nil {
					t.Error(err)
					return
				}
				if outs[0].Won {
					mu.Lock()
					followed[old]++
					mu.Unlock()
					if outs[0].Record.Version <= old {
						t.Errorf("version %d follows %d", outs[0].Record.Version, old)
					}
				}
				old = outs[0].Record.Version
			}
		})
	}
	wg.Wait()
	recs, err := open(t, e.URL).Load(t.Context(), []driver.Key{lockA}, driver.Fresh)
	if err != nil || len(recs[0].Value) != 80 {
		t.Errorf("80 transactions left %d: %v", len(recs[0].Value), err)
	}
	if reruns.Load() == 0 {
		t.Error("no transaction was run again")
	}
	for version, n := range followed {
		if n > 1 {
			t.Errorf("%d writes followed version %d", n, version)
		}
	}
	t.Logf("%d reruns, %d of 160 swaps won", reruns.Load(), len(followed))
}

// An emulator that is killed in the middle of writes leaves errors, never an answer
// that is not so; and one that comes back empty has nobody believe that it holds.
func TestKilled(t *testing.T) {
	e := servers.Spanner(t, &servers.Options{})
	c, admin := dial(t, e.URL)
	if err := Migrate(t.Context(), admin, c, nil); err != nil {
		t.Fatal(err)
	}
	s := open(t, e.URL)
	a := client(t, s)
	l := acquire(t, a, "a")
	ended := make(chan error, 8)
	for i := range cap(ended) {
		go func() {
			k := driver.Key{Space: driver.Names, Name: fmt.Sprint("w", i)}
			var old int64 = driver.IfEmpty
			for {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				outs, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: old, Value: []byte("x")}})
				cancel()
				if err != nil {
					ended <- err
					return
				}
				if !outs[0].Won || outs[0].Record.Version <= old {
					ended <- fmt.Errorf("won %v, version %d after %d", outs[0].Won, outs[0].Record.Version, old)
					return
				}
				old = outs[0].Record.Version
			}
		}()
	}
	time.Sleep(200 * time.Millisecond)
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	for range cap(ended) {
		if err := <-ended; strings.HasPrefix(err.Error(), "won") {
			t.Error(err)
		}
	}
	token := l.Token()
	if err := e.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	c2, admin := dial(t, e.URL)
	if err := Migrate(t.Context(), admin, c2, nil); err != nil {
		t.Fatal(err)
	}
	next := acquire(t, client(t, open(t, e.URL)), "a")
	if next.Token() <= token {
		t.Errorf("token %d after %d, though the emulator has forgotten all", next.Token(), token)
	}
	select {
	case <-l.Context().Done():
	case <-time.After(20 * time.Second):
		t.Error("who held a lock in an emulator that has forgotten it goes on to believe so")
	}
}

// An error names what the table has that it should not have, or lacks, and the way out.
func TestVerify(t *testing.T) {
	for _, test := range []struct{ change, want string }{
		{"", ""},
		{"drop table {records}", "create it with spanner.Migrate"},
		{"alter table {records} add column more int64", "has a column more that is not published"},
		{"alter table {records} drop column fenced", "has no column fenced"},
		{"alter table {records} alter column value bytes(max) not null", "the column value of the table holdfast_records is not as published, but BYTES(MAX) not null"},
		{"alter table {records} alter column written set options (allow_commit_timestamp = null)", "the column written"},
		{"alter table {records} add row deletion policy (older_than(written, interval 1 day))", "drop row deletion policy"},
	} {
		t.Run(test.change, func(t *testing.T) {
			t.Parallel()
			c, admin := dial(t, fresh(t))
			if test.change != "" {
				ddl(t, admin, c, expand(test.change, "holdfast_records"))
			}
			err := Verify(t.Context(), c, nil)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				if err := Migrate(t.Context(), admin, c, nil); err != nil {
					t.Errorf("a second time: %v", err)
				}
			} else if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	t.Run("dialect", func(t *testing.T) {
		_, admin := dial(t, fresh(t))
		e := servers.Spanner(t, nil)
		op, err := admin.CreateDatabase(t.Context(), &databasepb.CreateDatabaseRequest{
			Parent: "projects/test/instances/test", CreateStatement: `create database "elephant"`, DatabaseDialect: databasepb.DatabaseDialect_POSTGRESQL})
		if err == nil {
			_, err = op.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		c, admin := dial(t, strings.TrimSuffix(e.URL, "/test")+"/elephant")
		if err := Migrate(t.Context(), admin, c, nil); err == nil || !strings.Contains(err.Error(), "GoogleSQL") {
			t.Errorf("a database of the dialect PostgreSQL: %v", err)
		}
	})
	for _, prefix := range []string{"1", "a b", "x`; drop table y", "ä", strings.Repeat("x", 61)} {
		if _, err := Schema(&Options{Prefix: prefix}); err == nil || !strings.Contains(err.Error(), "prefix") {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
}

// A lock that is kept in another database is none here.
func TestFenceOfElsewhere(t *testing.T) {
	s := open(t, fresh(t))
	other := client(t, open(t, fresh(t)))
	l := acquire(t, other, "only there")
	_, err := s.client.ReadWriteTransaction(t.Context(), func(ctx context.Context, txn *spanner.ReadWriteTransaction) error { return Fence(ctx, txn, l) })
	if !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
}

// From the fence to the commit nobody takes the lock: a holder that is declared dead between
// the two has not written, or has before its successor took over.
func TestFenceHoldsToTheCommit(t *testing.T) {
	url := fresh(t)
	s := open(t, url)
	a := client(t, s)
	user := func(n int) driver.Key { return driver.Key{Space: driver.Settings, Name: fmt.Sprint("user ", n)} }
	for n := range 10 {
		l := acquire(t, a, "a")
		runs := 0
		at, err := s.transact(t.Context(), func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
			err := s.fence(ctx, txn, "a", l.Token())
			if runs++; err == nil && runs == 1 {
				// The lock is taken from it now, or has to wait until it has ended.
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					defer cancel()
					recs, err := s.Load(ctx, []driver.Key{lockA}, driver.Fresh)
					if err == nil {
						_, err = s.CompareAndSwap(ctx, []driver.Write{{Key: lockA, Old: recs[0].Version, Value: nil}})
					}
					if err != nil {
						t.Error(err)
					}
				}()
				time.Sleep(20 * time.Millisecond)
			}
			if err != nil {
				return err
			}
			return txn.BufferWrite([]*spanner.Mutation{s.put(driver.Write{Key: user(n), Value: []byte("x")})})
		})
		await(t, "the lock is taken away", func() bool {
			recs, err := s.Load(t.Context(), []driver.Key{lockA}, driver.Fresh)
			return err == nil && recs[0].Value == nil
		})
		recs, loadErr := s.Load(t.Context(), []driver.Key{lockA, user(n)}, driver.Fresh)
		if loadErr != nil {
			t.Fatal(loadErr)
		}
		switch {
		case err == nil && at.UnixMicro() >= recs[0].Version:
			t.Errorf("round %d: a fenced write at %d, after the lock was taken at %d", n, at.UnixMicro(), recs[0].Version)
		case errors.Is(err, holdfast.ErrLost) && recs[1].Version != 0:
			t.Errorf("round %d: written though it was lost", n)
		case err != nil && !errors.Is(err, holdfast.ErrLost):
			t.Error(err)
		}
		a.Close()
		a = client(t, s)
	}
}

// Of goroutines that hand a lock on in memory, an older holder does not write behind a
// newer one that has, though the record is the same.
func TestFenceHandOff(t *testing.T) {
	s := open(t, fresh(t))
	a := client(t, s)
	first := acquire(t, a, "a")
	var wg sync.WaitGroup
	locks := make(chan *holdfast.Lock, 20)
	for range cap(locks) { // so that a block of tokens is asked for
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
	fence := func(token int64) error {
		_, err := s.transact(t.Context(), func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
			return s.fence(ctx, txn, "a", token)
		})
		return err
	}
	var old, version int64
	inMemory := 0
	for range cap(locks) {
		l := <-locks
		if err := fence(l.Token()); err != nil {
			t.Fatal(err)
		}
		if old != 0 && !errors.Is(fence(old), holdfast.ErrLost) {
			t.Errorf("token %d passes after %d", old, l.Token())
		}
		recs, err := s.Load(t.Context(), []driver.Key{lockA}, driver.Fresh)
		if err != nil {
			t.Fatal(err)
		}
		if recs[0].Version == version {
			inMemory++
		}
		old, version = l.Token(), recs[0].Version
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if inMemory == 0 {
		t.Error("no hand-off was in memory")
	}
}

// The doctor says that an emulator is one, and what its clock is.
func TestDiagnose(t *testing.T) {
	found, err := open(t, fresh(t)).Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	levels := make(map[string]driver.Level)
	for _, f := range found {
		levels[f.Subject] = f.Level
	}
	if levels["server"] != driver.Warning || levels["durability"] != driver.Warning || levels["clock"] != driver.Good {
		t.Errorf("told %v", found)
	}
}

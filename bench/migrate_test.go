package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/etcd"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/memory"
)

// The code of docs/migrate for libraries that are in this module, theirs and ours.

type job = func(context.Context) error

func redsyncOld(ctx context.Context, client *redis.Client, backup job) error {
	rs := redsync.New(goredis.NewPool(client))
	mutex := rs.NewMutex("nightly", redsync.WithExpiry(30*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(ctx)
	return backup(ctx) // for 30 s, or with Extend in a goroutine of yours
}

func redislockOld(ctx context.Context, client *redis.Client, backup job) error {
	lock, err := redislock.New(client).Obtain(ctx, "nightly", 30*time.Second, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil // somebody is at it
	}
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	return backup(ctx)
}

// newDo and newTry are what becomes of all of them.
func newDo(ctx context.Context, client *holdfast.Client, backup job) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
		return backup(ctx) // ctx ends when the lock is lost; heartbeats are sent by themselves
	})
}

func newTry(ctx context.Context, client *holdfast.Client, backup job) error {
	lock, err := client.TryAcquire(ctx, "nightly")
	if errors.Is(err, holdfast.ErrHeld) {
		return nil // somebody is at it
	}
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	return backup(lock.Context())
}

func redsyncBoth(ctx context.Context, rs *redsync.Redsync, client *holdfast.Client, backup job) error {
	mutex := rs.NewMutex("nightly", redsync.WithExpiry(30*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx))
	return client.Do(ctx, "nightly", func(ctx context.Context, _ *holdfast.Lock) error {
		return backup(ctx) // extend the mutex as before
	})
}

func etcdOld(ctx context.Context, conn *clientv3.Client, backup job) error {
	session, err := concurrency.NewSession(conn, concurrency.WithTTL(15))
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "locks/nightly")
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(ctx)
	return backup(ctx) // and watch session.Done() yourself
}

func etcdOpen(ctx context.Context, conn *clientv3.Client) (*holdfast.Client, error) {
	store, err := etcd.New(ctx, conn, nil) // the same connection; keys below holdfast/
	if err != nil {
		return nil, err
	}
	return holdfast.New(store, nil) // one for the process, not one per lock
}

func etcdFencedOld(ctx context.Context, conn *clientv3.Client, mutex *concurrency.Mutex) (bool, error) {
	done, err := conn.Txn(ctx).
		If(mutex.IsOwner()).
		Then(clientv3.OpPut("accounts/ana", "90")).
		Commit()
	return err == nil && done.Succeeded, err
}

func etcdFencedNew(ctx context.Context, lock *holdfast.Lock) error {
	_, err := etcd.Fence(ctx, []*holdfast.Lock{lock}, // ErrLost: nothing was done
		clientv3.OpPut("accounts/ana", "90"))
	return err
}

func etcdBoth(ctx context.Context, session *concurrency.Session, client *holdfast.Client, backup job) error {
	mutex := concurrency.NewMutex(session, "locks/nightly")
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the old lock is lost with its session
		select {
		case <-session.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return client.Do(ctx, "nightly", func(ctx context.Context, _ *holdfast.Lock) error {
		return backup(ctx) // ctx ends when either is lost
	})
}

func advisoryOld(ctx context.Context, pool *pgxpool.Pool, backup job) error {
	return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtext('nightly'))`); err != nil {
			return err
		}
		defer conn.Exec(ctx, `select pg_advisory_unlock(hashtext('nightly'))`)
		return backup(ctx)
	})
}

func advisoryBoth(ctx context.Context, pool *pgxpool.Pool, client *holdfast.Client, backup job) error {
	return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtext('nightly'))`); err != nil {
			return err
		}
		defer conn.Exec(context.WithoutCancel(ctx), `select pg_advisory_unlock(hashtext('nightly'))`)
		return client.Do(ctx, "nightly", func(ctx context.Context, _ *holdfast.Lock) error {
			return backup(ctx)
		})
	})
}

const (
	shedlockTake = `
insert into shedlock (name, lock_until, locked_at, locked_by)
values ($1, timezone('utc', now()) + interval '10 minutes', timezone('utc', now()), $2)
on conflict (name) do update
set lock_until = excluded.lock_until, locked_at = excluded.locked_at, locked_by = excluded.locked_by
where shedlock.lock_until <= timezone('utc', now())
`
	shedlockEnd = `
update shedlock set lock_until = timezone('utc', now())
where name = $1 and locked_by = $2
`
	tableTake = `
insert into locks (name, owner, expires) values ($1, $2, now() + interval '60 seconds')
on conflict (name) do update set owner = excluded.owner, expires = excluded.expires
where locks.expires < now()
`
	tableView = `
select name, mode, state, "user", host, address, pid, device, reason,
       requested, granted, retries, last_beat, suspected_by
from holdfast_locks
order by name, state, position;
`
	tableFence = `
begin;
update jobs set progress = 40 where name = 'nightly';
select holdfast_fence('nightly', 1795226403001234);
commit;
`
)

func shedlockBoth(ctx context.Context, pool *pgxpool.Pool, client *holdfast.Client, who string, backup job) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, _ *holdfast.Lock) error {
		taken, err := pool.Exec(ctx, shedlockTake, "nightly", who)
		if err != nil || taken.RowsAffected() == 0 {
			return err // a Java program is at it: skip, as ShedLock does
		}
		defer pool.Exec(context.WithoutCancel(ctx), shedlockEnd, "nightly", who)
		return backup(ctx)
	}, holdfast.MinHold(time.Minute)) // lockAtLeastFor
}

// once checks that of several runs only one at a time is in.
func once(t *testing.T, ran *atomic.Int32) job {
	var in atomic.Int32
	return func(ctx context.Context) error {
		if in.Add(1) != 1 {
			t.Error("two are at it")
		}
		defer in.Add(-1)
		ran.Add(1)
		return ctx.Err()
	}
}

func mustRun(t *testing.T, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
}

// What becomes of all of them, on a store in memory.
func TestMigrated(t *testing.T) {
	client, err := holdfast.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var ran atomic.Int32
	backup := once(t, &ran)
	mustRun(t, newDo(t.Context(), client, backup), newTry(t.Context(), client, backup))
	if n := ran.Load(); n != 2 {
		t.Errorf("it ran %d times, want twice", n)
	}
	lock, err := client.Acquire(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release(t.Context())
	if err := newTry(t.Context(), client, backup); err != nil || ran.Load() != 2 {
		t.Errorf("while it is held: %v, ran %d times", err, ran.Load())
	}
}

func TestRedisBesideHoldfast(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(servers.Redis(t, nil).URL, "redis://")})
	defer rdb.Close()
	client, err := holdfast.New(memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var ran atomic.Int32
	backup := once(t, &ran)
	mustRun(t, redsyncOld(t.Context(), rdb, backup), redislockOld(t.Context(), rdb, backup),
		redsyncBoth(t.Context(), redsync.New(goredis.NewPool(rdb)), client, backup))
	if n := ran.Load(); n != 3 {
		t.Errorf("it ran %d times, want three times", n)
	}
}

func TestEtcdBesideHoldfast(t *testing.T) {
	ctx := t.Context()
	conn, err := clientv3.New(clientv3.Config{Endpoints: []string{servers.Etcd(t, nil).Addr()}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, err := etcdOpen(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	session, err := concurrency.NewSession(conn, concurrency.WithTTL(15))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	var ran atomic.Int32
	backup := once(t, &ran)
	both := make(chan error, 1)
	go func() { both <- etcdBoth(ctx, session, client, backup) }()
	mustRun(t, etcdOld(ctx, conn, backup), <-both, newDo(ctx, client, backup))
	if n := ran.Load(); n != 3 {
		t.Errorf("it ran %d times, want three times", n)
	}

	mutex := concurrency.NewMutex(session, "locks/other")
	if err := mutex.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	lock, err := client.Acquire(ctx, "other")
	if err != nil {
		t.Fatal(err)
	}
	if done, err := etcdFencedOld(ctx, conn, mutex); !done || err != nil {
		t.Errorf("theirs, held: %v, %v", done, err)
	}
	mustRun(t, etcdFencedNew(ctx, lock), mutex.Unlock(ctx), lock.Release(ctx))
	if done, _ := etcdFencedOld(ctx, conn, mutex); done {
		t.Error("theirs was written after the release")
	}
	if err := etcdFencedNew(ctx, lock); !errors.Is(err, holdfast.ErrReleased) {
		t.Errorf("ours, after the release: %v, want ErrReleased", err)
	}

	// The old lock is lost in the middle of the work.
	err = etcdBoth(ctx, session, client, func(ctx context.Context) error {
		session.Close()
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the old lock was lost, and the work ended with %v", err)
	}
}

// Advisory locks, ShedLock's table and a table of one's own, beside Holdfast in PostgreSQL.
func TestTablesBesideHoldfast(t *testing.T) {
	ctx, dsn := t.Context(), pglockDatabase(t)
	client := shortHoldfast(t, dsn, &holdfast.Options{Owner: holdfast.Owner{Host: "app1", User: "ana"}})
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, table := range []string{
		`create table shedlock (name varchar(64) not null, lock_until timestamp not null, locked_at timestamp not null, locked_by varchar(255) not null, primary key (name))`,
		`create table locks (name text primary key, owner text, expires timestamptz)`,
		`create table jobs (name text, progress int)`,
	} {
		if _, err := pool.Exec(ctx, table); err != nil {
			t.Fatal(err)
		}
	}
	var ran atomic.Int32
	backup := once(t, &ran)
	both := make(chan error, 1)
	go func() { both <- advisoryBoth(ctx, pool, client, backup) }()
	mustRun(t, advisoryOld(ctx, pool, backup), <-both)
	if n := ran.Load(); n != 2 {
		t.Errorf("with advisory locks it ran %d times, want twice", n)
	}

	// A Java program has ShedLock's row: skipped. Then it has gone.
	rows := func(sql string, args ...any) int64 {
		t.Helper()
		tag, err := pool.Exec(ctx, sql, args...)
		if err != nil {
			t.Fatal(err)
		}
		return tag.RowsAffected()
	}
	if rows(shedlockTake, "nightly", "java") != 1 || rows(shedlockTake, "nightly", "another") != 0 {
		t.Error("ShedLock's row was taken twice, or not at all")
	}
	taken := func() error { return shedlockBoth(ctx, pool, client, "go", backup) }
	mustRun(t, taken())
	if n := ran.Load(); n != 2 {
		t.Errorf("while the row was taken it ran")
	}
	if rows(shedlockEnd, "nightly", "another") != 0 || rows(shedlockEnd, "nightly", "java") != 1 {
		t.Error("ShedLock's row was given back by another, or not at all")
	}
	info, err := client.Show(ctx, "nightly") // kept for a minute: lockAtLeastFor
	if err != nil || len(info.Holders) != 1 {
		t.Fatal(info, err)
	}
	mustRun(t, client.BreakNow(ctx, "nightly", info.Holders[0].Token, "a test"), taken())
	if n := ran.Load(); n != 3 {
		t.Errorf("with ShedLock's row it ran %d times, want three times in all", n)
	}

	if rows(tableTake, "a", "one") != 1 || rows(tableTake, "a", "two") != 0 {
		t.Error("the row of a table of one's own was taken twice, or not at all")
	}
	lock, err := client.Acquire(ctx, "orders", holdfast.Reason("month end"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectOneRow(must(t)(pool.Query(ctx, strings.Replace(tableView, "from holdfast_locks", "from holdfast_locks where name = 'orders'", 1))), pgx.RowToMap)
	if err != nil || got["user"] != "ana" || got["host"] != "app1" || got["reason"] != "month end" || got["state"] != "held" || got["granted"] == nil {
		t.Errorf("the view says %v, %v", got, err)
	}
	fenced := strings.NewReplacer("nightly", "orders", "1795226403001234", strconv.FormatInt(lock.Token(), 10)).Replace(tableFence)
	if _, err := pool.Exec(ctx, fenced); err != nil {
		t.Error(err)
	}
	mustRun(t, lock.Release(ctx))
	if _, err := pool.Exec(ctx, fenced); err == nil {
		t.Error("it was written after the release")
	}
}

func must(t *testing.T) func(pgx.Rows, error) pgx.Rows {
	return func(r pgx.Rows, err error) pgx.Rows {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cirello.io/pglock"
	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/busy"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The code of docs/migrate/pglock.md, and what it says of both libraries, on a server.

func openOld(dsn string) (*pglock.Client, error) {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return nil, err
	}
	client, err := pglock.New(db,
		pglock.WithLeaseDuration(20*time.Second),
		pglock.WithHeartbeatFrequency(5*time.Second),
		pglock.WithOwner("worker-7"))
	if err != nil {
		return nil, err
	}
	if err := client.TryCreateTable(); err != nil {
		return nil, err
	}
	return client, nil
}

func openNew(ctx context.Context, dsn string) (*holdfast.Client, error) {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return nil, err
	}
	if err := postgres.Migrate(ctx, pool, nil); err != nil { // or once, by hand: holdfast schema apply
		return nil, err
	}
	store, err := postgres.New(ctx, pool, nil)
	if err != nil {
		return nil, err
	}
	client, err := holdfast.New(store, &holdfast.Options{
		TTL:   20 * time.Second, // best left out: then the store's setting counts, 15s
		Owner: holdfast.Owner{Host: "worker-7"},
	})
	if err != nil {
		return nil, err
	}
	return client, nil
}

func acquireOld(ctx context.Context, client *pglock.Client, work func(context.Context, int64)) error {
	lock, err := client.AcquireContext(ctx, "nightly", pglock.WithData([]byte("release 42")))
	if err != nil {
		return err
	}
	defer lock.Close()
	work(ctx, lock.RecordVersionNumber())
	return nil
}

func acquireNew(ctx context.Context, client *holdfast.Client, work func(context.Context, int64)) error {
	lock, err := client.Acquire(ctx, "nightly", holdfast.Reason("release 42"))
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	work(lock.Context(), lock.Token())
	return nil
}

func doOld(ctx context.Context, client *pglock.Client, backup func(context.Context) error) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lock *pglock.Lock) error {
		return backup(ctx)
	})
}

func doNew(ctx context.Context, client *holdfast.Client, backup func(context.Context) error) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
		return backup(ctx)
	})
}

func tryOld(ctx context.Context, client *pglock.Client) error {
	lock, err := client.AcquireContext(ctx, "nightly", pglock.FailIfLocked())
	if errors.Is(err, pglock.ErrNotAcquired) {
		return nil // somebody is at it
	}
	if err != nil {
		return err
	}
	return lock.Close()
}

func tryNew(ctx context.Context, client *holdfast.Client) error {
	lock, err := client.TryAcquire(ctx, "nightly")
	if errors.Is(err, holdfast.ErrHeld) {
		return nil // somebody is at it: the error says who
	}
	if err != nil {
		return err
	}
	return lock.Release(ctx)
}

func progress(ctx context.Context, pool *pgxpool.Pool, lock *holdfast.Lock) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update jobs set progress = 40 where name = 'nightly'`); err != nil {
			return err
		}
		return postgres.Fence(ctx, tx, lock) // last before the commit; ErrLost rolls back
	})
}

func doBoth(ctx context.Context, old *pglock.Client, client *holdfast.Client, backup func(context.Context) error) error {
	return old.Do(ctx, "nightly", func(ctx context.Context, _ *pglock.Lock) error {
		return client.Do(ctx, "nightly", func(ctx context.Context, _ *holdfast.Lock) error {
			return backup(ctx) // ctx ends when either is lost
		})
	})
}

// pglockDatabase is the data source name of a new database for both.
func pglockDatabase(t *testing.T) string {
	return servers.Postgres(t, nil).Database(t)
}

// What stands side by side does the same.
func TestPglockBesideHoldfast(t *testing.T) {
	ctx, dsn := t.Context(), pglockDatabase(t)
	old, err := openOld(dsn)
	if err != nil {
		t.Fatal(err)
	}
	client, err := openNew(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var numbers []int64
	work := func(ctx context.Context, number int64) {
		if ctx.Err() != nil {
			t.Error(ctx.Err())
		}
		numbers = append(numbers, number)
	}
	backup := func(ctx context.Context) error { return ctx.Err() }
	for _, err := range []error{
		acquireOld(ctx, old, work), acquireOld(ctx, old, work), doOld(ctx, old, backup), tryOld(ctx, old),
		acquireNew(ctx, client, work), acquireNew(ctx, client, work), doNew(ctx, client, backup), tryNew(ctx, client),
		doBoth(ctx, old, client, backup),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if len(numbers) != 4 || numbers[0] >= numbers[1] || numbers[2] >= numbers[3] {
		t.Errorf("record version numbers and tokens %v, want each larger than the one before", numbers)
	}

	// Somebody is at it.
	theirs, err := old.Acquire("nightly", pglock.WithData([]byte("40%")), pglock.KeepOnRelease(), pglock.ReplaceData())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := client.Acquire(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{tryOld(ctx, old), tryNew(ctx, client)} {
		if err != nil {
			t.Error(err)
		}
	}

	// Data: beside the lock, or in a table of one's own, fenced.
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	if data, err := old.GetData("nightly"); err != nil || string(data) != "40%" {
		t.Errorf("pglock's data are %q, error %v", data, err)
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `create table jobs (name text, progress int); insert into jobs values ('nightly', 0)`); err != nil {
		t.Fatal(err)
	}
	if err := progress(ctx, pool, ours); err != nil {
		t.Error(err)
	}
	if err := ours.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := progress(ctx, pool, ours); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("a write after the release: %v", err)
	}
}

// shortPglock is a client with a short lease, and what it logs.
func shortPglock(t *testing.T, dsn string, lease time.Duration) (*pglock.Client, chan string) {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	logged := make(chan string, 1000)
	c, err := pglock.New(db, pglock.WithLeaseDuration(lease), pglock.WithHeartbeatFrequency(lease/4), pglock.WithLevelLogger(teller(logged)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.TryCreateTable(); err != nil {
		t.Fatal(err)
	}
	return c, logged
}

// A teller is a pglock.LevelLogger.
type teller chan string

func (l teller) say(format string, args ...any) {
	select {
	case l <- fmt.Sprintf(format, args...):
	default:
	}
}
func (l teller) Debug(format string, args ...any) { l.say(format, args...) }
func (l teller) Error(format string, args ...any) { l.say(format, args...) }

func shortHoldfast(t *testing.T, dsn string, opts *holdfast.Options) *holdfast.Client {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	c, err := holdfast.New(store, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A pglock waiter sleeps for a lease; one of Holdfast's is woken.
func TestPglockSleeps(t *testing.T) {
	ctx, dsn := t.Context(), pglockDatabase(t)
	const lease = 3 * time.Second
	one, _ := shortPglock(t, dsn, lease)
	two, logged := shortPglock(t, dsn, lease)
	held, err := one.Acquire("nightly")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		l, err := two.Acquire("nightly")
		if err == nil {
			err = l.Close()
		}
		done <- err
	}()
	for line := range logged {
		if strings.HasPrefix(line, "not acquired, wait") {
			break
		}
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	freed := time.Now()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	slept := time.Since(freed)

	waiting := make(chan string, 1)
	first := shortHoldfast(t, dsn, nil)
	second := shortHoldfast(t, dsn, &holdfast.Options{Trace: &holdfast.Trace{Queued: func(_ context.Context, e holdfast.Event) { waiting <- e.Name }}})
	lock, err := first.Acquire(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		l, err := second.Acquire(ctx, "nightly")
		if err == nil {
			err = l.Release(ctx)
		}
		done <- err
	}()
	<-waiting
	if err := lock.Release(ctx); err != nil {
		t.Fatal(err)
	}
	freed = time.Now()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("after the release it took pglock %v, Holdfast %v", slept, time.Since(freed))
	if woken := time.Since(freed); slept < lease/2 || woken > lease/2 {
		t.Errorf("after the release it took pglock %v, Holdfast %v; docs/migrate/pglock.md says otherwise", slept, woken)
	}
}

// The end of the acquiring context ends pglock's heartbeats, but not a lock of
// Holdfast's.
func TestPglockContext(t *testing.T) {
	dsn := pglockDatabase(t)
	one, _ := shortPglock(t, dsn, time.Second)
	two, _ := shortPglock(t, dsn, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	theirs, err := one.AcquireContext(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	before := theirs.RecordVersionNumber()
	for deadline := time.Now().Add(10 * time.Second); theirs.RecordVersionNumber() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("pglock's record version number stays the same at a heartbeat; docs/migrate/pglock.md says otherwise")
		}
	}
	client := shortHoldfast(t, dsn, &holdfast.Options{TTL: 2 * time.Second})
	ours, err := client.Acquire(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	token := ours.Token()
	cancel()
	if l, err := two.AcquireContext(t.Context(), "nightly"); err != nil {
		t.Errorf("pglock keeps its lock: %v; docs/migrate/pglock.md says otherwise", err)
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
	other := shortHoldfast(t, dsn, nil)
	if _, err := other.Acquire(t.Context(), "nightly", holdfast.MaxWait(3*time.Second)); !errors.Is(err, holdfast.ErrHeld) || ours.Err() != nil {
		t.Errorf("the lock went with its context: %v, %v", err, ours.Err())
	}
	if ours.Token() != token {
		t.Errorf("the token was %d and is %d", token, ours.Token())
	}
	if err := ours.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Moving over: in each step programs of two releases run, and never two at the
// same work.
func TestPglockMove(t *testing.T) {
	dsn := pglockDatabase(t)
	for _, step := range []struct{ name, left, right string }{
		{"from pglock to both", "pglock", "both"},
		{"from both to Holdfast", "both", "holdfast"},
	} {
		t.Run(step.name, func(t *testing.T) {
			var inside, rounds atomic.Int32
			backup := func(ctx context.Context) error {
				if inside.Add(1) != 1 {
					t.Error("two are at the same work")
				}
				rounds.Add(1)
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
				inside.Add(-1)
				return ctx.Err()
			}
			var wg sync.WaitGroup
			for i := range 6 {
				release := step.left
				if i%2 == 1 {
					release = step.right
				}
				// A sleeper of pglock's looks again after a lease, and a call may take as long:
				// the lease is short, and longer than the disk of a busy machine stands still.
				old, _ := shortPglock(t, dsn, busy.Times(800*time.Millisecond))
				client := shortHoldfast(t, dsn, nil)
				wg.Go(func() {
					for range 3 {
						var err error
						switch release {
						case "pglock":
							err = doOld(t.Context(), old, backup)
						case "both":
							err = doBoth(t.Context(), old, client, backup)
						case "holdfast":
							err = doNew(t.Context(), client, backup)
						}
						if err != nil {
							t.Errorf("%s: %v", release, err)
						}
					}
				})
			}
			wg.Wait()
			if n := rounds.Load(); n != 18 {
				t.Errorf("the work was done %d times, want 18", n)
			}
		})
	}
}

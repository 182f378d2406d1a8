package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// watching runs Watch and returns what it calls; stop ends it.
func watching(t *testing.T, s *Store, who ...string) (notifications chan driver.Notification, ended chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	notifications, ended = make(chan driver.Notification, 1000), make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- s.Watch(ctx, who, func(h driver.Notification) { notifications <- h })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return notifications, ended, cancel
}

func expect(t *testing.T, notifications chan driver.Notification, want driver.Notification) {
	t.Helper()
	select {
	case got := <-notifications:
		if got != want {
			t.Errorf("told of %+v, want %+v", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("not told of %+v", want)
	}
}

// listens is what the last query of a backend that listens looks like.
const listens = `(query like 'listen%' or query like '/* listens */%')`

// listening counts the backends that listen.
func listening(t *testing.T, r reopener) (n int) {
	t.Helper()
	if err := r.pool.QueryRow(t.Context(), `
select count(*) from pg_stat_activity where datname = current_database() and `+listens).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func eventually(t *testing.T, within time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", within, what)
		}
	}
}

func TestPayload(t *testing.T) {
	for _, k := range []driver.Key{{Space: driver.Names, Name: "a"}, {Space: driver.Audits, Name: strings.Repeat("\x00\xff'", 85)}} {
		for _, wake := range []string{driver.Everyone, strings.Repeat("\x00", 64)} {
			p := payload(sqlstore.Write{ID: sqlstore.ID(k), Notify: wake})
			want := driver.Notification{Key: k, To: wake}
			if got, ok := notificationOf(p); !ok || got != want || len(p) > 7999 {
				t.Errorf("%q became %+v, %v", p, got, ok)
			}
		}
	}
	for _, p := range []string{"", "x", "00", "0061", "0061 ", "0961 2a", "zz 2a", "0061 zz", strings.Repeat("00", 1100) + " 2a"} {
		if got, ok := notificationOf(p); !ok || got != (driver.Notification{}) {
			t.Errorf("%q became %+v, %v, want that anything may have changed", p, got, ok)
		}
	}
	if _, ok := notificationOf("? ABC"); ok {
		t.Error("somebody's proof is taken for a notification")
	}
}

// What strangers send does no harm; and watching ends with the store, with the
// connection, and leaves nobody listening.
func TestWatch(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	if n := listening(t, r); n != 0 {
		t.Errorf("%d backends listen, and nobody watches", n)
	}
	notifications, ended, stop := watching(t, r.Store)
	expect(t, notifications, driver.Notification{})
	exec(t, r.pool, `select pg_notify($1, 'rubbish')`, r.channel.all())
	expect(t, notifications, driver.Notification{})
	exec(t, r.pool, `select pg_notify($1, '? 123')`, r.channel.all())
	exec(t, r.pool, `notify other, 'rubbish'`)
	if _, err := r.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Name: "a"}, Old: driver.IfEmpty, Value: []byte("1"), Notify: "me"}}); err != nil {
		t.Fatal(err)
	}
	expect(t, notifications, driver.Notification{Key: driver.Key{Name: "a"}, To: "me"})
	if n := listening(t, r); n != 1 {
		t.Errorf("%d backends listen, want 1", n)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch returned %v", err)
	}
	if n := listening(t, r); n != 0 {
		t.Errorf("%d backends listen after Watch", n)
	}

	// The next one takes the same connection, if it is still good.
	for _, ruin := range []bool{false, true} {
		var before, after int
		count := func(n *int) {
			t.Helper()
			if err := r.pool.QueryRow(ctx, `select count(*) from pg_stat_activity where application_name = 'holdfast' and datname = current_database()`).Scan(n); err != nil {
				t.Fatal(err)
			}
		}
		count(&before)
		if ruin {
			exec(t, r.pool, `select pg_terminate_backend(pid) from pg_stat_activity where query like 'unlisten%' and datname = current_database()`)
		}
		notifications, ended, stop = watching(t, r.Store)
		expect(t, notifications, driver.Notification{})
		eventually(t, 10*time.Second, fmt.Sprintf("%d connections of ours, as before", before), func() bool { // one that was ended may be seen a little longer
			count(&after)
			return after == before
		})
		stop()
		<-ended
	}

	notifications, ended, _ = watching(t, r.Store)
	expect(t, notifications, driver.Notification{})
	exec(t, r.pool, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and `+listens)
	if err := <-ended; err == nil || !strings.HasPrefix(err.Error(), "watch: ") {
		t.Errorf("Watch of a connection that is gone returned %v", err)
	}

	notifications, ended, _ = watching(t, r.Store)
	expect(t, notifications, driver.Notification{})
	r.Close()
	if err := <-ended; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Watch returned %v after Close", err)
	}
	if err := r.Watch(ctx, nil, func(driver.Notification) {}); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Watch of a closed store returned %v", err)
	}
}

// A notification reaches only its recipients, and carries the record to the session that it names.
func TestWatchRecipients(t *testing.T) {
	r := fresh(t, nil)
	me, _, _ := watching(t, r.Store, "me", strings.Repeat("long", 16))
	all, _, _ := watching(t, r.Store)
	expect(t, me, driver.Notification{})
	expect(t, all, driver.Notification{})
	for i, wake := range []string{"you", "me", strings.Repeat("long", 16), driver.Everyone} {
		k := driver.Key{Name: string(rune('a' + i))}
		out, err := r.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1"), Notify: wake}})
		if err != nil {
			t.Fatal(err)
		}
		switch wake {
		case "you":
		case driver.Everyone:
			expect(t, me, driver.Notification{Key: k, To: wake})
		default:
			expect(t, me, driver.Notification{Key: k, To: wake, Version: out[0].Record.Version, Value: "1"})
		}
		expect(t, all, driver.Notification{Key: k, To: wake})
	}
}

// A notification whose record cannot be read carries none, and Watch ends: it has lost its
// connection.
func TestWatchLocked(t *testing.T) {
	t.Parallel()
	r := fresh(t, nil)
	notifications, ended, _ := watching(t, r.Store, "me")
	expect(t, notifications, driver.Notification{})
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(), `lock table `+r.Tables.Expand(`{records}`, `"`)+` in access exclusive mode`)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, r.pool, `select pg_notify($1, $2)`, r.channel.of("me"), payload(sqlstore.Write{ID: sqlstore.ID(driver.Key{Name: "a"}), Notify: "me"}))
	expect(t, notifications, driver.Notification{Key: driver.Key{Name: "a"}, To: "me"})
	if err := <-ended; err == nil {
		t.Error("Watch goes on with a connection on which nothing is read")
	}
}

// A client listens only while it waits.
func TestListensWhileWaiting(t *testing.T) {
	t.Parallel()
	r := fresh(t, nil)
	ctx := t.Context()
	holder, waiter := client(t, open(t, connect(t, r.url), nil)), client(t, open(t, connect(t, r.url), nil))
	l, err := holder.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *holdfast.Lock, 1)
	go func() {
		l, err := waiter.Acquire(ctx, "a")
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	eventually(t, 10*time.Second, "a waiter listens", func() bool { return listening(t, r) == 1 })
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
	if l = <-got; l == nil {
		return
	}
	eventually(t, 20*time.Second, "who waits no longer does not listen", func() bool { return listening(t, r) == 0 })
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
}

// A connection that has died without a word is noticed.
func TestWatchSilence(t *testing.T) {
	t.Parallel()
	r := fresh(t, nil)
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := servers.NewProxy(t.Context(), u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	s := open(t, connect(t, servers.WithHostPort(r.url, proxy.Addr())), nil)
	notifications, ended, _ := watching(t, s)
	expect(t, notifications, driver.Notification{})
	proxy.Blackhole(true, true)
	select {
	case err := <-ended:
		if err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("Watch returned %v", err)
		}
	case <-time.After(2 * quietFor):
		t.Errorf("nobody noticed in %v", 2*quietFor)
	}
	proxy.Blackhole(false, false)
}

// Behind a pooler in transaction mode Watch says that nothing arrives, and says it
// at once when it is asked again; in session mode it works.
func TestWatchPooled(t *testing.T) {
	r := migrated(t, bouncer(t).Database(t), nil)
	for i := range 2 {
		began := time.Now()
		err := r.Watch(t.Context(), nil, func(h driver.Notification) { t.Errorf("told of %+v", h) })
		if !errors.Is(err, errDeaf) {
			t.Errorf("Watch returned %v", err)
		}
		if took := time.Since(began); took > proofTime*3 || i > 0 && took > time.Second {
			t.Errorf("it took %v", took)
		}
	}
	says(t, r.Store, "ok server: PostgreSQL ", "slow notifications: a connection pooler that shares connections is in between")

	session, err := servers.StartPgBouncer(t.Context(), servers.Postgres(t, nil), &servers.Options{Settings: []string{"pool_mode=session"}})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Stop()
	r = migrated(t, session.Database(t), nil)
	notifications, _, stop := watching(t, r.Store)
	expect(t, notifications, driver.Notification{})
	if _, err := r.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "a"}, Old: driver.IfEmpty, Value: []byte("1"), Notify: "me"}}); err != nil {
		t.Fatal(err)
	}
	expect(t, notifications, driver.Notification{Key: driver.Key{Name: "a"}, To: "me"})
	stop()
	says(t, r.Store, "ok notifications: they arrive")
}

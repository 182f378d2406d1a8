package cassandra

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/memory"
)

// A wrapped is a store with another around it, as one that counts calls.
type wrapped struct{ driver.Store }

func (w wrapped) Unwrap() driver.Store { return w.Store }

// A fence agrees where the locks of its store do, also if the store is wrapped.
func TestFenceOfWrapped(t *testing.T) {
	t.Parallel()
	s := &Store{session: new(gocql.Session), opts: Options{LocalDC: "dc1", Allow: []string{localSerial}}}
	s.calls.init(s.session, s.opts.LocalDC, s.opts.localSerial())
	if c := callsFor(s.session, wrapped{s}); c != &s.calls {
		t.Error("the session of a wrapped store is not asked as for its locks")
	}
	if c := callsFor(new(gocql.Session), wrapped{s}); c.serial != gocql.LocalSerial || c.dc != "dc1" {
		t.Errorf("another session than that of a wrapped store is asked at %v in %q, want LOCAL_SERIAL in dc1", c.serial, c.dc)
	}
	if c := callsFor(s.session, memory.New()); c.serial != gocql.Serial || c.dc != "" {
		t.Errorf("for a lock of another store it is asked at %v in %q, want SERIAL anywhere", c.serial, c.dc)
	}
}

// accounts is a table of an application's, of that name, with a row for "ana".
func accounts(t *testing.T, name string) (session *gocql.Session, table string) {
	t.Helper()
	session, ks := keyspace(t)
	table = ks + "." + name
	exec(t, session, "create table "+table+" (id text primary key, balance bigint, fence bigint)")
	exec(t, session, "insert into "+table+" (id, balance, fence) values ('ana', 100, 0) if not exists")
	return session, table
}

func balance(t *testing.T, session *gocql.Session, table string) (balance, fence int64) {
	t.Helper()
	if err := session.Query("select balance, fence from "+table+" where id = 'ana'").Consistency(gocql.Serial).Scan(&balance, &fence); err != nil {
		t.Fatal(err)
	}
	return balance, fence
}

func client(t *testing.T, s driver.Store) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The fence of a row lets each later holder in and no earlier one.
func TestFence(t *testing.T) {
	t.Parallel()
	session, table := accounts(t, "accounts")
	c := client(t, memory.New()) // wherever the lock is
	ctx := t.Context()
	set := "update " + table + " set fence = ?, balance = ? where id = ? if fence <= ?"
	first, err := c.Acquire(ctx, "ana")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the same holder as often as it likes
		if err := Fence(ctx, session, first, set, 90, "ana"); err != nil {
			t.Fatal(err)
		}
	}
	if b, f := balance(t, session, table); b != 90 || f != first.Token() {
		t.Errorf("balance %d, fence %d", b, f)
	}
	if err := Fence(ctx, session, first, "update "+table+" set fence = ?, balance = ?\nwhere id = ? IF balance = ? AND fence <= ?;", 80, "ana", 90); err != nil {
		t.Errorf("with a condition that holds: %v", err)
	}
	if err := Fence(ctx, session, first, "update "+table+" set fence = ?, balance = ? where id = ? if balance = ? and fence <= ?", 70, "ana", 90); !errors.Is(err, ErrNotApplied) {
		t.Errorf("with a condition that does not hold: %v", err)
	}
	if err := Fence(ctx, session, first, set, 70, "bob"); !errors.Is(err, ErrNotApplied) || !strings.Contains(err.Error(), "insert it with fence 0") {
		t.Errorf("a row that is not there: %v", err)
	}
	exec(t, session, "insert into "+table+" (id, balance) values ('eve', 1) if not exists")
	if err := Fence(ctx, session, first, set, 70, "eve"); !errors.Is(err, ErrNotApplied) || !strings.Contains(err.Error(), "insert it with fence 0") {
		t.Errorf("a row without a fence: %v", err)
	}
	if err := first.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := Fence(ctx, session, first, set, 60, "ana"); !errors.Is(err, holdfast.ErrReleased) {
		t.Errorf("after the release: %v", err)
	}

	// What it promises, and what not: with tokens, for a holder that has lost
	// its lock and does not know.
	second, err := c.Acquire(ctx, "ana")
	if err != nil {
		t.Fatal(err)
	}
	own := new(calls)
	own.init(session, "", false)
	late := func(b int64) error { return fence(ctx, own, "ana", first.Token(), set, []any{b, "ana"}) }
	if err := late(50); err != nil {
		t.Errorf("an earlier holder before the later one's first update: %v", err)
	}
	if err := Fence(ctx, session, second, "update "+table+" set fence = ? where id = ? if fence <= ?", "ana"); err != nil {
		t.Errorf("raising the fence alone: %v", err)
	}
	if err := late(40); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("an earlier holder after it: %v", err)
	}
	if b, f := balance(t, session, table); b != 50 || f != second.Token() {
		t.Errorf("balance %d, fence %d", b, f)
	}
	// An update whose answer is lost may have been applied: that is said.
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := Fence(over, session, second, set, 1, "ana"); !errors.Is(err, errUnknown) || errors.Is(err, ErrNotApplied) || errors.Is(err, holdfast.ErrLost) {
		t.Errorf("in no time: %v", err)
	}
	// The error of a wrong statement is the server's own.
	if err := Fence(ctx, session, second, "update "+table+" set fence = ?, nothing = ? where id = ? if fence <= ?", 1, "ana"); err == nil || errors.Is(err, errUnknown) {
		t.Errorf("a column that is not there: %v", err)
	}
}

// An update without the condition, or without the token in the row, is not sent.
func TestFenceForm(t *testing.T) {
	for _, update := range []string{
		"update accounts set balance = ? where id = ?",
		"update accounts set fence = ?, balance = ? where id = ?",
		"update accounts set balance = ? where id = ? if fence <= ?",
		"update accounts set fence = ?, balance = ? where id = ? if fence <= ? and balance = ?",
		"update accounts set fence = ?, balance = ? where id = ? if fence < ?",
		"update accounts set fence = ?, balance = ? where id = ? if fence >= ?",
		"update accounts set fence = ? + 1 where id = ? if fence <= ?",
		"update accounts set fences = ?, balance = ? where id = ? if fence <= ?",
		"insert into accounts (id, fence) values (?, ?) if not exists",
		"delete from accounts where id = ? if fence <= ?",
		"update accounts using ttl 5 set fence = ?, balance = ? where id = ? if fence <= ?",
		"",
	} {
		if err := fence(t.Context(), nil, "ana", 1, update, nil); err == nil || !strings.Contains(err.Error(), "has to begin with") {
			t.Errorf("%q: %v", update, err)
		}
	}
}

// Shared holders' tokens are in no order that a row could go by.
func TestFenceShared(t *testing.T) {
	c := client(t, memory.New())
	for _, opt := range []holdfast.Option{holdfast.Shared(), holdfast.Slots(2)} {
		lock, err := c.Acquire(t.Context(), "a", opt)
		if err != nil {
			t.Fatal(err)
		}
		if err := Fence(t.Context(), nil, lock, "update a set fence = ? where id = ? if fence <= ?", "a"); err == nil || !strings.Contains(err.Error(), "shared") {
			t.Errorf("got %v", err)
		}
		lock.Release(t.Context())
	}
}

// A static column is one fence for all rows of a partition.
func TestFenceStatic(t *testing.T) {
	t.Parallel()
	session, ks := keyspace(t)
	table := ks + ".ledger_static"
	exec(t, session, "create table "+table+" (book text, nr int, amount bigint, fence bigint static, primary key (book, nr))")
	exec(t, session, "insert into "+table+" (book, fence) values ('a', 0) if not exists")
	c := new(calls)
	c.init(session, "", false)
	write := func(token int64, nr int) error {
		return fence(t.Context(), c, "a", token, "update "+table+" set fence = ?, amount = ? where book = ? and nr = ? if fence <= ?", []any{int64(5), "a", nr})
	}
	if err := write(2, 1); err != nil {
		t.Error(err)
	}
	if err := write(1, 2); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("another row of the partition: %v", err)
	}
	if err := write(2, 2); err != nil {
		t.Error(err)
	}
}

// An update whose answer was lost may come late: over a later one of the same holder,
// since their tokens are the same. So it is not sent again as if nothing had
// happened; and with the next token nothing of it comes any more.
func TestFenceWithoutAnswer(t *testing.T) {
	t.Parallel()
	session, table := accounts(t, "accounts_late")
	tap, tapped := tapped(t, nil)
	c := client(t, memory.New())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	set := "update " + table + " set fence = ?, balance = ? where id = ? if fence <= ?"
	var held []*call
	hold, pause := func(*call) fate { return lost }, time.Tick(50*time.Millisecond)
	lock, err := c.Acquire(ctx, "ana")
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range []int{90, 80} {
		tap.set(hold)
		for err = Fence(ctx, tapped, lock, set, value, "ana"); len(tap.seen("update")) == 0 && ctx.Err() == nil; {
			<-pause // the connection has to come back
			err = Fence(ctx, tapped, lock, set, value, "ana")
		}
		if err == nil || errors.Is(err, holdfast.ErrLost) || errors.Is(err, ErrNotApplied) {
			t.Errorf("nobody knows what became of the update, and Fence says %v", err)
		}
		sent := tap.seen("update")
		tap.set(nil)
		if held = append(held, sent...); len(held) != i+1 {
			t.Fatalf("%d updates were sent for %d", len(held), i+1)
		}
	}
	if err := Fence(ctx, session, lock, set, 70, "ana"); err != nil {
		t.Fatal(err)
	}
	held[0].send()
	if b, _ := balance(t, session, table); b != 90 {
		t.Errorf("balance %d: the update that was late has not come, so nothing was tested", b)
	}
	if err := lock.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if lock, err = c.Acquire(ctx, "ana"); err != nil {
		t.Fatal(err)
	}
	if err := Fence(ctx, session, lock, set, 60, "ana"); err != nil {
		t.Fatal(err)
	}
	held[1].send()
	if b, f := balance(t, session, table); b != 60 || f != lock.Token() {
		t.Errorf("balance %d, fence %d: an update with an older token came through", b, f)
	}
}

// Nobody writes behind a later holder (P4).
func TestFences(t *testing.T) {
	t.Parallel()
	drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced {
		session, table := accounts(t, "registers_"+strings.ToLower(rand.Text()[:8]))
		exec(t, session, "alter table "+table+" add value text")
		f := drivertest.Fenced{Store: memory.New(), ByTokens: true, Exclusive: true, // wherever the lock is
			Put: func(ctx context.Context, value string, _ func(), locks ...*holdfast.Lock) error {
				name := locks[0].Name()
				for {
					_, err := session.Query("insert into "+table+" (id, fence) values (?, 0) if not exists", name).MapScanCASContext(ctx, make(map[string]any))
					if err == nil {
						err = Fence(ctx, session, locks[0], "update "+table+" set fence = ?, value = ? where id = ? if fence <= ?", value, name)
					}
					// Of nodes that had no time the outcome is not known: the same again finds it out.
					if !again(err) && !errors.Is(err, gocql.ErrTimeoutNoResponse) || ctx.Err() != nil {
						return err
					}
				}
			},
			Get: func(ctx context.Context, name string) (value string, err error) {
				for {
					err = session.Query("select value from "+table+" where id = ?", name).Consistency(gocql.Serial).ScanContext(ctx, &value)
					if errors.Is(err, gocql.ErrNotFound) {
						return "", nil
					}
					if !again(err) || ctx.Err() != nil {
						return value, err
					}
				}
			}}
		return f
	})
}

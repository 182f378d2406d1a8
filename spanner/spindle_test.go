package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
	hfspanner "github.com/holdfast-lock/holdfast/spanner"
)

// What docs/migrate/spindle.md and docs/migrate/gerrit.md show. It needs a database: the tests below
// run it on an emulator.

// connect opens the client by which the rest elects and locks.
func connect(ctx context.Context, db *spanner.Client) (*holdfast.Client, error) {
	store, err := hfspanner.New(ctx, db, nil) // makes no tables: holdfast schema apply
	if err != nil {
		return nil, err
	}
	return holdfast.New(store, &holdfast.Options{
		Owner: holdfast.Owner{Host: "web-1"},
		TTL:   10 * time.Second, // best left out: then the store's setting counts, 15s
	})
}

// An election as programs that come from spindle know it: started once, asked now and
// then.
func ExampleNew_election() {
	err := func(ctx context.Context) error {
		db, err := spanner.NewClient(ctx, os.Getenv("SPANNER_DATABASE")) // it stays yours
		if err != nil {
			return err
		}
		defer db.Close()
		client, err := connect(ctx, db)
		if err != nil {
			return err
		}
		defer client.Close()
		quit, cancel := context.WithCancel(ctx)
		defer cancel()

		seat := client.Election("mylock")
		done := make(chan error, 1)
		go func() { done <- seat.Run(quit, nil) }() // nil: it holds the seat, and you ask

		for _, leads := seat.HasLock(); !leads; _, leads = seat.HasLock() {
			time.Sleep(50 * time.Millisecond)
		}
		if lock, leads := seat.HasLock(); leads { // no I/O
			fmt.Println("I lead", lock.Name())
		}
		leader, err := seat.Leader(ctx)
		if err != nil {
			return err
		}
		fmt.Println("leader:", leader.Owner.Host)

		cancel() // the seat is given up at once
		return <-done
	}(context.Background())
	fmt.Println(err)
}

// stand leads while it leads.
func stand(ctx context.Context, seat *holdfast.Election) error {
	return seat.Run(ctx, func(ctx context.Context, lock *holdfast.Lock) error {
		log.Printf("I lead, term %d", lock.Token())
		return serve(ctx) // ctx ends when the seat is lost
	})
}

// tell says who leads.
func tell(ctx context.Context, seat *holdfast.Election) {
	for leader, err := range seat.Observe(ctx) {
		switch {
		case err != nil:
			log.Print(err)
		case leader.Token == 0:
			log.Print("nobody leads")
		default:
			log.Printf("%s leads, term %d", leader.Owner.Host, leader.Token)
		}
	}
}

// underLock does something under a plain lock.
func underLock(ctx context.Context, client *holdfast.Client) error {
	lock, err := client.Acquire(ctx, "plain")
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	return work(lock.Context())
}

// saved writes as the leader of a term, and of no earlier one.
func saved(ctx context.Context, db *spanner.Client, lock *holdfast.Lock) error {
	_, err := db.ReadWriteTransaction(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		if err := hfspanner.Fence(ctx, txn, lock); err != nil {
			return err // ErrLost: nothing is written
		}
		return txn.BufferWrite([]*spanner.Mutation{
			spanner.InsertOrUpdate("accounts", []string{"name", "balance"}, []any{"ana", 90}),
		})
	})
	return err
}

func serve(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }

func work(ctx context.Context) error { return context.Cause(ctx) }

// A refDB is what Gerrit asks of a global-refdb, with its refs in the database that has
// the locks.
type refDB struct {
	db     *spanner.Client
	client *holdfast.Client
}

// lockRef does not wait; a *holdfast.HeldError says who has the ref.
func (r *refDB) lockRef(ctx context.Context, project, ref string) (*holdfast.Lock, error) {
	return r.client.TryAcquire(ctx, holdfast.JoinName(project, ref), holdfast.Reason("push"))
}

// compareAndPut has the ref of a lock follow the value that it is believed to have; "": none.
func (r *refDB) compareAndPut(ctx context.Context, lock *holdfast.Lock, from, to string) (done bool, err error) {
	parts := holdfast.SplitName(lock.Name())
	_, err = r.db.ReadWriteTransaction(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		if err := hfspanner.Fence(ctx, txn, lock); err != nil {
			return err // ErrLost: nothing is written
		}
		value := ""
		row, err := txn.ReadRow(ctx, "refs", spanner.Key{parts[0], parts[1]}, []string{"value"})
		if err == nil {
			err = row.Columns(&value)
		}
		if err != nil && spanner.ErrCode(err) != codes.NotFound {
			return err
		}
		if done = value == from; !done {
			return nil
		}
		return txn.BufferWrite([]*spanner.Mutation{
			spanner.InsertOrUpdate("refs", []string{"project", "ref", "value"}, []any{parts[0], parts[1], to}),
		})
	})
	return done && err == nil, err
}

// list tells of a project who holds what.
func list(ctx context.Context, client *holdfast.Client, project string) error {
	for info, err := range client.List(ctx, holdfast.JoinName(project)+"/") {
		if err != nil {
			return err
		}
		for _, holder := range info.Holders {
			fmt.Println(holdfast.SplitName(info.Name)[1], holder.Owner.Host, time.Since(holder.Granted))
		}
	}
	return nil
}

// whoHolds is for a console.
const whoHolds = `
select safe_convert_bytes_to_string(l.name) as name,
  json_value(s.doc, '$.owner.host') as owner,
  json_value(h, '$.reason') as reason,
  timestamp_micros(int64(h.since)) as requested,
  timestamp_micros(int64(h.granted)) as granted,
  timestamp_sub(s.written, interval ifnull(int64(s.doc.suspected.age), 0) microsecond) as last_beat
from (
  select name, parse_json(safe_convert_bytes_to_string(value)) as doc
  from holdfast_records
  where space = 0 and byte_length(value) > 0 and starts_with(name, b'plugins%2Freviewers/')
) as l
cross join unnest(json_query_array(l.doc, '$.holders')) as h
left join (
  select name, written, parse_json(safe_convert_bytes_to_string(value)) as doc
  from holdfast_records
  where space = 1 and byte_length(value) > 0
) as s on s.name = cast(json_value(h, '$.session') as bytes)
order by name;
`

// prepared is a database with Holdfast's table and others, and its client.
func prepared(t *testing.T, statements ...string) *spanner.Client {
	t.Helper()
	name := strings.TrimPrefix(servers.Spanner(t, nil).Database(t), "spanner://")
	t.Setenv("SPANNER_DATABASE", name)
	db, err := spanner.NewClient(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	admin, err := database.NewDatabaseAdminClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	if err := hfspanner.Migrate(t.Context(), admin, db, nil); err != nil {
		t.Fatal(err)
	}
	if len(statements) > 0 {
		op, err := admin.UpdateDatabaseDdl(t.Context(), &databasepb.UpdateDatabaseDdlRequest{Database: name, Statements: statements})
		if err == nil {
			err = op.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// member is a process of its own.
func member(t *testing.T, db *spanner.Client, host string) *holdfast.Client {
	t.Helper()
	store, err := hfspanner.New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := holdfast.New(store, &holdfast.Options{Owner: holdfast.Owner{Host: host}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSpindle(t *testing.T) {
	db := prepared(t, `create table accounts (name string(max), balance int64) primary key (name)`)
	if got, want := printed(t, ExampleNew_election), "I lead mylock\nleader: web-1\ncontext canceled\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	// The former leader learns that it has to stop, and can write no more once another leads.
	one, two := member(t, db, "one"), member(t, db, "two")
	if err := underLock(t.Context(), one); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { tell(ctx, one.Election("seat")) })
	terms := make(chan *holdfast.Lock, 2)
	stood := make(chan error, 1)
	first, resign := context.WithCancel(ctx)
	go func() {
		stood <- one.Election("seat").Run(first, func(ctx context.Context, lock *holdfast.Lock) error {
			terms <- lock
			return serve(ctx)
		})
	}()
	was := <-terms
	if err := saved(ctx, db, was); err != nil {
		t.Error("while it leads:", err)
	}
	all.Go(func() { stand(ctx, two.Election("seat")) })
	resign()
	if err := <-stood; !errors.Is(err, context.Canceled) {
		t.Errorf("it stood until %v, want until it was called off", err)
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		leader, err := one.Election("seat").Leader(ctx)
		if err == nil && leader.Owner.Host == "two" && leader.Token > was.Token() {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatalf("the leader is %+v, error %v, want two, with a token above %d", leader, err, was.Token())
		}
	}
	if err := saved(ctx, db, was); err == nil {
		t.Error("who leads no more has written")
	}
}

func TestRefs(t *testing.T) {
	db := prepared(t, `create table refs (project string(max) not null, ref string(max) not null, value string(max) not null) primary key (project, ref)`)
	ctx := t.Context()
	one, two := &refDB{db, member(t, db, "gerrit-eu-1")}, &refDB{db, member(t, db, "gerrit-us-1")}
	const project, ref = "plugins/reviewers", "refs/heads/main"
	lock, err := one.lockRef(ctx, project, ref)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := lock.Name(), "plugins%2Freviewers/refs%2Fheads%2Fmain"; got != want {
		t.Errorf("the name is %q, want %q", got, want)
	}
	var held *holdfast.HeldError
	if _, err := two.lockRef(ctx, project, ref); !errors.As(err, &held) || held.Holders[0].Owner.Host != "gerrit-eu-1" {
		t.Errorf("a held ref: %v, want who has it", err)
	}
	other, err := two.lockRef(ctx, "plugins", ref)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release(ctx)
	for _, step := range []struct {
		from, to string
		done     bool
	}{{"", "aa11", true}, {"", "bb22", false}, {"aa11", "bb22", true}} {
		if done, err := one.compareAndPut(ctx, lock, step.from, step.to); done != step.done || err != nil {
			t.Errorf("from %q to %q: %v, error %v, want %v", step.from, step.to, done, err, step.done)
		}
	}
	got := printed(t, func() {
		if err := list(ctx, one.client, project); err != nil {
			t.Error(err)
		}
	})
	if !strings.HasPrefix(got, ref+" gerrit-eu-1 ") || strings.Count(got, "\n") != 1 {
		t.Errorf("the list is %q, want one line that begins with the ref and its owner", got)
	}
	var rows []string
	err = db.Single().Query(ctx, spanner.NewStatement(strings.TrimRight(strings.TrimSpace(whoHolds), ";"))).Do(func(r *spanner.Row) error {
		var name, owner, reason string
		var requested, granted, beat time.Time
		err := r.Columns(&name, &owner, &reason, &requested, &granted, &beat)
		if old := time.Since(beat); old < -time.Second || old > holdfast.DefaultTTL {
			t.Errorf("%s was last heard of %v ago", owner, old)
		}
		rows = append(rows, name+" "+owner+" "+reason)
		return err
	})
	if want := "plugins%2Freviewers/refs%2Fheads%2Fmain gerrit-eu-1 push"; err != nil || len(rows) != 1 || rows[0] != want {
		t.Errorf("SQL says %q, error %v, want %q", rows, err, want)
	}

	// The ref is taken by force; who had it cannot put any more.
	info, err := two.client.Show(ctx, lock.Name())
	if err == nil {
		err = two.client.BreakNow(ctx, info.Holders[0].Name, info.Holders[0].Token, "stuck, ticket 815")
	}
	if err != nil {
		t.Fatal(err)
	}
	next, err := two.lockRef(ctx, project, ref)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release(ctx)
	if done, err := one.compareAndPut(ctx, lock, "bb22", "cc33"); done || !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("by who has lost it: %v, error %v, want ErrLost", done, err)
	}
	if done, err := two.compareAndPut(ctx, next, "bb22", "dd44"); !done || err != nil {
		t.Errorf("by the next: %v, error %v", done, err)
	}
}

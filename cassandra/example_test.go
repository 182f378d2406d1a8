package cassandra_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// The examples need a cluster: TestExamples runs them on one.

// Locks in a cluster that the application has anyway.
func ExampleNew() {
	err := func(ctx context.Context) error {
		config := gocql.NewCluster(strings.Split(os.Getenv("CASSANDRA_HOSTS"), ",")...)
		config.Keyspace = os.Getenv("CASSANDRA_KEYSPACE")
		session, err := config.CreateSession() // it stays yours
		if err != nil {
			return err
		}
		defer session.Close()
		store, err := cassandra.New(ctx, session, nil) // makes no tables: see Migrate
		if err != nil {
			return err
		}
		client, err := holdfast.New(store, nil)
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Do(ctx, "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
			fmt.Println("holding", lock.Name())
			return ctx.Err() // pass ctx on to all that the work does
		})
	}(context.Background())
	fmt.Println(err)
}

// The table is made once, at one place, in a keyspace that is there.
func ExampleMigrate() {
	session := open()
	defer session.Close()
	ctx := context.Background()
	fmt.Println(cassandra.Migrate(ctx, session, nil))
	fmt.Println(cassandra.Verify(ctx, session, nil))
}

// What runs in plain CQL, in any language; the number is the token.
const accounts = `
create table accounts (id text primary key, balance bigint, fence bigint);
insert into accounts (id, balance, fence) values ('ana', 100, 0) if not exists;
update accounts set fence = 1795226403001234, balance = 95 where id = 'ana' if fence <= 1795226403001234;
`

// A fenced write: who has lost the lock, and comes after a later holder, is
// refused.
func ExampleFence() {
	session := open()
	defer session.Close()
	ctx := context.Background()
	store, err := cassandra.New(ctx, session, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	withdraw := func(lock *holdfast.Lock) error {
		// First, before anything is read: no earlier holder writes to this row any more.
		err := cassandra.Fence(ctx, session, lock,
			`update accounts set fence = ? where id = ? if fence <= ?`, "ana")
		if err != nil {
			return err
		}
		var balance int64
		err = session.Query(`select balance from accounts where id = ?`, "ana").
			Consistency(gocql.Serial).ScanContext(ctx, &balance)
		if err != nil {
			return err
		}
		return cassandra.Fence(ctx, session, lock, // ErrLost: stop
			`update accounts set fence = ?, balance = ? where id = ? if fence <= ?`, balance-10, "ana")
	}
	lock, err := client.Acquire(ctx, "accounts/ana")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("as the holder:", withdraw(lock))
	if err := lock.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("afterwards refused:", errors.Is(withdraw(lock), holdfast.ErrReleased))
}

// open connects to the cluster of the examples.
func open() *gocql.Session {
	config := gocql.NewCluster(strings.Split(os.Getenv("CASSANDRA_HOSTS"), ",")...)
	config.Keyspace = os.Getenv("CASSANDRA_KEYSPACE")
	session, err := config.CreateSession()
	if err != nil {
		log.Fatal(err)
	}
	return session
}

func TestExamples(t *testing.T) {
	u, err := url.Parse(servers.Cassandra(t, nil).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	names, port, _ := strings.Cut(u.Host, ":")
	var hosts []string
	for name := range strings.SplitSeq(names, ",") {
		hosts = append(hosts, name+":"+port)
	}
	t.Setenv("CASSANDRA_HOSTS", strings.Join(hosts, ","))
	t.Setenv("CASSANDRA_KEYSPACE", strings.Trim(u.Path, "/"))
	if got, want := printed(t, ExampleMigrate), "<nil>\n<nil>\n"; got != want {
		t.Errorf("Migrate: got %q, want %q", got, want)
	}
	if got, want := printed(t, ExampleNew), "holding nightly\n<nil>\n"; got != want {
		t.Errorf("New: got %q, want %q", got, want)
	}
	config := gocql.NewCluster(hosts...)
	config.Keyspace, config.Timeout = os.Getenv("CASSANDRA_KEYSPACE"), time.Minute // it makes a table
	config.MaxWaitSchemaAgreement = 5 * time.Second
	session, err := config.CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	for text := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSpace(accounts), ";"), ";") {
		if err := session.Query(text).ExecContext(t.Context()); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if got, want := printed(t, ExampleFence), "as the holder: <nil>\nafterwards refused: true\n"; got != want {
		t.Errorf("Fence: got %q, want %q", got, want)
	}
	var balance, fence int64
	if err := session.Query(`select balance, fence from accounts where id = 'ana'`).Consistency(gocql.Serial).Scan(&balance, &fence); err != nil || balance != 85 || fence <= 1795226403001234 {
		t.Errorf("the balance is %d, the fence %d, error %v", balance, fence, err)
	}
}

// printed is what f writes to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = out }()
	text := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		text <- string(b)
	}()
	f()
	w.Close()
	return <-text
}

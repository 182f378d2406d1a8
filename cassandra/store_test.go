package cassandra

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/storetest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	dropAll()
	os.Exit(code)
}

// config is how tests connect.
func config(t testing.TB, target string) *gocql.ClusterConfig {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	host, port, ok := strings.Cut(u.Host[strings.LastIndexByte(u.Host, ',')+1:], ":")
	if !ok {
		t.Fatalf("no port in %s", target)
	}
	hosts := strings.Split(u.Host[:strings.LastIndexByte(u.Host, ',')+1]+host, ",")
	c := gocql.NewCluster(hosts...)
	if c.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	c.Timeout, c.ConnectTimeout = 10*time.Second, 10*time.Second
	c.Metadata.CacheMode = gocql.Disabled // nothing here needs it, and it makes tests that create tables slow
	c.ReconnectInterval = time.Second
	return c
}

// connect makes a session that is closed at the end.
func connect(t testing.TB, c *gocql.ClusterConfig) *gocql.Session {
	t.Helper()
	s, err := c.CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// exec carries out a statement that has to work.
func exec(t testing.TB, s *gocql.Session, text string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Query(text, args...).WithContext(ctx).Consistency(gocql.Quorum).Exec(); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// The keyspace of the tests of this process, and the tables in it that no test
// uses just now: to make one takes longer than most tests.
var shared struct {
	sync.Mutex
	session  *gocql.Session
	keyspace string
	free     []string // prefixes
	made     int
}

// keyspace makes the keyspace, and a session for what needs no session of its own.
func keyspace(t testing.TB) (*gocql.Session, string) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.session == nil {
		s, err := config(t, cluster(t)).CreateSession()
		if err != nil {
			t.Fatal(err)
		}
		name := "hf_" + strings.ToLower(rand.Text()[:12])
		exec(t, s, fmt.Sprintf("create keyspace %s with replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}", name))
		shared.session, shared.keyspace = s, name
	}
	return shared.session, shared.keyspace
}

func dropAll() {
	if s := shared.session; s != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.Query("drop keyspace " + shared.keyspace).WithContext(ctx).Exec()
	}
}

// table is an empty table for a test.
func table(t testing.TB) *Options {
	t.Helper()
	session, ks := keyspace(t)
	shared.Lock()
	opts := &Options{Keyspace: ks}
	if n := len(shared.free); n > 0 {
		opts.Prefix = shared.free[n-1]
		shared.free = shared.free[:n-1]
	} else {
		shared.made++
		opts.Prefix = fmt.Sprintf("Table_%d_", shared.made) // which needs quotes
	}
	shared.Unlock()
	if err := Migrate(t.Context(), session, opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		exec(t, session, "truncate "+opts.tables().expand("{records}"))
		shared.Lock()
		defer shared.Unlock()
		shared.free = append(shared.free, opts.Prefix)
	})
	return opts
}

// reopener is a store whose table a test can open once more.
type reopener struct{ *Store }

func (r reopener) Reopen(t *testing.T) holdfast.Store {
	return reopener{open(t, connect(t, config(t, cluster(t))), &r.opts)}
}

func open(t testing.TB, session *gocql.Session, opts *Options) *Store {
	t.Helper()
	s, err := New(t.Context(), session, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fresh is a store on an empty table.
func fresh(t testing.TB) reopener {
	t.Helper()
	session, _ := keyspace(t)
	return reopener{open(t, session, table(t))}
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) holdfast.Store { return fresh(t) })
}

func TestClients(t *testing.T) {
	storetest.RunClients(t, func(t *testing.T) holdfast.Store { return fresh(t) })
}

// cluster is the URL of the cluster of all tests.
func cluster(t testing.TB) string { return os.Getenv("HOLDFAST_TEST_CASSANDRA") }

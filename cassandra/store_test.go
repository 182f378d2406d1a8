package cassandra

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/internal/servers"
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
	c.Timeout, c.ConnectTimeout = time.Minute, 10*time.Second
	c.Metadata.CacheMode = gocql.Disabled // nothing here needs it, and it makes tests that create tables slow
	c.ReconnectInterval = time.Second
	c.MaxWaitSchemaAgreement = 20 * time.Second
	return c
}

// connect makes a session that is closed at the end.
func connect(t testing.TB, c *gocql.ClusterConfig) *gocql.Session {
	t.Helper()
	s, err := c.CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { leave(s)() }) // Close waits for ever if the connection was lost just before
	return s
}

// connected waits until a session has a connection to each of its nodes.
func connected(t testing.TB, s *gocql.Session) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.Tick(20 * time.Millisecond)
	for _, h := range s.GetHosts() {
		for {
			err := s.Query("select key from system.local").SetHostID(h.HostID()).ExecContext(ctx)
			if err == nil {
				break
			}
			select {
			case <-tick:
			case <-ctx.Done():
				t.Fatalf("no connection to %s: %v", h, err)
			}
		}
	}
}

// exec carries out a statement that has to work. All of them ask the same node: the
// schema may get lost between nodes that change it at the same time.
func exec(t testing.TB, s *gocql.Session, text string, args ...any) {
	t.Helper()
	if err := carryOut(s, text, args...); err != nil {
		t.Fatal(err)
	}
}

func carryOut(s *gocql.Session, text string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		err := s.Query(text, args...).SetHostID(first(s)).Consistency(gocql.Quorum).ExecContext(ctx)
		// Of nodes that had no time the outcome is not known: the same condition again finds it out.
		if strings.HasSuffix(text, " exists") && again(err) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", text, err)
		}
		return err
	}
}

// first is the node with the lowest id.
func first(s *gocql.Session) (id string) {
	for _, h := range s.GetHosts() {
		if id == "" || h.HostID() < id {
			id = h.HostID()
		}
	}
	return id
}

// shared is the keyspace of the tests of this process, and the tables in it: to
// make one takes longer than most tests, and all nodes wait for it.
var shared struct {
	once     sync.Once
	err      error
	session  *gocql.Session
	another  *gocql.Session // as of another process
	keyspace string
	common   *Options      // of a table for all who keep to names of their own
	used     chan *Options // of tables that were in use
	unused   chan *Options // of tables that nothing was ever written to
}

const usedTables, unusedTables = 3, 7

// keyspace makes the keyspace, and a session for what needs no session of its own.
func keyspace(t testing.TB) (*gocql.Session, string) {
	t.Helper()
	target := cluster(t)
	shared.once.Do(func() { shared.err = makeShared(t, target) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.session, shared.keyspace
}

func makeShared(t testing.TB, target string) (err error) {
	for _, s := range []**gocql.Session{&shared.session, &shared.another} {
		if *s, err = config(t, target).CreateSession(); err != nil {
			return err
		}
	}
	shared.keyspace = "hf_" + strings.ToLower(rand.Text()[:12])
	text := fmt.Sprintf("create keyspace %s with replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}", shared.keyspace)
	if err := carryOut(shared.session, text); err != nil {
		return err
	}
	shared.used, shared.unused = make(chan *Options, usedTables+unusedTables), make(chan *Options, unusedTables)
	for i := range 1 + usedTables + unusedTables {
		opts, err := newTable(fmt.Sprintf("Table_%d_", i)) // which needs quotes
		switch {
		case err != nil:
			return err
		case i == 0:
			shared.common = opts
		case i <= usedTables:
			shared.used <- opts
		default:
			shared.unused <- opts
		}
	}
	return nil
}

func newTable(prefix string) (*Options, error) {
	opts := &Options{Keyspace: shared.keyspace, Prefix: prefix}
	return opts, Migrate(context.Background(), shared.session, opts)
}

func dropAll() {
	if s := shared.session; s != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.Query("drop keyspace " + shared.keyspace).SetHostID(first(s)).ExecContext(ctx)
	}
}

// table is a table that the test has to itself, with whatever others have left
// there. (Of a table that was truncated, the next round of consensus may bring
// rows back.)
func table(t testing.TB) *Options {
	t.Helper()
	keyspace(t)
	return lent(t, <-shared.used)
}

// emptyTable is a table that nothing was ever written to.
func emptyTable(t testing.TB) *Options {
	t.Helper()
	keyspace(t)
	select {
	case opts := <-shared.unused:
		return lent(t, opts)
	default:
		opts, err := newTable("Table_" + rand.Text()[:8] + "_")
		if err != nil {
			t.Fatal(err)
		}
		return opts
	}
}

// lent has a table given back at the end, with its floor where it was.
func lent(t testing.TB, opts *Options) *Options {
	t.Cleanup(func() {
		defer func() { shared.used <- opts }()
		for _, text := range []string{
			"insert into {records} (space, name, version, value, attempt, follows) values (-1, 0x00, 0, 0x, 0x, 0) if not exists",
			"update {records} set version = 0 where space = -1 and name = 0x00 if exists",
		} {
			exec(t, shared.session, opts.tables().expand(text))
		}
	})
	return opts
}

// reopener is a store whose table a test can open once more.
type reopener struct{ *Store }

func (r reopener) Reopen(t *testing.T) driver.Store {
	return reopener{open(t, shared.another, &r.opts)}
}

func open(t testing.TB, session *gocql.Session, opts *Options) *Store {
	t.Helper()
	s, err := New(t.Context(), session, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fresh is a store on a table of the test's own.
func fresh(t testing.TB) reopener {
	t.Helper()
	session, _ := keyspace(t)
	return reopener{open(t, session, table(t))}
}

// apart is a store that nothing was written to, in the common table.
func apart(t testing.TB) within {
	t.Helper()
	session, _ := keyspace(t)
	return within{open(t, session, shared.common), rand.Text()[:8] + " "}
}

func TestStore(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) driver.Store {
		session, _ := keyspace(t)
		switch name := strings.TrimPrefix(t.Name(), "TestStore/"); name {
		case "strange_keys", "sweep", "sweep_by_age", "sweep_and_write_again", "sweep_against_writers", "two_handles_sweep": // they need the whole of it
			return reopener{open(t, session, emptyTable(t))}
		}
		return apart(t)
	})
}

func TestClients(t *testing.T) {
	t.Parallel()
	clienttest.RunSlowly(t, func(t *testing.T) driver.Store {
		if session, _ := keyspace(t); t.Name() == "TestClients/sweep_after_crashes" {
			return reopener{open(t, session, emptyTable(t))}
		}
		return apart(t)
	})
}

// within is a store that has a part of a table to itself: all keys that begin so.
type within struct {
	*Store
	prefix string
}

func (w within) key(k driver.Key) driver.Key {
	name := w.prefix + k.Name
	if k.Check() != nil {
		name = k.Name // for the store to say so
	} else if len(name) > driver.MaxName { // not found by Keys, then
		name = w.prefix + fmt.Sprintf("%x", sha256.Sum256([]byte(k.Name)))
	}
	return driver.Key{Space: k.Space, Name: name}
}

func (w within) keys(keys []driver.Key) []driver.Key {
	var own []driver.Key
	for _, k := range keys {
		own = append(own, w.key(k))
	}
	return own
}

func (w within) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	return w.Store.Load(ctx, w.keys(keys), how)
}

func (w within) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	writes = slices.Clone(writes)
	for i := range writes {
		writes[i].Key = w.key(writes[i].Key)
	}
	return w.Store.CompareAndSwap(ctx, writes)
}

func (w within) Keys(ctx context.Context, space driver.Space, after string, n int) (own []string, err error) {
	names, err := w.Store.Keys(ctx, space, w.prefix+after, n)
	for _, name := range names {
		if rest, ok := strings.CutPrefix(name, w.prefix); ok {
			own = append(own, rest)
		}
	}
	return own, err
}

func (w within) Reopen(t *testing.T) driver.Store {
	if strings.HasSuffix(t.Name(), "closed") {
		return closing{within{open(t, connect(t, config(t, cluster(t))), &w.opts), w.prefix}}
	}
	return within{open(t, shared.another, &w.opts), w.prefix}
}

// closing is a store with a session that no other has. Close is what its user does, who has made
// the session.
type closing struct{ within }

func (c closing) Close() error {
	c.Store.session.Close()
	return nil
}

// cluster is the URL of the cluster of all tests.
func cluster(t testing.TB) string {
	t.Helper()
	return servers.Cassandra(t, nil).URL
}

package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const cassandraEnv = "HOLDFAST_TEST_CASSANDRA"

var sharedCassandra = sync.OnceValues(func() (*Cluster, error) { return StartCassandra(context.Background(), Quick) })

// Quick makes a cluster acknowledge writes before they are on disk. It is for
// clusters that nobody will kill.
var Quick = &ClusterOptions{Settings: []string{"commitlog_sync: periodic", "commitlog_sync_period: 10s"}}

// Cassandra is a cluster for a test. If opts is nil, all tests of the process
// share one, or use that at HOLDFAST_TEST_CASSANDRA, a URL, if it is set; else the
// test has one of its own, which ends with the test. It is skipped if Java or Maven
// is not installed.
func Cassandra(t testing.TB, opts *ClusterOptions) *Cluster {
	t.Helper()
	var c *Cluster
	var err error
	target := os.Getenv(cassandraEnv)
	switch {
	case opts != nil:
		c, err = StartCassandra(t.Context(), opts)
	case target != "":
		if c, err = clusterAt(t.Context(), target); err != nil {
			t.Fatalf("%s: %v", cassandraEnv, err)
		}
	default:
		c, err = sharedCassandra()
	}
	switch {
	case errors.Is(err, ErrMissing) && opts == nil:
		t.Skipf("%v, or set %s to the URL of a cluster", err, cassandraEnv)
	case errors.Is(err, ErrMissing):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	case opts != nil:
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s said:\n%s", c.Name, c.Log())
			}
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	return c
}

// clusterAt is the cluster at a URL, cassandra://HOST,HOST,HOST:PORT.
func clusterAt(ctx context.Context, target string) (*Cluster, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	hosts, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		return nil, err
	}
	c := &Cluster{URL: "cassandra://" + u.Host, hosts: strings.Split(hosts, ",")}
	if c.Port, err = strconv.Atoi(port); err == nil {
		c.Name, err = clusterName(ctx, c.addr(0))
	}
	return c, err
}

// Database makes an empty keyspace on the cluster, with three replicas, and
// returns its URL. It is dropped when the test ends.
func (c *Cluster) Database(t testing.TB) string {
	t.Helper()
	name := "hf_" + strings.ToLower(rand.Text()[:12])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dc, err := c.ask(ctx, "SELECT data_center FROM system.local", one)
	if err == nil {
		_, err = c.ask(ctx, fmt.Sprintf("CREATE KEYSPACE %s WITH replication = {'class': 'NetworkTopologyStrategy', '%s': 3}",
			name, strings.Join(dc, "")), quorum)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := c.ask(ctx, "DROP KEYSPACE IF EXISTS "+name, quorum); err != nil && !c.Own {
			t.Logf("%s is left behind: %v", name, err)
		}
	})
	c.known(ctx, name)
	return c.URL + "/" + name
}

// ask runs a statement on the first node that can be reached. Changes of the schema
// through several nodes at the same time would make the nodes disagree about it.
func (c *Cluster) ask(ctx context.Context, statement string, consistency uint16) (cells []string, err error) {
	for n := range c.hosts {
		var dial *net.OpError
		if cells, err = cql(ctx, c.addr(n), statement, consistency); !errors.As(err, &dial) || dial.Op != "dial" {
			break
		}
	}
	return cells, err
}

// known returns when all nodes that answer know a keyspace, or ctx is done.
func (c *Cluster) known(ctx context.Context, name string) {
	for ctx.Err() == nil {
		missing := false
		for n := range c.hosts {
			rows, err := cql(ctx, c.addr(n), "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = '"+name+"'", one)
			missing = missing || err == nil && len(rows) == 0
		}
		if !missing {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

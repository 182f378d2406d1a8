package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

const cassandraMeans = "three nodes, commitlog_sync batch, paxos_variant v2; SERIAL, QUORUM, gocql, token aware, prepared"

var cassandraSystems = []*system{
	{
		store: "cassandra", name: "two LWTs", of: "two LWTs", in: "latency throughput", disk: bothWait,
		means: cassandraMeans + "; UPDATE … IF value = 0x, UPDATE … IF version = ?; a new name: INSERT … IF NOT EXISTS first",
		open:  openBareLWTs(false),
	}, {
		store: "cassandra", name: "two LWTs, one node", of: "two LWTs", in: "latency", disk: bothWait,
		means: cassandraMeans + "; all by the same coordinator", open: openBareLWTs(true),
	}, {
		store: "cassandra", name: "IF NOT EXISTS", of: "two LWTs", in: "latency throughput handoff held crash waiters", disk: bothWait,
		means: cassandraMeans + "; INSERT … IF NOT EXISTS USING TTL 15, each 10 ms until applied; DELETE … IF owner = ?", open: openIfNotExists,
	}, {
		store: "cassandra", name: "holdfast", of: "two LWTs", in: "latency throughput handoff held crash waiters", disk: bothWait,
		means: cassandraMeans, open: openCassandra,
	},
}

// bareTables are those of the systems that are not Holdfast.
const bareTables = `
create table bare (name text primary key, version bigint, value blob);
create table locks (name text primary key, owner uuid)`

// cassandraConfig is how all systems connect to a cassandra://HOST,HOST:PORT/KEYSPACE.
func cassandraConfig(target string) (*gocql.ClusterConfig, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	hosts, port, _ := strings.Cut(u.Host, ":")
	c := gocql.NewCluster(strings.Split(hosts, ",")...)
	if c.Port, err = strconv.Atoi(port); err != nil {
		return nil, err
	}
	c.Keyspace = strings.TrimPrefix(u.Path, "/")
	c.Consistency, c.SerialConsistency = gocql.Quorum, gocql.Serial
	c.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	c.Metadata.CacheMode = gocql.KeyspaceOnly
	return c, nil
}

// cassandraSession connects a system, whose statements are counted.
func cassandraSession(at *site) (*gocql.Session, error) {
	config, err := cassandraConfig(at.Cassandra)
	if err != nil {
		return nil, err
	}
	counted, err := cassandraTally(at)
	if err != nil {
		return nil, err
	}
	config.QueryObserver, config.BatchObserver = counted, counted
	return config.CreateSession()
}

func cassandraTally(at *site) (*tally, error) {
	config, err := cassandraConfig(at.Cassandra)
	if err != nil {
		return nil, err
	}
	return sharedTally(at.Dir+"/cassandra-tally", `"`+config.Keyspace+`".`)
}

// A cassandraFloor makes the two LWTs that a lock cannot do without.
type cassandraFloor struct {
	session *gocql.Session
	node    string // that coordinates; "": as the session does
	known   sync.Map
}

func openBareLWTs(oneNode bool) func(context.Context, *site, options) (locker, error) {
	return func(ctx context.Context, at *site, o options) (locker, error) {
		session, err := cassandraSession(at)
		if err != nil {
			return nil, err
		}
		f := &cassandraFloor{session: session}
		if oneNode {
			f.node = session.GetHosts()[0].HostID()
		}
		return f, nil
	}
}

// apply makes one LWT that nobody is in the way of, again if the nodes were too
// busy: then an earlier one may have been applied.
func (f *cassandraFloor) apply(ctx context.Context, text string, args ...any) error {
	for unknown := false; ; unknown = true {
		q := f.session.Query(text, args...)
		if f.node != "" {
			q = q.SetHostID(f.node)
		}
		applied, err := q.MapScanCASContext(ctx, map[string]any{})
		switch {
		case err != nil && answered(err):
			continue
		case err == nil && !applied && !unknown:
			return errors.New("lost a write without a rival")
		}
		return err
	}
}

func (f *cassandraFloor) lock(ctx context.Context, name string) (held, error) {
	version := time.Now().UnixMicro()
	var err error
	if _, known := f.known.LoadOrStore(name, true); known {
		err = f.apply(ctx, `update bare set version = ?, value = ? where name = ? if value = 0x`, version, bareValue, name)
	} else {
		// Of the rounds before, if it is there: their names are the same.
		if err = f.apply(ctx, `insert into bare (name, version, value) values (?, ?, ?) if not exists`, name, version, bareValue); err != nil {
			err = f.apply(ctx, `update bare set version = ?, value = ? where name = ? if value = 0x`, version, bareValue, name)
		}
	}
	if err != nil {
		return nil, err
	}
	return unlocker(func() error {
		return f.apply(context.WithoutCancel(ctx), `update bare set version = ?, value = 0x where name = ? if version = ?`, version+1, name, version)
	}), nil
}

func (f *cassandraFloor) close() error { f.session.Close(); return nil }

// ifNotExists is the usual recipe, in the hands of somebody who tries again
// what failed and looks whose the row is.
type ifNotExists struct {
	session *gocql.Session
	ttl     int
	keep    bool
}

func openIfNotExists(ctx context.Context, at *site, o options) (locker, error) {
	session, err := cassandraSession(at)
	if err != nil {
		return nil, err
	}
	ttl := 15 * time.Second
	if o.TTL > 0 {
		ttl = o.TTL
	}
	return &ifNotExists{session, int(ttl.Seconds()), o.Keep}, nil
}

func (n *ifNotExists) lock(ctx context.Context, name string) (held, error) {
	owner := gocql.TimeUUID()
	for {
		row := map[string]any{}
		applied, err := n.session.Query(`insert into locks (name, owner) values (?, ?) if not exists using ttl ?`, name, owner, n.ttl).
			MapScanCASContext(ctx, row)
		if err == nil && (applied || row["owner"] == owner) {
			break
		}
		if err != nil && !answered(err) {
			return nil, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			// One that failed may have taken it.
			return nil, errors.Join(ctx.Err(), n.free(name, owner))
		}
	}
	stop := func() {}
	if n.keep {
		stop = renewing(time.Duration(n.ttl)*time.Second, func(ctx context.Context) {
			n.session.Query(`update locks using ttl ? set owner = ? where name = ? if owner = ?`, n.ttl, owner, name, owner).
				MapScanCASContext(ctx, map[string]any{})
		})
	}
	return unlocker(func() error { stop(); return n.free(name, owner) }), nil
}

func (n *ifNotExists) free(name string, owner gocql.UUID) error {
	for {
		_, err := n.session.Query(`delete from locks where name = ? if owner = ?`, name, owner).MapScanCAS(map[string]any{})
		if err == nil || !answered(err) {
			return err
		}
	}
}

// answered says that a node was alive to say what failed, which is no reason to
// give up.
func answered(err error) bool {
	var answer gocql.RequestError
	return errors.As(err, &answer) && answer.Code() != gocql.ErrCodeInvalid && answer.Code() != gocql.ErrCodeSyntax
}

func (n *ifNotExists) close() error { n.session.Close(); return nil }

func openCassandra(ctx context.Context, at *site, o options) (locker, error) {
	session, err := cassandraSession(at)
	if err != nil {
		return nil, err
	}
	s, err := cassandra.New(ctx, session, nil)
	if err != nil {
		session.Close()
		return nil, err
	}
	return newClient(at, s, o, func() error { session.Close(); return nil })
}

// startCassandra starts three nodes, or uses those that HOLDFAST_TEST_CASSANDRA
// points at, and makes a keyspace there.
func startCassandra(b *bench) (*server, error) {
	s := &server{version: "Cassandra"}
	target := os.Getenv("HOLDFAST_TEST_CASSANDRA")
	if target == "" {
		b.say("three nodes of Cassandra start …")
		cluster, err := servers.StartCassandra(b.ctx, nil)
		if err != nil {
			return nil, err
		}
		s.version, target = cluster.Name, cluster.URL
		s.atEnd(func() {
			if err := cluster.Stop(); err != nil {
				b.say("stop %s: %v", cluster.Name, err)
			}
		})
	}
	err := s.prepareCassandra(b, target)
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// prepareCassandra makes the keyspace and the tables of all systems.
func (s *server) prepareCassandra(b *bench, target string) error {
	config, err := cassandraConfig(target)
	if err != nil {
		return err
	}
	keyspace := fmt.Sprintf("bench_%d", time.Now().UnixMicro())
	config.Keyspace = ""
	admin, err := config.CreateSession()
	if err != nil {
		return err
	}
	s.atEnd(func() {
		if err := admin.Query("drop keyspace if exists " + keyspace).Exec(); err != nil {
			b.say("drop keyspace %s: %v", keyspace, err)
		}
		admin.Close()
	})
	if err := admin.Query("create keyspace " + keyspace + " with replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}").Exec(); err != nil {
		return err
	}
	b.site.Cassandra = strings.TrimSuffix(target, "/") + "/" + keyspace
	if config, err = cassandraConfig(b.site.Cassandra); err != nil {
		return err
	}
	session, err := config.CreateSession()
	if err != nil {
		return err
	}
	defer session.Close()
	for text := range strings.SplitSeq(bareTables, ";") {
		if err := session.Query(text).ExecContext(b.ctx); err != nil {
			return err
		}
	}
	if err := cassandra.Migrate(b.ctx, session, nil); err != nil {
		return err
	}
	if s.tally, err = cassandraTally(&b.site); err != nil {
		return err
	}
	s.requests = func(context.Context) (float64, error) { return s.tally.asked().lwts, nil }
	s.kinds = s.tally.kinds
	return nil
}

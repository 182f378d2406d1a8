package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/redis/go-redis/v9"
)

// A server is a running store.
type server struct {
	version string
	// requests is how many statements or other requests it has taken from the
	// systems measured. nil: the store has no server that could count.
	requests func(ctx context.Context) (float64, error)
	// kinds are the requests by what they are, where the server tells.
	kinds func(ctx context.Context) (map[string]float64, error)
	// written is how many bytes it has written to its log, and how often it has had the disk
	// confirm that; nil: it does not tell.
	written     func(ctx context.Context) (bytes, syncs float64, err error)
	pids        []int // its processes that bench has started
	connections func(ctx context.Context) (connections, error)
	tally       *tally // by which it is counted, where the clients do it
	stops       []func()
}

func (s *server) stop() {
	for i := range s.stops {
		s.stops[len(s.stops)-1-i]()
	}
}

// connections are those that a server has.
type connections struct {
	all, beside float64 // beside: of Holdfast's own, not of its user's pool
}

// kindsOf are the kinds of requests so far, if that is to be told.
func (b *bench) kindsOf(s *server) map[string]float64 {
	if !b.verbose || s.kinds == nil {
		return nil
	}
	kinds, err := s.kinds(b.ctx)
	if err != nil {
		b.say("    %v", err)
	}
	return kinds
}

// sayKinds tells what was asked for between two looks, for each of n.
func (b *bench) sayKinds(what string, before, after map[string]float64, n float64) {
	if after == nil {
		return
	}
	b.say("    %s:", what)
	for _, kind := range slices.Sorted(maps.Keys(after)) {
		if x := after[kind] - before[kind]; x >= n/50 {
			b.say("    %8s  %s", figure(x/n), kind)
		}
	}
}

func (s *server) atEnd(f func()) { s.stops = append(s.stops, f) }

// A kind of store, as workloads have to know it.
type kind struct {
	store    string
	systems  []*system // who others are compared with comes before them
	start    func(b *bench) (*server, error)
	requests string  // what is counted as a request
	beside   string  // whom a hand-off is compared with: the plainest lock of the same place
	aim      float64 // of our latency, as a ratio; 0: none
	idle     bool    // hand-offs are also measured beside clients that are idle
	counted  bool    // our hand-offs say how many requests a hold takes
	costed   bool    // what a lock costs is counted
	emulated bool    // an emulator, which runs one transaction at a time and turns a crowd away
}

// kinds are all, in the order in which they are measured.
var kinds = []kind{
	{store: "memory", start: func(*bench) (*server, error) { return &server{}, nil }},
	{store: "sqlite", systems: sqliteSystems, start: func(*bench) (*server, error) { return &server{version: "SQLite"}, nil },
		requests: "store calls", beside: "flock(2)", aim: 0.75, counted: true, costed: true},
	{store: "dir", systems: dirSystems, start: startDirectory, requests: "store calls", beside: "flock(2)", counted: true, costed: true},
	{store: "postgres", systems: postgresSystems, start: startPostgres, requests: "statements", beside: "pg_advisory_lock", aim: 0.9, idle: true, costed: true},
	{store: "mysql", systems: mysqlSystems, start: startMySQL, requests: "statements", beside: "GET_LOCK", aim: 1.25, idle: true, costed: true},
	{store: "redis", systems: redisSystems, start: startRedis, requests: "requests", beside: "redislock"},
	{store: "etcd", systems: etcdSystems, start: startEtcd, requests: "requests", idle: true, costed: true},
	{store: "cassandra", systems: cassandraSystems, start: startCassandra, requests: "LWTs", beside: "IF NOT EXISTS", aim: 1.2},
	{store: claimsStore, systems: claimsSystems, start: startClaims, beside: "JanusGraph"},
	{store: spannerStore, systems: spannerSystems, start: startSpanner, requests: "RPCs", beside: "spindle", counted: true, emulated: true},
}

// kind is that of the system's store.
func (s *system) kind() *kind {
	return &kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.store == s.store })]
}

// stopped adds the end of a server of package servers.
func (s *server) stopped(b *bench, of *servers.Server) {
	s.atEnd(func() {
		if err := of.Stop(); err != nil {
			b.say("stop %s: %v", of.Name, err)
		}
	})
}

// startRedis starts a Redis that has every write on disk before it answers,
// which is not its default.
func startRedis(b *bench) (*server, error) {
	started, err := servers.StartRedis(b.ctx, &servers.Options{Settings: []string{"maxclients=4000"}})
	if err != nil {
		return nil, err
	}
	s := &server{version: started.Name}
	s.stopped(b, started)
	b.site.Redis = strings.TrimPrefix(started.URL, "redis://")
	client := redis.NewClient(&redis.Options{Addr: b.site.Redis})
	s.atEnd(func() { client.Close() })
	info := func(ctx context.Context, section, field string) (string, error) {
		text, err := client.Info(ctx, section).Result()
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == field {
				return value, nil
			}
		}
		return "", fmt.Errorf("redis does not tell %s", field)
	}
	number := func(section, field string) func(ctx context.Context) (float64, error) {
		asked := 0.0
		return func(ctx context.Context) (float64, error) {
			text, err := info(ctx, section, field)
			if err != nil {
				return 0, err
			}
			asked++ // our own question
			x, err := strconv.ParseFloat(text, 64)
			return x - asked, err
		}
	}
	// Each read is one request, since nobody here sends several at once.
	s.requests = number("stats", "total_reads_processed")
	s.connections = func(ctx context.Context) (c connections, err error) {
		text, err := info(ctx, "clients", "connected_clients")
		if err == nil {
			c.all, err = strconv.ParseFloat(text, 64)
		}
		return c, err
	}
	return s, nil
}

// startEtcd starts a cluster of three members.
func startEtcd(b *bench) (*server, error) {
	started, err := servers.StartEtcdCluster(b.ctx, &servers.ClusterOptions{Settings: []string{"log-level=error"}})
	if err != nil {
		return nil, err
	}
	s := &server{version: started.Name}
	s.atEnd(func() {
		if err := started.Stop(); err != nil {
			b.say("stop %s: %v", started.Name, err)
		}
	})
	b.site.Etcd = started.Endpoints()
	page := func(ctx context.Context, url string) (string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			err = errors.Join(err, errors.New(resp.Status))
		}
		return string(text), err
	}
	// sum adds up a metric over its labels and all members.
	sum := func(metric string) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (total float64, err error) {
			for _, member := range started.Endpoints() {
				text, err := page(ctx, "http://"+member+"/metrics")
				if err != nil {
					return 0, err
				}
				for line := range strings.Lines(text) {
					if f := strings.Fields(line); len(f) == 2 && (f[0] == metric || strings.HasPrefix(f[0], metric+"{")) {
						x, err := strconv.ParseFloat(f[1], 64)
						if err != nil {
							return 0, err
						}
						total += x
					}
				}
			}
			return total, nil
		}
	}
	s.requests = sum("grpc_server_msg_received_total")
	syncs := sum("etcd_disk_wal_fsync_duration_seconds_count")
	s.written = func(ctx context.Context) (bytes, n float64, err error) {
		n, err = syncs(ctx) // this version does not count bytes
		return 0, n, err
	}
	return s, nil
}

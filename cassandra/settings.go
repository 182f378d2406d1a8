package cassandra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/holdfast-lock/holdfast/driver"
)

// A danger puts locks at risk, and Options.Allow may accept it.
type danger struct{ name, text, cure string }

const (
	fewReplicas    = "few-replicas"
	simpleStrategy = "simple-strategy"
	localSerial    = "local-serial"
)

var allowable = []string{fewReplicas, localSerial, simpleStrategy}

// minReplicas is how many a data centre needs: with fewer, one node that is down
// stops all locks that it has a replica of.
const minReplicas = 3

// check finds what is wrong with the options, without a cluster.
func (o *Options) check() error {
	for _, n := range []struct{ what, name string }{{"keyspace", o.Keyspace}, {"prefix", o.Prefix}} {
		if !nameForm().MatchString(n.name) {
			return fmt.Errorf("%s %q is not valid: at most %d letters, digits and underscores", n.what, n.name, maxName)
		}
	}
	for _, a := range o.Allow {
		if !slices.Contains(allowable, a) {
			return fmt.Errorf("cannot allow %q: it is none of %s", a, strings.Join(allowable, ", "))
		}
	}
	if o.localSerial() && o.LocalDC == "" {
		return fmt.Errorf("%s needs a data centre to agree in: name it in Options.LocalDC, or in the URL as dc=NAME", localSerial)
	}
	return nil
}

// A node is one of the cluster, as another node or the driver sees it.
type node struct {
	dc, version string
	address     string
	up          bool
}

// facts are what is known about a cluster and a keyspace in it.
type facts struct {
	nodes    map[string]node // by host id
	scylla   bool
	strategy string            // of replication; "" if there is no keyspace
	replicas map[string]int    // by data centre; SimpleStrategy has "" only
	logged   bool              // writes of the keyspace go to the commit log
	comment  string            // of the table; it says which version of the schema that is
	table    bool              // there is one
	ttl      int               // of its rows, in seconds
	gcGrace  int               // of its tombstones, in seconds
	columns  map[string]string // of the table, see published
}

// dcs are the data centres of all nodes, and how many each has.
func (f facts) dcs() map[string]int {
	dcs := make(map[string]int)
	for _, n := range f.nodes {
		dcs[n.dc]++
	}
	return dcs
}

// A question is a statement that any node can answer by itself.
type question struct {
	text string
	args []any
	row  func(map[string]any) // called for each row of the answer
}

func (s *Store) ask(ctx context.Context, q question) error {
	var rows []map[string]any
	_, err := s.calls.send(ctx, nil, q.text, q.args, func(ctx context.Context, cql *gocql.Query) (err error) {
		rows, err = cql.Consistency(gocql.One).IterContext(ctx).SliceMap()
		return err
	})
	for _, r := range rows {
		q.row(r)
	}
	return err
}

// facts asks for all facts, in about the time of one question. It waits for the columns of a table
// that has just been created.
func (s *Store) facts(ctx context.Context) (facts, error) {
	f := facts{nodes: make(map[string]node), columns: make(map[string]string)}
	if err := s.reachable(); err != nil {
		return f, err
	}
	peers := question{`select host_id, data_center, release_version from system.peers_v2`, nil, func(r map[string]any) {
		id, _ := r["host_id"].(gocql.UUID)
		dc, _ := r["data_center"].(string)
		version, _ := r["release_version"].(string)
		if dc != "" && version != "" { // a node that joins has none
			f.nodes[id.String()] = node{dc: dc, version: version}
		}
	}}
	table := []any{s.tables.keyspace, s.tables.prefix + "records"}
	columns := question{`select column_name, type, kind, position from system_schema.columns where keyspace_name = ? and table_name = ?`, table, func(r map[string]any) {
		name, _ := r["column_name"].(string)
		f.columns[name] = fmt.Sprintf("%v %v", r["type"], r["kind"])
		if p, _ := r["position"].(int); p >= 0 {
			f.columns[name] += fmt.Sprintf(" %d", p)
		}
	}}
	questions := []question{
		{`select table_name from system_schema.tables where keyspace_name = 'system' and table_name = 'scylla_local'`, nil,
			func(map[string]any) { f.scylla = true }},
		{`select replication, durable_writes from system_schema.keyspaces where keyspace_name = ?`, table[:1], func(r map[string]any) {
			f.logged, _ = r["durable_writes"].(bool)
			replication, _ := r["replication"].(map[string]string)
			f.strategy, f.replicas = replicasOf(replication)
		}},
		{`select comment, default_time_to_live, gc_grace_seconds from system_schema.tables where keyspace_name = ? and table_name = ?`, table, func(r map[string]any) {
			f.table = true
			f.comment, _ = r["comment"].(string)
			f.ttl, _ = r["default_time_to_live"].(int)
			f.gcGrace, _ = r["gc_grace_seconds"].(int)
		}},
		columns,
	}
	err := errors.Join(s.calls.names.each(ctx, 1+len(questions), func(i int) error {
		if i > 0 {
			return s.ask(ctx, questions[i-1])
		}
		err := s.ask(ctx, peers)
		if refused(err) { // a Cassandra before 4.0 has no such table, and neither has ScyllaDB
			peers.text = strings.TrimSuffix(peers.text, "_v2")
			err = s.ask(ctx, peers)
		}
		return err
	})...)
	for try := 0; err == nil && f.table && len(f.columns) == 0 && try < 10; try++ {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
		err = s.ask(ctx, columns)
	}
	// No node is among its own peers. The driver knows all nodes except those that
	// its settings exclude.
	for _, h := range s.session.GetHosts() {
		v := h.Version()
		n := node{dc: h.DataCenter(), address: h.ConnectAddressAndPort(), up: h.IsUp(), version: fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)}
		if known, ok := f.nodes[h.HostID()]; ok {
			n.version = known.version
		}
		if n.dc != "" {
			f.nodes[h.HostID()] = n
		}
	}
	return f, err
}

// reachable tells whether the driver knows nodes that may be asked.
func (s *Store) reachable() error {
	dcs := make(map[string]bool)
	for _, h := range s.session.GetHosts() {
		dcs[h.DataCenter()] = true
	}
	if dc := s.opts.LocalDC; dc != "" && !dcs[dc] {
		return fmt.Errorf("no node is in data centre %q; there are: %s", dc, strings.Join(slices.Sorted(maps.Keys(dcs)), ", "))
	}
	return nil
}

// replicasOf reads what a keyspace says about its replication.
func replicasOf(replication map[string]string) (strategy string, replicas map[string]int) {
	replicas = make(map[string]int)
	for key, value := range replication {
		full, transient, _ := strings.Cut(value, "/") // "3/1": one of three forgets
		n, _ := strconv.Atoi(full)
		t, _ := strconv.Atoi(transient)
		switch key {
		case "class":
			strategy = value[strings.LastIndexByte(value, '.')+1:]
		case "replication_factor":
			replicas[""] = n - t
		default:
			replicas[key] = n - t
		}
	}
	return strategy, replicas
}

// check says why this keyspace cannot keep locks.
func (s *Store) check(ctx context.Context) error {
	f, err := s.facts(ctx)
	if err != nil {
		return err
	}
	if err := s.refuse(f); err != nil {
		return err
	}
	_, err = s.floor(ctx)
	return err
}

func (s *Store) refuse(f facts) error {
	if err := s.refuseCluster(f); err != nil {
		return err
	}
	for _, d := range f.dangers() {
		if !slices.Contains(s.opts.Allow, d.name) {
			return &driver.DangerError{Danger: d.name, What: d.text, Cure: d.cure}
		}
	}
	return s.compare(f)
}

// refuseCluster refuses what no name in Allow accepts.
func (s *Store) refuseCluster(f facts) error {
	if old := f.oldest(); old != "" && !f.scylla && major(old) < 4 {
		return fmt.Errorf("a node runs Cassandra %s; Holdfast needs 4.0 or newer", old)
	}
	dc := s.opts.LocalDC
	switch {
	case f.strategy == "":
		return s.noKeyspace(f)
	case f.strategy == "SimpleStrategy":
	case f.strategy != "NetworkTopologyStrategy":
		return fmt.Errorf("keyspace %q is replicated by %s: take one with NetworkTopologyStrategy", s.tables.keyspace, f.strategy)
	case dc != "" && f.replicas[dc] == 0:
		return fmt.Errorf("keyspace %q has no replicas in data centre %q", s.tables.keyspace, dc)
	}
	if !f.logged {
		return fmt.Errorf("keyspace %q has durable_writes off, so a node that restarts forgets what it has confirmed: alter keyspace %s with durable_writes = true",
			s.tables.keyspace, quote(s.tables.keyspace))
	}
	return nil
}

// noKeyspace is the error for a missing keyspace. It says how to create one.
func (s *Store) noKeyspace(f facts) error {
	var dcs []string
	for _, dc := range slices.Sorted(maps.Keys(f.dcs())) {
		dcs = append(dcs, fmt.Sprintf("'%s': %d", strings.ReplaceAll(dc, "'", "''"), minReplicas))
	}
	return &driver.SchemaError{What: fmt.Sprintf("there is no keyspace %q", s.tables.keyspace),
		Cure: fmt.Sprintf("its owner creates it: create keyspace %s with replication = {'class': 'NetworkTopologyStrategy', %s}; then: holdfast schema apply",
			quote(s.tables.keyspace), strings.Join(dcs, ", "))}
}

// dangers are those that this cluster and keyspace have.
func (f facts) dangers() (there []danger) {
	var few []string
	least := minReplicas
	for _, dc := range slices.Sorted(maps.Keys(f.replicas)) {
		if n := f.replicas[dc]; n < minReplicas {
			least = min(least, n)
			where := ""
			if dc != "" {
				where = fmt.Sprintf(" in data centre %q", dc)
			}
			few = append(few, fmt.Sprintf("%d%s", n, where))
		}
	}
	if len(few) > 0 {
		text := fmt.Sprintf("the replication factor is %s: while one node is down nothing can be locked", strings.Join(few, " and "))
		if least < 2 {
			text += ", and if its disk is lost, so are the locks"
		}
		there = append(there, danger{fewReplicas, text, fmt.Sprintf("Have %d replicas in each data centre (alter keyspace, then nodetool repair --full)", minReplicas)})
	}
	if dcs := f.dcs(); f.strategy == "SimpleStrategy" && len(dcs) > 1 {
		there = append(there, danger{simpleStrategy,
			fmt.Sprintf("SimpleStrategy across the data centres %s: it puts replicas anywhere, so that the loss of one data centre may be that of a majority", strings.Join(slices.Sorted(maps.Keys(dcs)), ", ")),
			"Take NetworkTopologyStrategy"})
	}
	return there
}

// oldest is the lowest version of all nodes; "" if there are none.
func (f facts) oldest() (old string) {
	for _, n := range f.nodes {
		if old == "" || compareVersions(n.version, old) < 0 {
			old = n.version
		}
	}
	return old
}

func major(version string) int {
	text, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(text)
	return n
}

// compareVersions compares the numbers in two versions.
func compareVersions(a, b string) int {
	numbers := func(version string) (list []int) {
		for _, part := range strings.FieldsFunc(version, func(r rune) bool { return r < '0' || r > '9' }) {
			n, _ := strconv.Atoi(part)
			list = append(list, n)
		}
		return list
	}
	return slices.Compare(numbers(a), numbers(b))
}

package cassandra

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

// refusal: an error has all of these in it.
func refusal(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %v, want %q in it", what, err, w)
		}
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		`keyspace "a.b" is not valid`:                {Keyspace: "a.b"},
		`prefix "x;drop" is not valid`:               {Prefix: "x;drop"},
		`prefix "` + strings.Repeat("x", 41):         {Prefix: strings.Repeat("x", 41)},
		`cannot allow "fire": it is none of few-re`:  {Allow: []string{"few-replicas", "fire"}},
		`local-serial needs a data centre`:           {Allow: []string{"local-serial"}},
		`or in the URL as dc=NAME`:                   {Allow: []string{"local-serial"}},
		`few-replicas, local-serial, simple-strateg`: {Allow: []string{""}},
	} {
		refusal(t, fmt.Sprintf("%+v", o), o.check(), want)
	}
	for _, o := range []Options{{}, {Keyspace: "Shop_1", Prefix: strings.Repeat("x", 40)}, {LocalDC: "dc1", Allow: allowable}} {
		if err := o.check(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// sound is a cluster that nothing is wrong with.
func sound() facts {
	return facts{
		nodes: map[string]node{
			"1": {dc: "dc1", version: "5.0.9", address: "10.0.0.1:9042", up: true},
			"2": {dc: "dc1", version: "5.0.9", address: "10.0.0.2:9042", up: true},
			"3": {dc: "dc1", version: "5.0.9", address: "10.0.0.3:9042", up: true},
			"4": {dc: "dc2", version: "5.0.9", address: "10.1.0.1:9042", up: true},
		},
		strategy: "NetworkTopologyStrategy", replicas: map[string]int{"dc1": 3, "dc2": 3}, logged: true,
		table: true, comment: "holdfast 1", columns: maps.Clone(published), gcGrace: 864000,
	}
}

// What the cluster of the tests is not like.
func TestRefuse(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*facts, *Options)
		want  string // "": nothing
	}{
		{"sound", func(*facts, *Options) {}, ""},
		{"sound, of one data centre", func(f *facts, o *Options) { o.LocalDC, o.Allow = "dc2", []string{"local-serial"} }, ""},
		{"an old node", func(f *facts, _ *Options) { f.nodes["2"] = node{dc: "dc1", version: "3.11.16"} }, "a node runs Cassandra 3.11.16; Holdfast needs 4.0 or newer"},
		{"4.0", func(f *facts, _ *Options) { f.nodes["2"] = node{dc: "dc1", version: "4.0-rc1"} }, ""},
		{"ScyllaDB, which says that it is 3.0.8", func(f *facts, _ *Options) { f.scylla, f.nodes["2"] = true, node{dc: "dc1", version: "3.0.8"} }, ""},
		{"a data centre without replicas", func(f *facts, o *Options) { f.replicas, o.LocalDC = map[string]int{"dc1": 3}, "dc2" }, `has no replicas in data centre "dc2"`},
		{"no keyspace", func(f *facts, _ *Options) { f.strategy, f.replicas = "", nil },
			`there is no keyspace "ks"; its owner creates it: create keyspace "ks" with replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3, 'dc2': 3}; then: holdfast schema apply`},
		{"a strategy that is none for this", func(f *facts, _ *Options) { f.strategy = "LocalStrategy" }, "replicated by LocalStrategy: take one with NetworkTopologyStrategy"},
		{"few replicas", func(f *facts, _ *Options) { f.replicas["dc2"] = 2 },
			`the replication factor is 2 in data centre "dc2": while one node is down nothing can be locked. Have 3 replicas in each data centre (alter keyspace, then nodetool repair --full), or accept it: allow "few-replicas"`},
		{"one replica", func(f *facts, _ *Options) { f.replicas["dc1"], f.replicas["dc2"] = 1, 2 }, `is 1 in data centre "dc1" and 2 in data centre "dc2": while one node is down nothing can be locked, and if its disk is lost, so are the locks`},
		{"few replicas, accepted", func(f *facts, o *Options) { f.replicas["dc2"], o.Allow = 2, []string{"few-replicas"} }, ""},
		{"SimpleStrategy", func(f *facts, _ *Options) { f.strategy, f.replicas = "SimpleStrategy", map[string]int{"": 3} },
			`SimpleStrategy across the data centres dc1, dc2: it puts replicas anywhere, so that the loss of one data centre may be that of a majority. Take NetworkTopologyStrategy, or accept it: allow "simple-strategy"`},
		{"SimpleStrategy, accepted", func(f *facts, o *Options) {
			f.strategy, f.replicas, o.Allow = "SimpleStrategy", map[string]int{"": 3}, []string{"simple-strategy"}
		}, ""},
		{"SimpleStrategy in one data centre", func(f *facts, _ *Options) {
			delete(f.nodes, "4")
			f.strategy, f.replicas = "SimpleStrategy", map[string]int{"": 3}
		}, ""},
		{"no commit log", func(f *facts, _ *Options) { f.logged = false }, `alter keyspace "ks" with durable_writes = true`},
		{"no table", func(f *facts, _ *Options) { f.table = false }, "the table ks.holdfast_records is missing; create it with cassandra.Migrate or: holdfast schema apply"},
	} {
		f, opts := sound(), Options{}
		c.spoil(&f, &opts)
		s := &Store{opts: opts, tables: tables{"ks", defaultPrefix}}
		switch err := s.refuse(f); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "":
			refusal(t, c.name, err, c.want)
		}
	}
}

func TestReplicasOf(t *testing.T) {
	strategy, replicas := replicasOf(map[string]string{"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1": "3", "dc2": "3/1"})
	if strategy != "NetworkTopologyStrategy" || !maps.Equal(replicas, map[string]int{"dc1": 3, "dc2": 2}) {
		t.Errorf("got %s %v", strategy, replicas)
	}
	strategy, replicas = replicasOf(map[string]string{"class": "SimpleStrategy", "replication_factor": "1"})
	if strategy != "SimpleStrategy" || !maps.Equal(replicas, map[string]int{"": 1}) {
		t.Errorf("got %s %v", strategy, replicas)
	}
	for _, v := range [][2]string{{"4.0.1", "4.1"}, {"4.9.0", "4.10.0"}, {"3.11.16", "4.0"}, {"4.0", "4.0.1"}} {
		if compareVersions(v[0], v[1]) >= 0 || compareVersions(v[1], v[0]) <= 0 || compareVersions(v[0], v[0]) != 0 {
			t.Errorf("%s does not come before %s", v[0], v[1])
		}
	}
}

// own makes a keyspace for one test.
func own(t *testing.T, with string) (*gocql.Session, *Options) {
	t.Helper()
	session, _ := keyspace(t)
	opts := &Options{Keyspace: "hf_" + strings.ToLower(rand.Text()[:12])}
	exec(t, session, "create keyspace "+opts.Keyspace+" with "+with)
	t.Cleanup(func() { exec(t, session, "drop keyspace "+opts.Keyspace) })
	return session, opts
}

// What would cost locks is refused, until it is allowed by name.
func TestRefusedByName(t *testing.T) {
	t.Parallel()
	session, opts := own(t, "replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 1} and durable_writes = false")
	ctx := t.Context()
	refuse := func(what string, want ...string) {
		t.Helper()
		_, err := New(ctx, session, opts)
		refusal(t, what, err, append(want, "cassandra: ")...)
	}
	missing := *opts
	missing.Keyspace += "_not"
	_, err := New(ctx, session, &missing)
	refusal(t, "no keyspace", err, "create keyspace \""+missing.Keyspace+"\" with replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}")
	refusal(t, "Migrate without a keyspace", Migrate(ctx, session, &missing), "create keyspace \"")
	refusal(t, "Verify without a keyspace", Verify(ctx, session, &missing), "create keyspace \"")
	_, err = New(ctx, session, nil)
	refusal(t, "no keyspace named", err, "which keyspace?")

	refuse("no commit log", "durable_writes = true")
	exec(t, session, "alter keyspace "+opts.Keyspace+" with durable_writes = true")
	refuse("one replica", `the replication factor is 1 in data centre "datacenter1"`, `accept it: allow "few-replicas"`)
	opts.Allow = []string{"few-replicas"}
	refuse("no table", "is missing; create it with cassandra.Migrate or: holdfast schema apply")
	if err := Migrate(ctx, session, opts); err != nil {
		t.Fatal(err)
	}
	s := open(t, session, opts)
	if got := findings(t, s); !slices.ContainsFunc(got, func(l string) bool {
		return strings.HasPrefix(l, "warn replication: few-replicas is accepted: ")
	}) {
		t.Errorf("doctor says %q", got)
	}
	opts.LocalDC = "nowhere"
	refuse("no such data centre", `no node is in data centre "nowhere"; there are: datacenter1`)
	opts.LocalDC, opts.Allow = "datacenter1", []string{"few-replicas", "local-serial"}
	s = open(t, session, opts)
	if got := findings(t, s); !slices.ContainsFunc(got, func(l string) bool {
		return strings.HasPrefix(l, "warn agreement: local-serial is accepted: LOCAL_SERIAL, by a majority of the 1 replicas in datacenter1 only. ")
	}) {
		t.Errorf("doctor says %q", got)
	}
}

// A table that is not as published is refused, by New, Verify and Migrate.
func TestTableRefused(t *testing.T) {
	t.Parallel()
	session, ks := keyspace(t)
	opts := &Options{Keyspace: ks, Prefix: "spoiled_"}
	ctx := t.Context()
	if err := Migrate(ctx, session, opts); err != nil {
		t.Fatal(err)
	}
	table := opts.tables().expand("{records}")
	s := open(t, session, opts)
	refuse := func(what, want string) {
		t.Helper()
		_, err := New(ctx, session, opts)
		refusal(t, what, err, want)
		refusal(t, what, Verify(ctx, session, opts), want)
	}
	// As if somebody had emptied it.
	exec(t, session, "truncate "+table)
	refuse("no floor", "the floor is missing")
	says(t, s, "FAIL schema: the floor is missing")
	if err := Migrate(ctx, session, opts); err != nil {
		t.Fatal(err)
	}
	open(t, session, opts)
	exec(t, session, "alter table "+table+" with default_time_to_live = 3600")
	refuse("a TTL", "default_time_to_live 3600, so locks would vanish: alter table "+table+" with default_time_to_live = 0")
	refusal(t, "Migrate", Migrate(ctx, session, opts), "default_time_to_live")
	says(t, s, "FAIL schema: the table ")
	exec(t, session, "alter table "+table+" with default_time_to_live = 0 and comment = 'holdfast 2'")
	refuse("a later version", "is version 2, newer than this program (1); upgrade the program")
	refusal(t, "Migrate", Migrate(ctx, session, opts), "upgrade the program")
}

func TestCompare(t *testing.T) {
	s := &Store{tables: tables{"ks", defaultPrefix}}
	for _, c := range []struct {
		spoil func(*facts)
		want  string
	}{
		{func(f *facts) { f.columns["value"] = "text regular" }, "the column value of the table ks.holdfast_records is not as published, but text regular"},
		{func(f *facts) { f.columns["name"] = "blob clustering 0" }, "the column name of the table ks.holdfast_records is not as published, but blob clustering 0"},
		{func(f *facts) { delete(f.columns, "follows") }, "the table ks.holdfast_records has no column follows"},
		{func(f *facts) { f.columns["more"] = "int regular" }, "has a column more that is not published"},
		{func(f *facts) { f.comment = "holdfast 0" }, "is version 0, this program needs 1; its owner runs: holdfast schema apply"},
		{func(f *facts) { f.comment = "mine" }, `is not ours: its comment is "mine", not "holdfast 1"`},
	} {
		f := sound()
		c.spoil(&f)
		refusal(t, c.want, s.compare(f), c.want)
	}
	if err := s.compare(sound()); err != nil {
		t.Error(err)
	}
}

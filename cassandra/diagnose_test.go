package cassandra

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

var levels = []string{"ok", "warn", "FAIL"}

// findings are what Diagnose says, a line for each.
func findings(t *testing.T, s *Store) []string {
	t.Helper()
	list, err := s.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return linesOf(list)
}

func linesOf(list []driver.Finding) (lines []string) {
	for _, f := range list {
		lines = append(lines, fmt.Sprintf("%s %s: %s", levels[f.Level], f.Subject, f.Text))
	}
	return lines
}

func says(t *testing.T, s *Store, want ...string) {
	t.Helper()
	compareLines(t, findings(t, s), want)
}

func compareLines(t *testing.T, got, want []string) {
	t.Helper()
	for _, w := range want {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, w) }) {
			t.Errorf("doctor says\n%s\nand not %q", strings.Join(got, "\n"), w)
		}
	}
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	says(t, s.Store, "ok server: Cassandra ", "ok schema: version 1, table "+s.opts.Keyspace+".", "ok replication: NetworkTopologyStrategy, datacenter1 3",
		"ok agreement: SERIAL, by a majority of 3 replicas", "ok paxos: paxos_variant is v2",
		"ok paxos: paxos_state_purging is ", "ok timeouts: cas_contention_timeout ", "ok repair: gc_grace_seconds is 10 days: ")
	got := findings(t, s.Store)
	if !strings.HasSuffix(got[0], ", 3 of 3 nodes up in datacenter1") {
		t.Errorf("it says %q", got[0])
	}
	if all := strings.Join(got, "\n"); !strings.Contains(all, "warn durability: commitlog_sync is periodic: ") && !strings.Contains(all, "ok durability: commitlog_sync is ") {
		t.Errorf("it says %q, without commitlog_sync", got)
	}
	if !strings.Contains(strings.Join(got, "\n"), "; system.paxos has ") {
		t.Errorf("it says %q, without the size of system.paxos", got)
	}
}

// What the cluster of the tests is not like.
func TestDiagnoseOthers(t *testing.T) {
	var found driver.Findings
	s := &Store{tables: tables{"ks", defaultPrefix}}
	of := func(values ...string) settings { // name, value, for each of the nodes a and b
		set := make(settings)
		for i := 0; i < len(values); i += 2 {
			name, value := values[i], values[i+1]
			if set[name] == nil {
				set[name] = make(map[string][]string)
			}
			set[name][value] = append(set[name][value], fmt.Sprintf("10.0.0.%d:9042", i))
		}
		return set
	}
	for _, c := range []struct {
		do   func()
		want string
	}{
		{func() { durability(of("commitlog_sync", "periodic", "commitlog_sync_period", "10000ms"), &found) },
			"warn durability: commitlog_sync is periodic: a node that loses power forgets what it confirmed within commitlog_sync_period (10000ms), "},
		{func() { durability(of("commitlog_sync", "batch", "commitlog_sync", "periodic"), &found) },
			"warn durability: commitlog_sync is batch (10.0.0.0:9042), periodic (10.0.0.2:9042): "},
		{func() { durability(of("commitlog_sync", "group"), &found) }, "ok durability: commitlog_sync is group: "},
		{func() { paxos(of("paxos_variant", "v1"), &found) }, "warn paxos: paxos_variant is v1: "},
		{func() { paxos(of(), &found) }, "warn paxos: this version has no paxos_variant: "},
		{func() { paxos(of("paxos_variant", "v2", "paxos_variant", "v2_without_linearizable_reads"), &found) },
			"FAIL paxos: paxos_variant is v2 (10.0.0.0:9042), v2_without_linearizable_reads (10.0.0.2:9042): "},
		{func() {
			paxos(of("paxos_state_purging", "repaired", paxosSize, "9", paxosSize, "12"), &found)
		}, "ok paxos: paxos_state_purging is repaired; system.paxos has 12 MiB on the node where it is largest"},
		{func() { timeouts(of("cas_contention_timeout", "5000ms", "write_request_timeout", "2000ms"), &found) },
			"warn timeouts: cas_contention_timeout 5000ms: a node is taken for dead when it has not answered in 2.5s"},
		{func() { f := sound(); f.gcGrace = 60; s.repair(f, &found) }, "warn repair: gc_grace_seconds of ks.holdfast_records is 60: "},
		{func() { f := sound(); f.gcGrace = 86400; s.repair(f, &found) }, "ok repair: gc_grace_seconds is 24 hours: "},
		{func() { s.server(sound(), &found) }, "ok server: Cassandra 5.0.9, 3 of 3 nodes up in dc1, 1 of 1 nodes up in dc2"},
		{func() { f := sound(); f.scylla = true; s.server(f, &found) }, "warn server: ScyllaDB, as Cassandra 5.0.9"},
		{func() {
			f := sound()
			f.nodes["1"] = node{dc: "dc1", version: "4.1.3", address: "10.0.0.1:9042"}
			s.server(f, &found)
		}, "warn server: Cassandra 4.1.3 and 5.0.9, 2 of 3 nodes up in dc1, 1 of 1 nodes up in dc2; not reached: 10.0.0.1:9042"},
		{func() { f := sound(); f.nodes["9"] = node{dc: "dc1", version: "3.11.1", up: true}; s.server(f, &found) },
			"FAIL server: Cassandra 3.11.1 and 5.0.9"},
		{func() { s.agreement(sound(), &found) }, "ok agreement: SERIAL, by a majority of the 6 replicas in 2 data centres"},
		{func() { s.replication(sound(), &found) }, `warn replication: 3 replicas in data centre "dc2", which has 1 nodes`},
		{func() { f := sound(); f.replicas["dc1"] = 2; s.replication(f, &found) }, `FAIL replication: the replication factor is 2 in data centre "dc1"`},
	} {
		found = nil
		c.do()
		compareLines(t, linesOf(found), []string{c.want})
	}
}

package cassandra

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
)

// Diagnose implements driver.Diagnoser. It asks every node that is up.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	var r driver.Findings
	f, err := s.facts(ctx)
	if err != nil {
		return nil, err
	}
	s.server(f, &r)
	if err := s.compare(f); err != nil {
		r.Say(driver.Failure, "schema", "%v", err)
	} else if _, err := s.floor(ctx); err != nil {
		r.Say(driver.Failure, "schema", "%v", err)
	} else if ids, err := s.tableIDs(ctx); err == nil && len(ids) > 1 {
		r.Say(driver.Failure, "schema", "the nodes do not know table %s as the same one, but by the ids %v: it was made at two nodes at once. Drop it once all holders have stopped, and run: holdfast schema apply", s.tables, ids)
	} else {
		r.Say(driver.Good, "schema", "version %d, table %s", schemaVersion, s.tables)
	}
	s.replication(f, &r)
	s.agreement(f, &r)
	set, err := s.settings(ctx, f)
	if err != nil {
		r.Say(driver.Warning, "durability", "the settings of the nodes cannot be seen from here: commitlog_sync should be batch or group, paxos_variant v2 (%v)", err)
		return r, nil
	}
	durability(set, &r)
	paxos(set, &r)
	timeouts(set, &r)
	s.repair(f, &r)
	return r, nil
}

// server tells which nodes there are.
func (s *Store) server(f facts, r *driver.Findings) {
	name := "Cassandra"
	if f.scylla {
		name = "ScyllaDB, as Cassandra"
	}
	versions := make(map[string]bool)
	up := make(map[string]int)
	var down []string
	for _, n := range f.nodes {
		versions[n.version] = true
		if n.up {
			up[n.dc]++
		} else {
			down = append(down, cmp.Or(n.address, "one in "+n.dc))
		}
	}
	var where []string
	dcs := f.dcs()
	for _, dc := range slices.Sorted(maps.Keys(dcs)) {
		where = append(where, fmt.Sprintf("%d of %d nodes up in %s", up[dc], dcs[dc], dc))
	}
	text := fmt.Sprintf("%s %s, %s", name, strings.Join(slices.SortedFunc(maps.Keys(versions), compareVersions), " and "), strings.Join(where, ", "))
	slices.Sort(down)
	switch old := f.oldest(); {
	case f.scylla:
		r.Say(driver.Warning, "server", "%s: Holdfast was never tested on ScyllaDB", text)
	case old != "" && major(old) < 4:
		r.Say(driver.Failure, "server", "%s; Holdfast needs 4.0 or newer", text)
	case len(down) > 0:
		r.Say(driver.Warning, "server", "%s; not reached: %s", text, strings.Join(down, ", "))
	default:
		r.Say(driver.Good, "server", "%s", text)
	}
}

func (s *Store) replication(f facts, r *driver.Findings) {
	var each []string
	dcs := f.dcs()
	for _, dc := range slices.Sorted(maps.Keys(f.replicas)) {
		each = append(each, strings.TrimSpace(fmt.Sprintf("%s %d", dc, f.replicas[dc])))
		if nodes := dcs[dc]; dc != "" && nodes < f.replicas[dc] {
			r.Say(driver.Warning, "replication", "%d replicas in data centre %q, which has %d nodes: the missing ones count as down", f.replicas[dc], dc, nodes)
		}
	}
	found := f.dangers()
	for _, d := range found {
		if slices.Contains(s.opts.Allow, d.name) {
			r.Say(driver.Warning, "replication", "%s is accepted: %s", d.name, d.text)
		} else {
			r.Say(driver.Failure, "replication", "%s. %s", d.text, d.cure)
		}
	}
	if len(found) == 0 {
		r.Say(driver.Good, "replication", "%s, %s", f.strategy, strings.Join(each, ", "))
	}
}

// agreement tells whose majority decides.
func (s *Store) agreement(f facts, r *driver.Findings) {
	total, dcs := 0, 0
	for _, n := range f.replicas {
		if total += n; n > 0 {
			dcs++
		}
	}
	switch {
	case s.opts.localSerial():
		r.Say(driver.Warning, "agreement", "%s is accepted: LOCAL_SERIAL, by a majority of the %d replicas in %s only. Whoever locks from another data centre, or without this setting, breaks all locks",
			localSerial, f.replicas[s.opts.LocalDC], s.opts.LocalDC)
	case dcs > 1:
		r.Say(driver.Good, "agreement", "SERIAL, by a majority of the %d replicas in %d data centres: each write waits for more than one of them", total, dcs)
	default:
		r.Say(driver.Good, "agreement", "SERIAL, by a majority of %d replicas", total)
	}
}

// settings are those of the nodes that are up: by name and value, the nodes that
// have it.
type settings map[string]map[string][]string

// of is the one value that all nodes have, or a list of all values, each with a
// node as an example.
func (set settings) of(name string) string {
	values := set[name]
	var list []string
	for _, v := range slices.Sorted(maps.Keys(values)) {
		if len(values) == 1 {
			return v
		}
		list = append(list, fmt.Sprintf("%s (%s)", v, slices.Min(values[v])))
	}
	return strings.Join(list, ", ")
}

// any tells whether a node has a value for which is holds.
func (set settings) any(name string, is func(value string) bool) bool {
	for v := range set[name] {
		if is(v) {
			return true
		}
	}
	return false
}

const paxosSize = "size of system.paxos" // not a setting, but seen in the same place

// settings asks every node that is up for its own settings, which Cassandra shows since
// 4.0, and ScyllaDB does not. It is no error if some nodes do not answer.
func (s *Store) settings(ctx context.Context, f facts) (settings, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var mu sync.Mutex
	set := make(settings)
	add := func(name, value, host string) {
		mu.Lock()
		defer mu.Unlock()
		if set[name] == nil {
			set[name] = make(map[string][]string)
		}
		set[name][value] = append(set[name][value], host)
	}
	var hosts []string
	for _, id := range slices.Sorted(maps.Keys(f.nodes)) {
		if f.nodes[id].up {
			hosts = append(hosts, id)
		}
	}
	if len(hosts) == 0 {
		return nil, gocql.ErrNoConnections
	}
	var last error
	answers := 0
	for _, err := range s.calls.names.each(ctx, len(hosts), func(i int) error {
		address := f.nodes[hosts[i]].address
		return s.settingsOf(ctx, hosts[i], func(name, value string) { add(name, value, address) })
	}) {
		if err == nil {
			answers++
		} else {
			last = err
		}
	}
	if answers == 0 {
		return nil, last
	}
	return set, nil
}

// settingsOf asks one node.
func (s *Store) settingsOf(ctx context.Context, id string, add func(name, value string)) error {
	query := func(text string) ([]map[string]any, error) {
		return s.session.Query(text).SetHostID(id).Consistency(gocql.One).RetryPolicy(nil).IterContext(ctx).SliceMap()
	}
	rows, err := query(`select name, value from system_views.settings where name in ('commitlog_sync', 'commitlog_sync_period', 'commitlog_sync_period_in_ms', 'paxos_variant', 'paxos_state_purging', 'cas_contention_timeout', 'cas_contention_timeout_in_ms', 'write_request_timeout', 'write_request_timeout_in_ms')`)
	if err != nil {
		return err
	}
	for _, r := range rows {
		name, _ := r["name"].(string)
		value, _ := r["value"].(string)
		if base, old := strings.CutSuffix(name, "_in_ms"); old { // until 4.1 the only name
			if has(rows, base) {
				continue
			}
			name, value = base, value+"ms"
		}
		add(name, value)
	}
	rows, err = query(`select mebibytes from system_views.disk_usage where keyspace_name = 'system' and table_name = 'paxos'`)
	for _, r := range rows {
		add(paxosSize, fmt.Sprint(r["mebibytes"]))
	}
	if refused(err) { // not all versions have it
		err = nil
	}
	return err
}

func has(rows []map[string]any, name string) bool {
	return slices.ContainsFunc(rows, func(r map[string]any) bool { return r["name"] == name })
}

// durability tells what is lost with a node that dies.
func durability(set settings, r *driver.Findings) {
	sync := set.of("commitlog_sync")
	if set.any("commitlog_sync", func(v string) bool { return v == "periodic" }) {
		r.Say(driver.Warning, "durability", "commitlog_sync is %s: a node that loses power forgets what it confirmed within commitlog_sync_period (%s), and a lock that was confirmed may be given again. Set commitlog_sync: batch or group on all nodes",
			sync, set.of("commitlog_sync_period"))
		return
	}
	r.Say(driver.Good, "durability", "commitlog_sync is %s: what is confirmed is on the disks of a majority", sync)
}

// paxos tells how nodes agree.
func paxos(set settings, r *driver.Findings) {
	const variant = "paxos_variant"
	is := set.of(variant)
	switch {
	case set.any(variant, func(v string) bool { return strings.Contains(v, "_without_") }):
		r.Say(driver.Failure, "paxos", "paxos_variant is %s: reads, and writes that are refused, may return outdated values. Set paxos_variant: v2 on all nodes", is)
	case len(set[variant]) == 0:
		r.Say(driver.Warning, "paxos", "this version has no paxos_variant: v2, in Cassandra 4.1 and newer, takes fewer round trips")
	case is != "v2":
		r.Say(driver.Warning, "paxos", "paxos_variant is %s: v2 takes fewer round trips. Set it on all nodes", is)
	default:
		r.Say(driver.Good, "paxos", "paxos_variant is v2")
	}
	most := ""
	for v := range set[paxosSize] {
		if most == "" || compareVersions(v, most) > 0 {
			most = v
		}
	}
	if purging := set.of("paxos_state_purging"); purging != "" {
		text := "paxos_state_purging is " + purging
		if most != "" {
			text += fmt.Sprintf("; system.paxos has %s MiB on the node where it is largest", most)
		}
		r.Say(driver.Good, "paxos", "%s", text)
	}
}

// timeouts tells whether nodes give up before we give them up.
func timeouts(set settings, r *driver.Findings) {
	var long, all []string
	for _, name := range []string{"cas_contention_timeout", "write_request_timeout"} {
		is := set.of(name)
		if is == "" {
			continue
		}
		all = append(all, name+" "+is)
		if set.any(name, func(v string) bool { d, err := time.ParseDuration(v); return err == nil && d > slow }) {
			long = append(long, name+" "+is)
		}
	}
	switch {
	case len(long) > 0:
		r.Say(driver.Warning, "timeouts", "%s: a node is taken for dead when it has not answered in %s. Set at most 2s", strings.Join(long, ", "), slow)
	case len(all) > 0:
		r.Say(driver.Good, "timeouts", "%s: less than the %s after which a node is taken for dead", strings.Join(all, ", "), slow)
	}
}

// repair tells how often it has to be done; whether it is done cannot be seen.
func (s *Store) repair(f facts, r *driver.Findings) {
	const hints = 3 * time.Hour // how long nodes keep what one that is down has missed
	grace := time.Duration(f.gcGrace) * time.Second
	if grace < hints {
		r.Say(driver.Warning, "repair", "gc_grace_seconds of %s is %d: rows that were swept may come back with old tokens. Set it to 864000", s.tables, f.gcGrace)
		return
	}
	text := fmt.Sprintf("%d hours", f.gcGrace/3600)
	if f.gcGrace >= 2*86400 {
		text = fmt.Sprintf("%d days", f.gcGrace/86400)
	}
	r.Say(driver.Good, "repair", "gc_grace_seconds is %s: each node has to be repaired (nodetool repair) at least that often, which cannot be seen from here", text)
}

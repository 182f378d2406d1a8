package mysql

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Servers that lose what they have confirmed are refused, unless the danger is
// accepted by name; those that do not work at all are refused in any case.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name     string
		settings []string
		run      string // on the server that runs
		want     string
		allow    string
	}{
		{"no wait for the disk", []string{"innodb-flush-log-at-trx-commit=2"}, "",
			`mysql: innodb_flush_log_at_trx_commit is 2: after a crash a token may repeat. Set it to 1, or accept it: allow "async-commit"`, "async-commit"},
		{"binary log", []string{"log-bin=log", "sync-binlog=0"}, "",
			`mysql: sync_binlog is 0: after a crash of the machine transactions that are not in the binary log are rolled back, and a token may repeat. Set sync_binlog = 1, or accept it: allow "async-binlog"`, "async-binlog"},
		{"statements in the binary log", []string{"log-bin=log", "sync-binlog=1", "binlog-format=statement"}, "",
			`mysql: binlog_format is STATEMENT, with which InnoDB refuses READ COMMITTED: set it to ROW or MIXED`, ""},
		{"small packets", []string{"max-allowed-packet=1M"}, "",
			`mysql: max_allowed_packet is 1048576: a record may need 4194304; set it to that or more`, ""},
		{"read-only", nil, `set global read_only = 1`,
			`mysql: the server is read-only, and what it shows may be old: connect to the primary`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := servers.MySQL(t, &servers.Options{Settings: test.settings})
			if !server.Own {
				t.Skip("the settings of this server are not ours")
			}
			target := server.Database(t)
			db := connect(t, target, way{})
			if err := Migrate(t.Context(), db, nil); err != nil && test.want != "" && !strings.Contains(test.want, "STATEMENT") {
				t.Fatal(err)
			}
			if test.run != "" {
				if _, err := db.Exec(test.run); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := New(t.Context(), db, nil); err == nil || err.Error() != test.want {
				t.Fatalf("got %v, want %s", err, test.want)
			}
			if _, err := New(t.Context(), db, &Options{Allow: []string{"async-binlog", "async-commit", "galera", "group-replication"}}); (err == nil) != (test.allow != "") {
				t.Errorf("with all allowed: %v", err)
			}
			if test.allow == "" {
				return
			}
			s, err := New(t.Context(), db, &Options{Allow: []string{test.allow}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			hold(t, s, "a", "x")
			if f := finding(t, s, "durability"); f.Level != driver.Warning || !strings.HasPrefix(test.want, "mysql: "+strings.TrimPrefix(f.Text, test.allow+" is accepted: ")) || !strings.Contains(f.Text, "token may repeat") {
				t.Errorf("the doctor says %+v", f)
			}
		})
	}
}

func TestBadOptions(t *testing.T) {
	db := connect(t, servers.MySQL(t, nil).Database(t), way{})
	for _, test := range []struct {
		opts *Options
		want string
	}{
		{&Options{Prefix: "a`b"}, "mysql: prefix \"a`b\" is not valid: letters, digits and _, not a digit first, at most 40"},
		{&Options{Allow: []string{"async"}}, `mysql: cannot allow "async": it is none of async-binlog, async-commit, galera, group-replication`},
		{nil, `mysql: schema of "holdfast_" is missing; create it with mysql.Migrate or: holdfast schema apply`},
	} {
		if _, err := New(t.Context(), db, test.opts); err == nil || err.Error() != test.want {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}

// Servers that cannot be had here are told by what they would say, as their manuals
// have it.
func TestServers(t *testing.T) {
	good := map[string]string{"innodb_flush_log_at_trx_commit": "1", "max_allowed_packet": "16777216", "read_only": "OFF"}
	for _, test := range []struct {
		version string
		more    map[string]string
		want    string
	}{
		{"10.6.0-MariaDB", nil, ""},
		{"11.8.2-MariaDB-log", nil, ""},
		{"10.5.27-MariaDB", nil, "the server is MariaDB 10.5.27; it takes 10.6 or newer"},
		{"8.0.21", nil, ""},
		{"9.1.0-commercial", nil, ""},
		{"8.0.20-log", nil, "the server is MySQL 8.0.20-log; it takes 8.0.21 or newer"},
		{"5.7.44", nil, "the server is MySQL 5.7.44; it takes 8.0.21 or newer"},
		{"8.0.11-TiDB-v7.5.0", nil, "the server is 8.0.11-TiDB-v7.5.0; it takes MariaDB or MySQL"},
		{"10.11.19-MariaDB", map[string]string{"wsrep_on": "ON"}, `the server is part of a Galera cluster, which may lose commits that it has confirmed, and let two nodes give the same lock. Use a server that replicates from one primary, or accept it: allow "galera"`},
		{"8.4.3", map[string]string{"group_replication_group_name": "aaaaaaaa-aaaa", "group_replication_single_primary_mode": "OFF"}, `the server is part of a group with several primaries (group_replication_single_primary_mode is OFF), of which two may give the same lock. Use a group with one primary, or accept it: allow "group-replication"`},
		{"8.4.3", map[string]string{"group_replication_group_name": "aaaaaaaa-aaaa", "group_replication_single_primary_mode": "ON"}, ""},
		{"8.4.3", map[string]string{"group_replication_group_name": "", "group_replication_single_primary_mode": "OFF"}, ""},
		{"10.11.19-MariaDB", map[string]string{"log_bin": "ON", "sync_binlog": "1", "binlog_format": "ROW", "wsrep_forced_binlog_format": "STATEMENT"}, "wsrep_forced_binlog_format is STATEMENT, with which InnoDB refuses READ COMMITTED: set it to ROW or MIXED"},
		{"8.4.3", map[string]string{"super_read_only": "ON"}, errReplica.Error()},
		{"11.8.2-MariaDB", map[string]string{"read_only": "NO_LOCK"}, errReplica.Error()},
		{"8.4.3", map[string]string{"log_bin": "ON", "sync_binlog": "1", "binlog_format": "ROW"}, ""},
		{"10.11.19-MariaDB", map[string]string{"innodb_flush_log_at_trx_commit": "3"}, ""},
	} {
		s := sqlstore.Facts{"version": test.version}
		for _, settings := range []map[string]string{good, test.more} {
			for k, v := range settings {
				s[k] = v
			}
		}
		describe(s)
		got := ""
		if err := dangers.Refuse(s, nil, false); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s with %v: got %s, want %s", test.version, test.more, got, test.want)
		}
	}
}

func finding(t *testing.T, s *Store, subject string) driver.Finding {
	t.Helper()
	list, err := s.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if f.Subject == subject {
			return f
		}
	}
	t.Fatalf("the doctor says nothing of %s: %+v", subject, list)
	return driver.Finding{}
}

// Locks leave connections to the others of the pool: with two they have one.
func TestPools(t *testing.T) {
	for conns, want := range map[int]struct {
		most int
		says string
		good bool
	}{
		0: {5, "a pool without a limit, of which up to 4 are for locks and one for heartbeats (answers in ", true},
		2: {1, "a pool of 2, of which one is for locks and heartbeats together: heartbeats wait behind locks. SetMaxOpenConns(3) or more gives them one of their own", false},
		3: {2, "a pool of 3, of which up to 1 are for locks and one for heartbeats (answers in ", true},
		7: {4, "a pool of 7, of which up to 3 are for locks and one for heartbeats (answers in ", true},
		9: {5, "a pool of 9, of which up to 4 are for locks and one for heartbeats (answers in ", true},
	} {
		h := fresh(t, way{conns: conns})
		if f := finding(t, h.Store, "connections"); !strings.HasPrefix(f.Text, want.says) || (f.Level == driver.Good) != want.good {
			t.Errorf("a pool of %d: %+v", conns, f)
		}
		c, err := holdfast.New(h, nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		for i := range 50 {
			go func() {
				l, err := c.Acquire(t.Context(), fmt.Sprint(i))
				if err == nil {
					err = l.Release(context.Background())
				}
				done <- err
			}()
		}
		for range 50 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := h.db.Stats().InUse; n > want.most || n == 0 {
			t.Errorf("a pool of %d: %d connections in use, want at most %d", conns, n, want.most)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if n := h.db.Stats().OpenConnections; n > 0 {
			t.Errorf("a pool of %d: %d connections are open after Close", conns, n)
		}
		if _, err := h.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh); err != driver.ErrClosed {
			t.Errorf("after Close: got %v", err)
		}
	}
	_, err := New(t.Context(), connect(t, servers.MySQL(t, nil).URL, way{conns: 1}), nil)
	want := "mysql: the pool has one connection, and locks would take it from everybody else: SetMaxOpenConns(3) or more, or a pool of its own"
	if err == nil || err.Error() != want {
		t.Errorf("a pool of 1: got %v, want %s", err, want)
	}
}

// A program that takes one lock and ends makes do with one connection.
func TestShortProgram(t *testing.T) {
	h := fresh(t, way{})
	c, err := holdfast.New(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if n := h.db.Stats().OpenConnections; n != 1 {
		t.Errorf("it has %d connections", n)
	}
	// A client that goes on has one for heartbeats that no lock can occupy.
	k := driver.Key{Space: driver.Sessions, Name: "s"}
	for i := range 3 {
		out, err := h.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1")}})
		if err == nil && out[0].Won {
			_, err = h.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: out[0].Record.Version}})
		}
		if err != nil {
			t.Fatalf("beat %d: %v", i, err)
		}
	}
	h.names.Trim(0)
	h.beats.Trim(0)
	if n := h.db.Stats().OpenConnections; n != 1 {
		t.Errorf("heartbeats have %d connections that stay", n)
	}
}

// A lane is not given back to the pool with our settings, and goes when nobody
// has used it for a while.
func TestLaneEnds(t *testing.T) {
	h := fresh(t, way{conns: 2})
	hold(t, h, "a", "x")
	if n := h.db.Stats().InUse; n != 1 {
		t.Fatalf("%d connections in use, want 1", n)
	}
	h.names.Trim(0)
	if s := h.db.Stats(); s.OpenConnections != 0 {
		t.Fatalf("after a while %+v", s)
	}
	hold(t, h, "a", "y")

	db := connect(t, h.url, way{dsn: "innodb_lock_wait_timeout=7"})
	db.SetMaxIdleConns(10)
	s, err := New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	hold(t, s, "b", "y")
	s.Close()
	for range 5 {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var wait int
		var zone string
		if err := conn.QueryRowContext(t.Context(), `select @@innodb_lock_wait_timeout, @@time_zone`).Scan(&wait, &zone); err != nil || wait != 7 || zone != "SYSTEM" {
			t.Errorf("a connection of the pool waits %d s for locks and is in zone %s, error %v", wait, zone, err)
		}
	}
}

// The connections that the store sets up are as it needs them, whatever the
// data source name says.
func TestLaneSettings(t *testing.T) {
	odd := strings.Join([]string{ways["two connections, found rows, odd settings"].dsn, "completion_type=2", "sql_select_limit=40", "sql_big_selects=0",
		"sql_safe_updates=1", "unique_checks=0", "foreign_key_checks=0", "timestamp=1000000000", "tx_read_only=1", "max_statement_time=0.01", "charset=latin1"}, "&")
	db := connect(t, servers.MySQL(t, nil).URL, way{dsn: odd})
	l, err := conns{db, texts()}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conns{}.Close(l)
	var got string
	err = l.conn.QueryRowContext(t.Context(), `
select concat_ws(' ', @@tx_isolation, @@tx_read_only, @@autocommit, @@completion_type, @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@time_zone, @@sql_mode,
	@@sql_select_limit, @@sql_big_selects, @@sql_safe_updates, @@unique_checks, @@foreign_key_checks, @@max_statement_time, year(now()) > 2001,
	@@character_set_client, @@character_set_connection, @@character_set_results)`).Scan(&got)
	want := "READ-COMMITTED OFF ON NO_CHAIN 1 1 +00:00 STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION " +
		"18446744073709551615 ON OFF ON ON 0.000000 1 utf8mb4 utf8mb4 utf8mb4"
	if err != nil || got != want {
		t.Errorf("got %s, error %v, want %s", got, err, want)
	}
}

// A limit of rows that the server has for everybody is not ours: a list is whole, and
// so is what is said of the server.
func TestSelectLimit(t *testing.T) {
	t.Parallel()
	p, _ := startPanel(t)
	v := variable{name: "sql_select_limit", kind: "BIGINT UNSIGNED", value: "18446744073709551615"}
	for _, limit := range []string{"1", "40"} {
		p.alone(t, setting{v, limit})
	}
}

// A transaction that the server's init_connect has begun is not ours: what is written
// in it would be told, and be gone.
func TestTransactionBegunByServer(t *testing.T) {
	t.Parallel()
	p, _ := startPanel(t)
	p.alone(t, setting{variable{name: "init_connect", kind: "VARCHAR"}, `'start transaction'`})
}

// What has been set so that locks do not work any more, since the store was opened, is
// found by the doctor.
func TestDoctorLooksAgain(t *testing.T) {
	t.Parallel()
	server := servers.MySQL(t, &servers.Options{Settings: []string{"log-bin=log", "sync-binlog=1", "binlog-format=row"}})
	if !server.Own {
		t.Skip("the settings of this server are not ours")
	}
	target := server.Database(t)
	db := connect(t, target, way{})
	if err := Migrate(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	s := open(t, target, way{})
	for setting, want := range map[string]string{
		"binlog_format = 'STATEMENT'": "binlog_format is STATEMENT, with which InnoDB refuses READ COMMITTED: set it to ROW or MIXED",
		"max_allowed_packet = 1024":   "max_allowed_packet is 1024: a record may need 4194304; set it to that or more",
	} {
		if _, err := db.Exec("set global " + setting); err != nil {
			t.Fatal(err)
		}
		if f := finding(t, s.Store, "server"); f.Level != driver.Failure || !strings.HasSuffix(f.Text, want) {
			t.Errorf("with %s the doctor says %+v, want %s", setting, f, want)
		}
		if _, err := db.Exec("set global binlog_format = 'ROW', max_allowed_packet = 16777216"); err != nil {
			t.Fatal(err)
		}
	}
}

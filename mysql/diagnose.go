package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// dangers are what puts locks at risk in a server. Those without a name are never accepted.
var dangers = sqlstore.Dangers{
	{There: func(f sqlstore.Facts) bool {
		return strings.Contains(f["version"], "TiDB") || strings.Contains(f["version"], "Vitess")
	},
		Text: "the server is $version; it takes MariaDB or MySQL"},
	{There: func(f sqlstore.Facts) bool { return f["mariadb"] != "" && f.Int("number") < 10_06_00 },
		Text: "the server is $name; it takes 10.6 or newer"},
	{There: func(f sqlstore.Facts) bool { return f["mariadb"] == "" && f.Int("number") < 8_00_21 },
		Text: "the server is $name; it takes 8.0.21 or newer"},
	{There: readOnly, Err: errReplica},
	{There: func(f sqlstore.Facts) bool { return logs(f) && f.Is("binlog_format", "STATEMENT") },
		Text: "binlog_format is STATEMENT, with which InnoDB refuses READ COMMITTED: set it to ROW or MIXED"},
	{There: func(f sqlstore.Facts) bool { return logs(f) && f.Is("wsrep_forced_binlog_format", "STATEMENT") },
		Text: "wsrep_forced_binlog_format is STATEMENT, with which InnoDB refuses READ COMMITTED: set it to ROW or MIXED"},
	{There: func(f sqlstore.Facts) bool { return logs(f) && f.Is("unlogged", "1") },
		Text: "sql_log_bin is 0 on the pool's connections: a replica would know of no lock. Set it to 1"},
	{There: func(f sqlstore.Facts) bool {
		return f["max_allowed_packet"] != "" && f.Int("max_allowed_packet") < 4<<20
	}, // a batch's
		Text: "max_allowed_packet is $max_allowed_packet: a record may need 4194304; set it to that or more"},

	{Name: "async-commit", Subject: "durability", There: func(f sqlstore.Facts) bool { return !f.Is("innodb_flush_log_at_trx_commit", "1", "3") },
		Text: "innodb_flush_log_at_trx_commit is $innodb_flush_log_at_trx_commit: after a crash a token may repeat", Cure: "Set it to 1"},
	{Name: "async-binlog", Subject: "durability", There: func(f sqlstore.Facts) bool { return logs(f) && !f.Is("sync_binlog", "1") },
		Text: "sync_binlog is $sync_binlog: after a crash of the machine transactions that are not in the binary log are rolled back, and a token may repeat", Cure: "Set sync_binlog = 1"},
	{Name: "group-replication", Subject: "cluster", There: func(f sqlstore.Facts) bool {
		return f["group_replication_group_name"] != "" && f.Is("group_replication_single_primary_mode", "OFF", "0")
	},
		Text: "the server is part of a group with several primaries (group_replication_single_primary_mode is OFF), of which two may give the same lock", Cure: "Use a group with one primary"},
	{Name: "galera", Subject: "cluster", There: func(f sqlstore.Facts) bool { return f.Is("wsrep_on", "ON", "1") },
		Text: "the server is part of a Galera cluster, which may lose commits that it has confirmed, and let two nodes give the same lock", Cure: "Use a server that replicates from one primary"},
}

func logs(f sqlstore.Facts) bool { return f.Is("log_bin", "ON", "1") }

func readOnly(f sqlstore.Facts) bool {
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if _, known := f[name]; known && !f.Is(name, "OFF", "0") {
			return true
		}
	}
	return false
}

// ask returns what a store needs to know about its server: the global variables, and the
// version of the schema.
func ask(ctx context.Context, l *lane, t sqlstore.Tables) (sqlstore.Facts, error) {
	f := make(sqlstore.Facts)
	err := l.Query(ctx, "settings", func(scan sqlstore.Scan) error {
		var name, value string
		err := scan(&name, &value)
		f[strings.ToLower(name)] = value
		return err
	})
	if err != nil {
		return nil, err
	}
	describe(f)
	err = l.Query(ctx, "version", func(scan sqlstore.Scan) error {
		var schema, unlogged string
		err := scan(&schema, &unlogged)
		f["schema"], f["unlogged"] = schema, unlogged
		return err
	})
	switch codes.Meaning(err) {
	case sqlstore.Missing:
		err = nil
	case sqlstore.Denied:
		err = sqlstore.NotGranted("", "read", t, err)
	}
	return f, err
}

// describe tells from the version, such as 10.11.19-MariaDB-log, what the server is.
func describe(f sqlstore.Facts) {
	var major, minor, patch int
	fmt.Sscanf(f["version"], "%d.%d.%d", &major, &minor, &patch)
	f["number"] = fmt.Sprint(major*10000 + minor*100 + patch)
	f["name"] = "MySQL " + f["version"]
	if v, _, mariadb := strings.Cut(f["version"], "-MariaDB"); mariadb {
		f["mariadb"], f["name"] = v, "MariaDB "+v
	}
}

var _ driver.Diagnoser = (*Store)(nil)

// Diagnose implements driver.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	var found sqlstore.Facts
	var may, wrong error
	replicas := 0
	err := s.names.Use(ctx, func(l *lane) (err error) {
		if found, err = ask(ctx, l, s.Tables); err != nil {
			return err
		}
		if err := l.Query(ctx, "replicas", func(scan sqlstore.Scan) error { return scan(new(string), &replicas) }); err != nil {
			return err
		}
		for _, name := range rights {
			p, err := l.conn.PrepareContext(ctx, l.texts[name])
			switch {
			case denied(err):
				may = errors.Join(may, err)
			case err != nil && codes.Meaning(err) != sqlstore.Missing:
				return err
			case err == nil:
				p.Close()
			}
		}
		wrong = verify(ctx, l, s.Tables, found)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var r driver.Findings
	unfit := dangers.Unfit(found, s.readOnly)
	if unfit != nil {
		unfit = fmt.Errorf("%s: %w", found["name"], unfit)
	}
	r.Check(unfit, "server", "%s, primary", found["name"])
	rights := "read and write"
	switch {
	case may != nil && s.readOnly:
		rights = "read, and not write"
	case may != nil && checkVersion(s.Tables, found) == nil:
		wrong = fmt.Errorf("version %s of %s; %w", found["schema"], s.Tables, sqlstore.NotGranted("", "write", s.Tables, may))
	}
	r.Check(wrong, "schema", "version %s of %s; may %s", found["schema"], s.Tables, rights)
	good := "innodb_flush_log_at_trx_commit $innodb_flush_log_at_trx_commit"
	if found.Is("log_bin", "ON", "1") {
		good += ", sync_binlog 1"
	}
	dangers.Report(&r, found, s.allow, good)
	if replicas > 0 && !found.Is("rpl_semi_sync_master_enabled", "ON", "1") {
		r.Say(driver.Warning, "replication", "asynchronous to %d: a failover may take the latest locks with it. Tokens go on growing, as far as the clock of the new primary is right; semi-synchronous replication loses less", replicas)
	}

	r.Say(driver.Good, "isolation", "READ COMMITTED, on connections of our own, whatever that of others is")
	r.Say(driver.Good, "notifications", "waiters poll, the next in line often: the database cannot wake them")

	s.connections(ctx, &r)
	return r, nil
}

// connections tells how many there are, and whether heartbeats have one of their own.
func (s *Store) connections(ctx context.Context, r *driver.Findings) {
	limit := "a pool without a limit"
	if n := s.db.Stats().MaxOpenConnections; n > 0 {
		limit = fmt.Sprintf("a pool of %d", n)
	}
	began := time.Now()
	err := s.beats.UseIdle(ctx, func(l *lane) error { return l.conn.PingContext(ctx) })
	switch {
	case err != nil:
		r.Say(driver.Failure, "connections", "heartbeats cannot connect: %v", err)
	case s.beats == s.names:
		r.Say(driver.Warning, "connections", "%s, of which one is for locks and heartbeats together: heartbeats wait behind locks. SetMaxOpenConns(3) or more gives them one of their own", limit)
	default:
		r.Say(driver.Good, "connections", "%s, of which up to %d are for locks and one for heartbeats (answers in %s)",
			limit, s.names.Size(), time.Since(began).Round(10*time.Microsecond))
	}
}

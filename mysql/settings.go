package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// dangers are what Options.Allow may name.
var dangers = []string{"async-binlog", "async-commit", "galera", "group-replication"}

// A server is what is known of one.
type server struct {
	version   string // "10.11.19-MariaDB-log"
	numbers   [3]int
	mariadb   bool
	returning bool              // INSERT … RETURNING
	settings  map[string]string // global variables; those that it does not have are not there
	unlogged  bool              // of our connections, the binary log has nothing
	schema    int64             // version of ours; 0: there is none
}

func (s server) name() string {
	if s.mariadb {
		v, _, _ := strings.Cut(s.version, "-MariaDB")
		return "MariaDB " + v
	}
	return "MySQL " + s.version
}

var numbers = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)`)

// ask is what a store needs to know of its server.
func ask(ctx context.Context, l *lane, t sqlstore.Tables) (s server, err error) {
	s.settings = make(map[string]string)
	err = l.once(ctx, `
show global variables where variable_name in ('version', 'read_only', 'super_read_only', 'innodb_read_only', 'innodb_flush_log_at_trx_commit',
	'log_bin', 'sync_binlog', 'binlog_format', 'wsrep_on', 'wsrep_forced_binlog_format', 'max_allowed_packet', 'rpl_semi_sync_master_enabled',
	'rpl_semi_sync_source_enabled', 'group_replication_group_name', 'group_replication_single_primary_mode')`, func(rows *sql.Rows) error {
		var name, value string
		err := rows.Scan(&name, &value)
		s.settings[strings.ToLower(name)] = value
		return err
	})
	if err != nil {
		return s, err
	}
	s.version = s.settings["version"]
	s.read()
	err = l.conn.QueryRowContext(ctx, t.Expand("select value, @@session.sql_log_bin = 0 from {meta} where `key` = 'version'", "`")).Scan(&s.schema, &s.unlogged)
	switch {
	case errors.Is(err, sql.ErrNoRows), number(err) == errNoTable:
		err = nil
	case denied(err):
		err = fmt.Errorf("the user may not read the tables of %q: grant it what the doc comment of mysql.Migrate says: %w", t, err)
	}
	return s, err
}

// read takes in the version.
func (s *server) read() {
	for i, n := range numbers.FindStringSubmatch(s.version) {
		if i > 0 {
			s.numbers[i-1], _ = strconv.Atoi(n)
		}
	}
	s.mariadb = strings.Contains(s.version, "MariaDB")
	s.returning = s.mariadb
}

// is tells whether a setting has one of the values.
func (s server) is(setting string, values ...string) bool {
	v, ok := s.settings[setting]
	return ok && slices.Contains(values, strings.ToUpper(v))
}

// A risk is a setting with which locks are not safe.
type risk struct {
	danger string // by which it may be allowed
	text   string
}

// risks are those that a server takes.
func (s server) risks() (list []risk) {
	if !s.is("innodb_flush_log_at_trx_commit", "1", "3") {
		list = append(list, risk{"async-commit", fmt.Sprintf("innodb_flush_log_at_trx_commit is %s: after a crash a token may repeat. Set it to 1", s.settings["innodb_flush_log_at_trx_commit"])})
	}
	if s.is("log_bin", "ON", "1") && !s.is("sync_binlog", "1") {
		list = append(list, risk{"async-binlog", fmt.Sprintf("sync_binlog is %s: after a crash of the machine transactions that are not in the binary log are rolled back, and a token may repeat. Set sync_binlog = 1", s.settings["sync_binlog"])})
	}
	if s.settings["group_replication_group_name"] != "" && s.is("group_replication_single_primary_mode", "OFF", "0") {
		list = append(list, risk{"group-replication", "the server is part of a group with several primaries (group_replication_single_primary_mode is OFF), of which two may give the same lock. Use a group with one primary"})
	}
	if s.is("wsrep_on", "ON", "1") {
		list = append(list, risk{"galera", "the server is part of a Galera cluster, which may lose commits that it has confirmed, and let two nodes give the same lock. Use a server that replicates from one primary"})
	}
	return list
}

// unfit is why there can be no locks on such a server, whatever is allowed.
func (s server) unfit() error {
	v := s.numbers
	switch {
	case strings.Contains(s.version, "TiDB") || strings.Contains(s.version, "Vitess"):
		return fmt.Errorf("the server is %s; it takes MariaDB or MySQL", s.version)
	case s.mariadb && slices.Compare(v[:], []int{10, 6, 0}) < 0:
		return fmt.Errorf("the server is %s; it takes 10.6 or newer", s.name())
	case !s.mariadb && slices.Compare(v[:], []int{8, 0, 21}) < 0:
		return fmt.Errorf("the server is %s; it takes 8.0.21 or newer", s.name())
	case s.readOnly():
		return errReplica
	}
	if s.is("log_bin", "ON", "1") {
		for _, name := range []string{"binlog_format", "wsrep_forced_binlog_format"} {
			if s.is(name, "STATEMENT") {
				return fmt.Errorf("%s is STATEMENT, with which InnoDB refuses READ COMMITTED: set it to ROW or MIXED", name)
			}
		}
		if s.unlogged {
			return errors.New("sql_log_bin is 0 on the pool's connections: a replica would know of no lock. Set it to 1")
		}
	}
	if n, err := strconv.Atoi(s.settings["max_allowed_packet"]); err == nil && n < leastPacket {
		return fmt.Errorf("max_allowed_packet is %d: a record may need %d; set it to that or more", n, leastPacket)
	}
	return nil
}

// refuse is why a store is not opened.
func (s server) refuse(t sqlstore.Tables, allow []string) error {
	if err := s.unfit(); err != nil {
		return err
	}
	for _, r := range s.risks() {
		if !slices.Contains(allow, r.danger) {
			return fmt.Errorf("%s, or accept it: allow %q", r.text, r.danger)
		}
	}
	return sqlstore.CheckSchema(t, s.schema, schemaVersion, "mysql.Migrate")
}

// leastPacket has room for the largest record, as a batch carries it.
const leastPacket = 4 << 20

func (s server) readOnly() bool {
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if v, ok := s.settings[name]; ok && !strings.EqualFold(v, "OFF") && v != "0" {
			return true
		}
	}
	return false
}

var _ holdfast.Diagnoser = (*Store)(nil)

// Diagnose implements holdfast.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) (list []holdfast.Finding, err error) {
	say := func(level holdfast.Level, subject, format string, args ...any) {
		list = append(list, holdfast.Finding{Level: level, Subject: subject, Text: fmt.Sprintf(format, args...)})
	}
	var found server
	var replicas int
	var may, differs error
	err = s.names.use(ctx, func(l *lane) (err error) {
		if found, err = ask(ctx, l, s.tables); err != nil {
			return err
		}
		var name string // only MariaDB counts them where all may see it
		err = l.conn.QueryRowContext(ctx, `show global status like 'Slaves_connected'`).Scan(&name, &replicas)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		for _, query := range newStatements(s.tables, found).rights() {
			p, err := l.conn.PrepareContext(ctx, query)
			switch {
			case denied(err):
				may = errors.Join(may, err)
			case err != nil && number(err) != errNoTable:
				return err
			case err == nil:
				p.Close()
			}
		}
		differs = verify(ctx, l, s.tables)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := found.unfit(); err != nil {
		say(holdfast.Failure, "server", "%s: %v", found.name(), err)
	} else {
		say(holdfast.Good, "server", "%s, primary", found.name())
	}

	if err := sqlstore.CheckSchema(s.tables, found.schema, schemaVersion, "mysql.Migrate"); err != nil {
		say(holdfast.Failure, "schema", "%v", err)
	} else if may != nil {
		say(holdfast.Failure, "schema", "version %d of %s; %v", found.schema, s.tables, errNotGranted(s.tables, may))
	} else if differs != nil {
		say(holdfast.Failure, "schema", "%v", differs)
	} else {
		say(holdfast.Good, "schema", "version %d of %s; may read and write", found.schema, s.tables)
	}

	risks := found.risks()
	for _, r := range risks {
		subject := "durability"
		if r.danger == "galera" || r.danger == "group-replication" {
			subject = "cluster"
		}
		level := holdfast.Failure
		if slices.Contains(s.allow, r.danger) {
			level = holdfast.Warning
		}
		say(level, subject, "%s", r.text)
	}
	if len(risks) == 0 {
		text := "innodb_flush_log_at_trx_commit " + found.settings["innodb_flush_log_at_trx_commit"]
		if found.is("log_bin", "ON", "1") {
			text += ", sync_binlog 1"
		}
		say(holdfast.Good, "durability", "%s", text)
	}
	if replicas > 0 && !found.is("rpl_semi_sync_master_enabled", "ON", "1") {
		say(holdfast.Warning, "replication", "asynchronous to %d: a failover may take the latest locks with it. Tokens go on growing, as far as the clock of the new primary is right; semi-synchronous replication loses less", replicas)
	}

	say(holdfast.Good, "isolation", "READ COMMITTED, on connections of our own, whatever that of others is")
	say(holdfast.Good, "wake-ups", "waiters poll, the next in line often: the database cannot wake them")

	limit := "a pool without a limit"
	if n := s.db.Stats().MaxOpenConnections; n > 0 {
		limit = fmt.Sprintf("a pool of %d", n)
	}
	began := time.Now()
	if err := s.beats.use(ctx, func(l *lane) error { return l.conn.PingContext(ctx) }); err != nil {
		say(holdfast.Failure, "connections", "heartbeats cannot connect: %v", err)
	} else if s.beats == s.names {
		say(holdfast.Warning, "connections", "%s, of which one is for locks and heartbeats together: heartbeats wait behind locks. SetMaxOpenConns(3) or more gives them one of their own", limit)
	} else {
		say(holdfast.Good, "connections", "%s, of which up to %d are for locks and one for heartbeats (answers in %s)",
			limit, cap(s.names.free), time.Since(began).Round(10*time.Microsecond))
	}
	return list, nil
}

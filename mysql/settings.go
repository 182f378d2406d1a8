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

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

var dangers = sqlstore.Dangers[server]{
	{Name: "async-commit", Subject: "durability", There: func(s server) bool { return !s.is("innodb_flush_log_at_trx_commit", "1", "3") },
		Text: "innodb_flush_log_at_trx_commit is $innodb_flush_log_at_trx_commit: after a crash a token may repeat", Cure: "Set it to 1"},
	{Name: "async-binlog", Subject: "durability", There: func(s server) bool { return s.is("log_bin", "ON", "1") && !s.is("sync_binlog", "1") },
		Text: "sync_binlog is $sync_binlog: after a crash of the machine transactions that are not in the binary log are rolled back, and a token may repeat", Cure: "Set sync_binlog = 1"},
	{Name: "group-replication", Subject: "cluster", There: func(s server) bool {
		return s.Setting("group_replication_group_name") != "" && s.is("group_replication_single_primary_mode", "OFF", "0")
	},
		Text: "the server is part of a group with several primaries (group_replication_single_primary_mode is OFF), of which two may give the same lock", Cure: "Use a group with one primary"},
	{Name: "galera", Subject: "cluster", There: func(s server) bool { return s.is("wsrep_on", "ON", "1") },
		Text: "the server is part of a Galera cluster, which may lose commits that it has confirmed, and let two nodes give the same lock", Cure: "Use a server that replicates from one primary"},
}

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
	err = l.once(ctx, texts()["settings"], func(rows *sql.Rows) error {
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
	err = l.conn.QueryRowContext(ctx, t.Expand(texts()["version"], "`")).Scan(&s.schema, &s.unlogged)
	switch {
	case errors.Is(err, sql.ErrNoRows), number(err) == errNoTable:
		err = nil
	case denied(err):
		err = &driver.RightsError{What: fmt.Sprintf("may not read the tables of %q", t), Err: err}
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

// Setting is the value of a global variable, or "".
func (s server) Setting(name string) string { return s.settings[name] }

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
func (s server) refuse(t sqlstore.Tables, opts Options) error {
	if err := s.unfit(); err != nil {
		return err
	}
	if !opts.ReadOnly {
		if err := dangers.Refuse(s, opts.Allow); err != nil {
			return err
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

var _ driver.Diagnoser = (*Store)(nil)

// Diagnose implements driver.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	var found server
	var replicas int
	var may, differs error
	err := s.names.Use(ctx, func(l *lane) (err error) {
		if found, err = ask(ctx, l, s.tables); err != nil {
			return err
		}
		var name string // only MariaDB counts them where all may see it
		err = l.conn.QueryRowContext(ctx, `show global status like 'Slaves_connected'`).Scan(&name, &replicas)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		sql := newStatements(s.tables, false)
		for _, name := range rights {
			p, err := l.conn.PrepareContext(ctx, sql[name])
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
	var r sqlstore.Report
	unfit := found.unfit()
	if unfit != nil {
		unfit = fmt.Errorf("%s: %w", found.name(), unfit)
	}
	r.Check(unfit, "server", "%s, primary", found.name())
	rights := "read and write"
	wrong := sqlstore.CheckSchema(s.tables, found.schema, schemaVersion, "mysql.Migrate")
	switch {
	case wrong != nil:
	case may != nil && s.readOnly:
		wrong, rights = differs, "read, and not write"
	case may != nil:
		wrong = fmt.Errorf("version %d of %s; %w", found.schema, s.tables, errNotGranted(s.tables, may))
	default:
		wrong = differs
	}
	r.Check(wrong, "schema", "version %d of %s; may %s", found.schema, s.tables, rights)
	good := "innodb_flush_log_at_trx_commit $innodb_flush_log_at_trx_commit"
	if found.is("log_bin", "ON", "1") {
		good += ", sync_binlog 1"
	}
	dangers.Report(&r, found, s.allow, good)
	if replicas > 0 && !found.is("rpl_semi_sync_master_enabled", "ON", "1") {
		r.Say(driver.Warning, "replication", "asynchronous to %d: a failover may take the latest locks with it. Tokens go on growing, as far as the clock of the new primary is right; semi-synchronous replication loses less", replicas)
	}

	r.Say(driver.Good, "isolation", "READ COMMITTED, on connections of our own, whatever that of others is")
	r.Say(driver.Good, "wake-ups", "waiters poll, the next in line often: the database cannot wake them")

	limit := "a pool without a limit"
	if n := s.db.Stats().MaxOpenConnections; n > 0 {
		limit = fmt.Sprintf("a pool of %d", n)
	}
	began := time.Now()
	err = s.beats.UseIdle(ctx, func(l *lane) error { return l.conn.PingContext(ctx) })
	switch {
	case err != nil:
		r.Say(driver.Failure, "connections", "heartbeats cannot connect: %v", err)
	case s.beats == s.names:
		r.Say(driver.Warning, "connections", "%s, of which one is for locks and heartbeats together: heartbeats wait behind locks. SetMaxOpenConns(3) or more gives them one of their own", limit)
	default:
		r.Say(driver.Good, "connections", "%s, of which up to %d are for locks and one for heartbeats (answers in %s)",
			limit, s.names.Size(), time.Since(began).Round(10*time.Microsecond))
	}
	return r, nil
}

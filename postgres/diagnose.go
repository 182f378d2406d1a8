package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// dangers are what puts locks at risk in a database. Those without a name are never accepted.
var dangers = sqlstore.Dangers{
	{There: func(f sqlstore.Facts) bool {
		return slices.ContainsFunc(strange, func(mark string) bool { return strings.Contains(f["product"], mark) })
	}, Text: "the server is $name; it takes PostgreSQL"},
	{There: func(f sqlstore.Facts) bool { return f.Int("number") < 12_00_00 },
		Text: "the server is PostgreSQL $version; it takes 12 or newer"},
	{There: sqlstore.Is("standby", "TRUE"), Err: errStandby},
	{Writes: true, There: sqlstore.Is("read_only", "ON"),
		Text: "transactions are read-only (default_transaction_read_only): use a role or a server that can write"},
	{Writes: true, There: func(f sqlstore.Facts) bool { return !f.Is("session_replication_role", "ORIGIN") },
		Text: "session_replication_role is $session_replication_role, with which our trigger does not run, and a token may repeat: leave it at origin for this role"},

	{Name: "fsync-off", Subject: "durability", There: sqlstore.Is("fsync", "OFF"),
		Text: "fsync is off: after a power cut a token may repeat and fences fail", Cure: "Set fsync = on and restart the server"},
	{Name: "full-page-writes-off", Subject: "durability", There: sqlstore.Is("full_page_writes", "OFF"),
		Text: "full_page_writes is off: after a power cut locks may be lost, unless the file system never tears a page", Cure: "Set full_page_writes = on"},
	{Name: "async-commit", Subject: "durability", There: sqlstore.Is("synchronous_commit", "OFF"),
		Text: "synchronous_commit is off: after a crash of the server a token may repeat", Cure: "Set synchronous_commit = on for this role"},
}

// strange are databases that speak like PostgreSQL but are not: locks cannot rest on
// their row locks, clocks and notifications.
var strange = []string{"-YB-", "CockroachDB", "Greenplum"}

// ask asks for all that a store has to know about a database, in one round trip where the
// schema is known, and says where the tables are.
func ask(ctx context.Context, pool *pgxpool.Pool, t sqlstore.Tables) (f sqlstore.Facts, at sqlstore.Tables, err error) {
	err = pooled(ctx, pool, func(c *pgx.Conn) error {
		if at, err = locate(ctx, c, t); err != nil {
			return err
		}
		if at.Schema == "" {
			return checkVersion(t, 0)
		}
		var text string
		if err := c.QueryRow(ctx, full(at, texts()["facts"]), pgx.QueryExecModeExec).Scan(&text); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &f); err != nil {
			return err
		}
		f["name"], _, _ = strings.Cut(f["product"], " on ")
		pooler, cc := f["pid"] != fmt.Sprint(c.PgConn().PID()), c.Config()
		f["role"], f["pooler"] = cc.User, fmt.Sprint(pooler)
		f["prepares"] = fmt.Sprint(!pooler && cc.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && cc.StatementCacheCapacity != 0)
		return nil
	})
	switch codes.Meaning(err) {
	case sqlstore.Missing:
		err = checkVersion(t, 0)
	case sqlstore.Denied:
		err = sqlstore.NotGranted(pool.Config().ConnConfig.User, "read", t, err)
	}
	return f, at, err
}

// refuse says why such a database cannot keep locks.
func (s *Store) refuse(f sqlstore.Facts, t sqlstore.Tables) error {
	if err := dangers.Refuse(f, s.opts.Allow, s.opts.ReadOnly); err != nil {
		return err
	}
	if f.Is("hidden", "TRUE") {
		return fmt.Errorf("schema of %q: %w", t, errHidden)
	}
	if err := checkVersion(t, f.Int("schema")); err != nil {
		return err
	}
	if !f.Is("may", "TRUE") && !s.opts.ReadOnly {
		return sqlstore.NotGranted(f["role"], "write", t, nil)
	}
	return nil
}

var errHidden = errors.New("row-level security hides rows from this role, or from the owner, whose rights the fence has: disable it for these tables")

// Diagnose implements driver.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	f, _, err := ask(ctx, s.pool, s.Tables)
	if err != nil {
		return nil, err
	}
	var r driver.Findings
	role := "primary"
	if f.Is("standby", "TRUE") {
		role = "standby"
	}
	if f.Is("pooler", "TRUE") {
		role += ", behind a connection pooler"
	}
	unfit := dangers.Unfit(f, s.opts.ReadOnly)
	if unfit != nil {
		unfit = fmt.Errorf("PostgreSQL %s, %s: %w", f["version"], role, unfit)
	}
	r.Check(unfit, "server", "PostgreSQL %s, %s", f["version"], role)
	s.schema(ctx, f, &r)
	dangers.Report(&r, f, s.opts.Allow, "synchronous_commit $synchronous_commit, fsync on, full_page_writes on")
	s.replicas(ctx, f, &r)
	s.prepared(ctx, &r)

	if c, err := s.listen(ctx, nil); err == nil {
		s.unlisten(c)
		r.Say(driver.Good, "notifications", "they arrive")
	} else if errors.Is(err, errDeaf) {
		r.Say(driver.Warning, "notifications", "%v", err)
	} else {
		r.Say(driver.Warning, "notifications", "waiters poll, for they cannot listen: %v", err)
	}

	max := s.pool.Config().MaxConns
	began := time.Now()
	if err := s.beats.Use(ctx, func(c *pgx.Conn) error { return c.Ping(ctx) }); err != nil {
		r.Say(driver.Failure, "connections", "heartbeats cannot connect beside the pool of %d: %v", max, err)
	} else {
		r.Say(driver.Good, "connections", "a pool of %d, and beside it one for heartbeats (answers in %s) and one for notifications while somebody waits",
			max, time.Since(began).Round(10*time.Microsecond))
	}
	return r, nil
}

// schema tells whether the tables are there as published, and who may do what to them.
func (s *Store) schema(ctx context.Context, f sqlstore.Facts, r *driver.Findings) {
	wrong := pooled(ctx, s.pool, func(c *pgx.Conn) error {
		_, err := verify(ctx, c, s.Tables)
		return err
	})
	alter := "may not alter (good)"
	if f.Is("owns", "TRUE") {
		alter = "may alter; a role that may not is enough to run"
	}
	switch {
	case f.Is("hidden", "TRUE"):
		r.Say(driver.Failure, "schema", "version %s of %s; %v", f["schema"], s.Tables, errHidden)
	case wrong != nil:
		r.Say(driver.Failure, "schema", "%v", wrong)
	case s.opts.ReadOnly && !f.Is("may", "TRUE"):
		r.Say(driver.Good, "schema", "version %s in schema %s; may read, and not write", f["schema"], s.Tables.Schema)
	case !f.Is("may", "TRUE"):
		r.Say(driver.Failure, "schema", "version %s of %s; %v", f["schema"], s.Tables, &driver.RightsError{Role: f["role"], What: "may not write it"})
	default:
		r.Say(driver.Good, "schema", "version %s in schema %s; may read and write, %s", f["schema"], s.Tables.Schema, alter)
	}
	if f.Is("open", "TRUE") {
		r.Say(driver.Warning, "schema", "everybody may create in the schema %s of the tables, also functions that are called instead of the fence: revoke create on schema %[1]s from public, or give Holdfast a schema of its own", s.Tables.Schema)
	}
}

// replicas tells what a failover may lose, as far as the role may see it.
func (s *Store) replicas(ctx context.Context, f sqlstore.Facts, r *driver.Findings) {
	if f["synchronous_standby_names"] != "" && f.Is("synchronous_commit", "LOCAL") {
		r.Say(driver.Warning, "replication", "there are synchronous standbys, but synchronous_commit is local: a failover may take the latest locks with it, and tokens may repeat. Set synchronous_commit = on for this role")
		return
	}
	var names []string
	err := pooled(ctx, s.pool, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, s.sql["replicas"], pgx.QueryExecModeExec)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err == nil && len(names) > 0 && f["synchronous_standby_names"] == "" {
		r.Say(driver.Warning, "replication", "asynchronous only (%s): a failover to one of them may take the latest locks with it. Tokens go on growing, as far as its clock is right; set synchronous_standby_names to lose nothing", strings.Join(names, ", "))
	}
}

// prepared reports transactions that keep locks until somebody commits them or
// rolls them back.
func (s *Store) prepared(ctx context.Context, r *driver.Findings) {
	err := pooled(ctx, s.pool, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, s.sql["prepared"], pgx.QueryExecModeExec)
		if err != nil {
			return err
		}
		var gid, owner string
		var age float64
		_, err = pgx.ForEachRow(rows, []any{&gid, &owner, &age}, func() error {
			r.Say(driver.Warning, "prepared transactions", "%q of %s has kept rows of %s locked for %v: nobody takes those locks over until it is committed or rolled back (commit prepared, rollback prepared)",
				gid, owner, s.Tables, time.Duration(age*float64(time.Second)).Round(time.Second))
			return nil
		})
		return err
	})
	if err != nil {
		r.Say(driver.Warning, "prepared transactions", "they could not be asked for: %v", err)
	}
}

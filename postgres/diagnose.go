package postgres

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
)

// Diagnose implements driver.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	var r sqlstore.Report
	say := r.Say
	f, err := s.facts(ctx)
	if err != nil {
		return nil, err
	}

	role := "primary"
	if f.standby {
		role = "standby"
	}
	if f.pooler {
		role += ", behind a connection pooler"
	}
	switch {
	case f.standby:
		say(driver.Failure, "server", "PostgreSQL %s, %s: %v", f.versionText, role, errStandby)
	case f.readOnly && !s.opts.ReadOnly:
		say(driver.Failure, "server", "PostgreSQL %s, %s: %v", f.versionText, role, errReadOnly)
	default:
		say(driver.Good, "server", "PostgreSQL %s, %s", f.versionText, role)
	}

	s.schema(ctx, f, say)
	dangers.Report(&r, f, s.opts.Allow, "synchronous_commit $synchronous_commit, fsync on, full_page_writes on")
	s.replicas(ctx, f, say)
	s.prepared(ctx, say)

	if c, err := s.listen(ctx, nil); err == nil {
		s.unlisten(c)
		say(driver.Good, "wake-ups", "notifications arrive")
	} else if errors.Is(err, errDeaf) {
		say(driver.Warning, "wake-ups", "%v", err)
	} else {
		say(driver.Warning, "wake-ups", "waiters poll, for they cannot listen: %v", err)
	}

	max := s.pool.Config().MaxConns
	began := time.Now()
	if err := s.beats.Use(ctx, func(c *pgx.Conn) error { return c.Ping(ctx) }); err != nil {
		say(driver.Failure, "connections", "heartbeats cannot connect beside the pool of %d: %v", max, err)
	} else {
		say(driver.Good, "connections", "a pool of %d, and beside it one for heartbeats (answers in %s) and one for wake-ups while somebody waits",
			max, time.Since(began).Round(10*time.Microsecond))
	}
	return r, nil
}

// schema tells whether the tables are there as published, and who may do what to them.
func (s *Store) schema(ctx context.Context, f facts, say sayer) {
	wrong := pooled(s.pool)(ctx, func(c *pgx.Conn) error {
		_, err := verify(ctx, c, s.tables)
		return err
	})
	alter := "may not alter (good)"
	if f.owns {
		alter = "may alter; a role that may not is enough to run"
	}
	switch {
	case f.hidden:
		say(driver.Failure, "schema", "version %d of %s; %v", f.schemaVersion, s.tables, errHidden)
	case wrong != nil:
		say(driver.Failure, "schema", "%v", wrong)
	case s.opts.ReadOnly && !f.may:
		say(driver.Good, "schema", "version %d in schema %s; may read, and not write", f.schemaVersion, s.tables.Schema)
	case !f.may:
		say(driver.Failure, "schema", "version %d of %s; %v", f.schemaVersion, s.tables, &driver.RightsError{Role: s.role(), What: "may not write it"})
	default:
		say(driver.Good, "schema", "version %d in schema %s; may read and write, %s", f.schemaVersion, s.tables.Schema, alter)
	}
	if f.open {
		say(driver.Warning, "schema", "everybody may create in the schema %s of the tables, also functions that are called instead of the fence: revoke create on schema %[1]s from public, or give Holdfast a schema of its own", s.tables.Schema)
	}
}

type sayer func(level driver.Level, subject, format string, args ...any)

// replicas tells what a failover may take, as far as the role may see it.
func (s *Store) replicas(ctx context.Context, f facts, say sayer) {
	if f.standbyNames != "" && f.synchronousCommit == "local" {
		say(driver.Warning, "replication", "there are synchronous standbys, but synchronous_commit is local: a failover may take the latest locks with it, and tokens may repeat. Set synchronous_commit = on for this role")
		return
	}
	var names []string
	err := pooled(s.pool)(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, s.sql["replicas"], pgx.QueryExecModeExec)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err == nil && len(names) > 0 && f.standbyNames == "" {
		say(driver.Warning, "replication", "asynchronous only (%s): a failover to one of them may take the latest locks with it. Tokens go on growing, as far as its clock is right; set synchronous_standby_names to lose nothing", strings.Join(names, ", "))
	}
}

// prepared tells of transactions that keep locks until somebody commits them or
// rolls them back.
func (s *Store) prepared(ctx context.Context, say sayer) {
	err := pooled(s.pool)(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, s.sql["prepared"], pgx.QueryExecModeExec)
		if err != nil {
			return err
		}
		var gid, owner string
		var age float64
		_, err = pgx.ForEachRow(rows, []any{&gid, &owner, &age}, func() error {
			say(driver.Warning, "prepared transactions", "%q of %s has kept rows of %s locked for %v: nobody takes those locks over until it is committed or rolled back (commit prepared, rollback prepared)",
				gid, owner, s.tables, time.Duration(age*float64(time.Second)).Round(time.Second))
			return nil
		})
		return err
	})
	if err != nil {
		say(driver.Warning, "prepared transactions", "they could not be asked for: %v", err)
	}
}

//go:build linux

package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// tables are what an episode adds to its database: the application's table, and
// what keeps every version of every record. On PostgreSQL and SQLite that is a
// trigger, which on PostgreSQL also tells who wrote it, and whether without waiting
// for the disk.
func tables(scheme string) string {
	if scheme == "sqlite" {
		return `
create table effects (id text primary key, name text not null, token bigint not null);
create table audit (n integer primary key, id blob, version integer, value blob);
create trigger audit_insert after insert on holdfast_records begin
	insert into audit (id, version, value) values (unhex(printf('%02x', new.space) || hex(new.name)), new.version, new.value);
end;
create trigger audit_update after update on holdfast_records when new.version <> old.version begin
	insert into audit (id, version, value) values (unhex(printf('%02x', new.space) || hex(new.name)), new.version, new.value);
end;
`
	}
	if scheme == "postgres" {
		return `
create table effects (id text primary key, name text not null, token bigint not null);
create table audit (n bigserial primary key, id bytea, version bigint, value bytea, lazy boolean, who text);
create function audit() returns trigger language plpgsql as $$
begin
	insert into audit (id, version, value, lazy, who) values (new.id, new.version, new.value,
		current_setting('synchronous_commit') = 'off', current_setting('application_name'));
	return null;
end $$;
create trigger audit_insert after insert on holdfast_records for each row execute function audit();
create trigger audit_update after update on holdfast_records for each row when (new.version <> old.version) execute function audit();
`
	}
	// No trigger: after one the client is not told last_insert_id().
	return `
create table effects (id varchar(100) primary key, name varchar(100) not null, token bigint not null);
alter table holdfast_records add system versioning;
`
}

// setUp executes such a script.
func setUp(ctx context.Context, db *sql.DB, scheme string) error {
	script := []string{tables(scheme)}
	if scheme == "mysql" {
		script = strings.SplitAfter(strings.TrimSpace(script[0]), ";\n")
	}
	for _, s := range script {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// steps are all writes to the records, in an order that each writer could have
// seen: that of the trigger on PostgreSQL, of versions on MariaDB.
func (e *episode) steps(ctx context.Context) (all []check.Step, err error) {
	query := `select id, version, value, lazy, who, '', '' from audit order by n`
	switch e.lane.kind {
	case "sqlite":
		query = `select id, version, value, false, '', '', '' from audit order by n`
	case "mysql":
		query = `select id, version, value, false, '', row_start, row_end from holdfast_records for system_time all order by version, row_start`
	}
	rows, err := e.store.DB.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	wrote := e.writers()
	bits := make(map[string]uint64)
	last := make(map[driver.Key]check.Step)
	ended := make(map[driver.Key]string)
	for rows.Next() {
		var s check.Step
		var id, value []byte
		var who, from, to string
		if err := rows.Scan(&id, &s.Version, &value, &s.Lazy, &who, &from, &to); err != nil {
			return nil, err
		}
		s.Key, s.Value = driver.Key{Space: driver.Space(id[0]), Name: string(id[1:])}, string(value)
		s.At = time.Duration(s.Version) * time.Microsecond // the server's clock, but for a leap back
		if e.lane.tells() {
			if who = wrote[writeOf{keyOf(s.Key), s.Version}]; who == "" {
				s.Writers = ^uint64(0) // nobody was told that it won
			}
		}
		if e.lane.kind == "mysql" {
			before, seen := ended[s.Key]
			ended[s.Key] = to
			if last[s.Key].Version == s.Version {
				continue // a fence
			}
			s.Restored = seen && before != from // the server has not kept what was between
		}
		if who != "" {
			if bits[who] == 0 {
				bits[who] = 1 << len(bits)
			}
			s.Writers = bits[who]
		}
		last[s.Key] = s
		all = append(all, s)
	}
	return all, rows.Err()
}

// A writeOf is a write that was told of as won.
type writeOf struct {
	key     string
	version int64
}

func keyOf(k driver.Key) string { return fmt.Sprintf("%d %s", k.Space, k.Name) }

func (e *episode) writers() map[writeOf]string {
	who := make(map[writeOf]string)
	for _, p := range e.workers {
		for _, ev := range p.Told() {
			if ev.What == story.Wrote {
				who[writeOf{ev.Name, ev.Token}] = p.ID
			}
		}
	}
	return who
}

// audit checks every write that the database has kept.
func (e *episode) audit() (found []check.Violation, n int) {
	if e.leap != 0 && e.lane.kind == "mysql" {
		return nil, 0 // there the order is lost with the clock
	}
	all, err := e.steps(e.t.Context())
	must(e.t, err)
	killed := make(map[string]bool)
	for _, p := range e.workers {
		for _, ev := range p.Events {
			if ev.What == story.Beats && p.Killed > 0 {
				killed[ev.Name] = true
			}
		}
	}
	owners := make(map[string]uint64)
	for _, s := range all {
		if rec, err := check.ReadSession(s.Value); err == nil && s.Key.Space == driver.Sessions && rec.Beat > 0 && owners[s.Key.Name] == 0 {
			owners[s.Key.Name] = s.Writers
		}
	}
	a := check.NewAudit(func(session string) uint64 { return owners[session] }, e.leap)
	a.Rates = e.wrong
	a.Gone = func(session string) bool { return killed[session] }
	return a.Check(all), len(all)
}

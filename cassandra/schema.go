package cassandra

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/holdfast-lock/holdfast/driver"
)

//go:embed schema.cql
var schema string

const schemaVersion = 1

// tables are the names that belong to one Options.
type tables struct{ keyspace, prefix string }

const defaultPrefix = "holdfast_"

func (o *Options) tables() tables {
	t := tables{o.Keyspace, o.Prefix}
	if t.prefix == "" {
		t.prefix = defaultPrefix
	}
	return t
}

// String is how errors name them.
func (t tables) String() string { return t.keyspace + "." + t.prefix + "records" }

// expand puts a quoted name in place of {records}.
func (t tables) expand(text string) string {
	name := quote(t.prefix + "records")
	if t.keyspace != "" {
		name = quote(t.keyspace) + "." + name
	}
	return strings.ReplaceAll(text, "{records}", name)
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// maxName is how long a keyspace's name or a prefix may be: "records" follows a
// prefix, and a name in Cassandra has at most 48 characters.
const maxName = 40

// nameForm is what Cassandra accepts as a name.
var nameForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`^[A-Za-z0-9_]{0,%d}$`, maxName))
})

// Schema returns the statements that create what Holdfast needs in a keyspace,
// for those who run them with cqlsh or a tool of their own. They may be repeated,
// but not by several at once (see Migrate). Without Options.Keyspace they are for
// the keyspace that is in use.
func Schema(opts *Options) (string, error) {
	if opts == nil {
		opts = &Options{}
	}
	if err := opts.check(); err != nil {
		return "", fmt.Errorf("cassandra: %w", err)
	}
	return opts.tables().expand(schema), nil
}

// Migrate creates the table in a keyspace that exists, as far as it is missing,
// and returns when all nodes that are up know the same table. It may be repeated. Where all is
// there it changes nothing.
//
// Two nodes that create a table at the same time make two tables of
// one name, and which one the cluster keeps may change when it restarts; no
// statement of Cassandra prevents that. So Migrate always asks the same node, as
// long as it is up: running it in several places at once is safe as long as all
// see the same nodes up. It is better to run it in one.
//
// It needs a role that may create in the keyspace (roles were not tested yet):
//
//	grant create on keyspace locks to migrator;
//	grant select, modify on keyspace locks to migrator;
//
// A role that takes locks and sweeps needs only these:
//
//	grant select on table locks.holdfast_records to app;
//	grant modify on table locks.holdfast_records to app;
func Migrate(ctx context.Context, session *gocql.Session, opts *Options) error {
	s, err := prepare(ctx, session, opts)
	if err == nil {
		err = s.migrate(ctx)
	}
	if err != nil {
		return fmt.Errorf("cassandra: create the schema: %w", err)
	}
	return nil
}

func (s *Store) migrate(ctx context.Context) error {
	f, err := s.facts(ctx)
	if err != nil {
		return err
	}
	if err := s.refuseCluster(f); err != nil {
		return err
	}
	if f.table {
		if err := s.compare(f); err != nil {
			return err
		}
	}
	for _, text := range statementsOf(s.tables.expand(schema)) {
		switch _, insert := strings.CutPrefix(text, "insert "); {
		case !insert && !f.table:
			err = s.create(ctx, text)
		case !insert: // another may be creating it
			err = s.spread(ctx)
		default:
			if _, err = s.floor(ctx); errors.Is(err, errNoFloor) {
				_, err = s.calls.send(ctx, floorName, text, nil, func(ctx context.Context, q *gocql.Query) error {
					_, err := q.MapScanCASContext(ctx, make(map[string]any))
					return err
				})
			}
		}
		if err != nil {
			return err
		}
	}
	return s.verify(ctx)
}

// create sends a statement that changes the schema, once, to the node that every
// Migrate asks, and waits until the others know of the change.
func (s *Store) create(ctx context.Context, text string) error {
	host, _ := s.calls.coordinator([]byte(s.tables.String()), nil)
	if host == "" {
		return gocql.ErrNoConnections
	}
	err := s.session.Query(text).SetHostID(host).Consistency(gocql.One).RetryPolicy(nil).ExecContext(ctx)
	if err != nil {
		return err
	}
	return s.spread(ctx)
}

// spreadTime is how long nodes may take to tell each other of a table.
const spreadTime = time.Minute

// spread waits until all nodes that are up know the same table. (What the driver
// waits for, that they agree on the schemas of all keyspaces, may never come
// where others change theirs.)
func (s *Store) spread(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, spreadTime)
	defer cancel()
	for {
		ids, err := s.tableIDs(ctx)
		if err == nil && len(ids) == 1 && ids[0] != noID {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("they know it by the ids %v", ids)
			}
			return fmt.Errorf("the table %s is not the same on all nodes that are up: %w", s.tables, err)
		}
	}
}

const noID = "none"

// tableIDs are the ids by which the nodes that are up know the table.
func (s *Store) tableIDs(ctx context.Context) (ids []string, err error) {
	for _, h := range s.session.GetHosts() {
		if !h.IsUp() {
			continue
		}
		ask := func(text string, args ...any) *gocql.Query {
			return s.session.Query(text, args...).SetHostID(h.HostID()).Consistency(gocql.One).RetryPolicy(nil)
		}
		var id gocql.UUID
		text := noID
		err := ask(`select id from system_schema.tables where keyspace_name = ? and table_name = ?`, s.tables.keyspace, s.tables.prefix+"records").ScanContext(ctx, &id)
		switch {
		case errors.Is(err, gocql.ErrNotFound):
		case err != nil:
			return nil, err
		// The node may have the table on record, and not know it yet.
		case !refused(ask(s.text.floor, int8(floorSpace), floorName).ExecContext(ctx)):
			text = id.String()
		}
		if !slices.Contains(ids, text) {
			ids = append(ids, text)
		}
	}
	return ids, nil
}

// Verify compares the schema in the database with that of this program, column
// by column.
func Verify(ctx context.Context, session *gocql.Session, opts *Options) error {
	s, err := prepare(ctx, session, opts)
	if err == nil {
		err = s.verify(ctx)
	}
	if err != nil {
		return fmt.Errorf("cassandra: %w", err)
	}
	return nil
}

func (s *Store) verify(ctx context.Context) error {
	f, err := s.facts(ctx)
	if err != nil {
		return err
	}
	if f.strategy == "" {
		return s.noKeyspace(f)
	}
	if err := s.compare(f); err != nil {
		return err
	}
	_, err = s.floor(ctx)
	return err
}

// published are the columns of the table as facts sees them.
var published = map[string]string{
	"space":   "tinyint partition_key 0",
	"name":    "blob partition_key 1",
	"version": "bigint regular",
	"value":   "blob regular",
	"attempt": "blob regular",
	"follows": "bigint regular",
}

// compareIt is the cure where the table differs from what is published.
const compareIt = "compare it with: holdfast schema print"

// compare says what is not as published in the table.
func (s *Store) compare(f facts) error {
	if !f.table {
		return driver.NewSchemaError("create it with cassandra.Migrate or: holdfast schema apply", "the table %s is missing", s.tables)
	}
	var version int
	if _, err := fmt.Sscanf(f.comment, "holdfast %d", &version); err != nil {
		return fmt.Errorf("the table %s is not ours: its comment is %q, not %q", s.tables, f.comment, fmt.Sprintf("holdfast %d", schemaVersion))
	}
	switch {
	case version > schemaVersion:
		return driver.NewSchemaError("upgrade the program", "the table %s is version %d, newer than this program (%d)", s.tables, version, schemaVersion)
	case version < schemaVersion:
		return driver.NewSchemaError("its owner runs: holdfast schema apply", "the table %s is version %d, this program needs %d", s.tables, version, schemaVersion)
	}
	for _, name := range slices.Sorted(maps.Keys(published)) {
		switch is, ok := f.columns[name]; {
		case !ok:
			return driver.NewSchemaError(compareIt, "the table %s has no column %s", s.tables, name)
		case is != published[name]:
			return driver.NewSchemaError(compareIt, "the column %s of the table %s is not as published, but %s", name, s.tables, is)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.columns)) {
		if _, ok := published[name]; !ok {
			return driver.NewSchemaError(compareIt, "the table %s has a column %s that is not published", s.tables, name)
		}
	}
	if f.ttl != 0 {
		return fmt.Errorf("the table %s has default_time_to_live %d, so locks would vanish: alter table %s with default_time_to_live = 0",
			s.tables, f.ttl, s.tables.expand("{records}"))
	}
	return nil
}

// statementsOf takes a script apart.
func statementsOf(script string) (texts []string) {
	var b strings.Builder
	for line := range strings.Lines(script) {
		line, _, _ = strings.Cut(line, "--")
		b.WriteString(strings.TrimRight(line, "\n") + "\n")
	}
	for text := range strings.SplitSeq(b.String(), ";") {
		if text = strings.TrimSpace(text); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

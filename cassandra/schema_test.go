package cassandra

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
)

func TestSchemaText(t *testing.T) {
	text, err := Schema(nil)
	if err != nil || !strings.Contains(text, `create table if not exists "holdfast_records" (`) {
		t.Errorf("got %s, error %v", text, err)
	}
	text, err = Schema(&Options{Keyspace: "Shop", Prefix: "app_"})
	if err != nil || strings.Count(text, `"Shop"."app_records"`) != 2 || strings.Contains(text, "{") != strings.Contains(text, "{'class'") {
		t.Errorf("got %s, error %v", text, err)
	}
	if n := len(statementsOf(text)); n != 2 {
		t.Errorf("%d statements", n)
	}
	if _, err = Schema(&Options{Prefix: "a b"}); err == nil {
		t.Error("a prefix that is none is taken")
	}
}

// A table that is created after its columns were asked for is one with columns.
func TestMigrateWhileItIsCreated(t *testing.T) {
	t.Parallel()
	session, ks := keyspace(t)
	opts := &Options{Keyspace: ks, Prefix: "created_"}
	if err := Migrate(t.Context(), session, opts); err != nil {
		t.Fatal(err)
	}
	p, own := tapped(t, nil)
	var early atomic.Bool
	p.set(func(c *call) fate {
		if strings.HasPrefix(c.text, "select column_name") && early.CompareAndSwap(false, true) {
			c.values[1][0]++ // of another table, which is not there, as this one was not yet
		}
		return pass
	})
	if err := Migrate(t.Context(), own, opts); err != nil || !early.Load() {
		t.Errorf("error %v; its columns were asked for too early: %v", err, early.Load())
	}
}

// Migrate may be repeated and run by several at once: it makes one table, and its
// floor stays.
func TestMigrate(t *testing.T) {
	t.Parallel()
	_, ks := keyspace(t)
	opts := &Options{Keyspace: ks, Prefix: "migrated_"}
	var sessions []*gocql.Session
	for range 4 {
		sessions = append(sessions, connect(t, config(t, cluster(t))))
	}
	errs := make([]error, len(sessions))
	var wg sync.WaitGroup
	for i, s := range sessions {
		wg.Go(func() { errs[i] = Migrate(t.Context(), s, opts) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	s := sessions[0]
	ids := make(map[string]bool)
	for _, h := range s.GetHosts() {
		var id gocql.UUID
		if err := s.Query(`select id from system_schema.tables where keyspace_name = ? and table_name = 'migrated_records'`, ks).SetHostID(h.HostID()).Consistency(gocql.One).Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids[id.String()] = true
	}
	if len(ids) != 1 {
		t.Errorf("the nodes have tables %v, want one", ids)
	}
	store := open(t, s, opts)
	if err := store.raise(t.Context(), 4711); err != nil {
		t.Fatal(err)
	}
	out, err := store.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "a"}, Old: driver.IfEmpty, Value: []byte("1")}})
	if err != nil || !out[0].Won {
		t.Fatalf("%+v, error %v", out, err)
	}
	if err := Migrate(t.Context(), s, opts); err != nil {
		t.Error(err)
	}
	if err := Verify(t.Context(), s, opts); err != nil {
		t.Error(err)
	}
	if v, err := store.floor(t.Context()); err != nil || v != 4711 {
		t.Errorf("the floor is %d, error %v", v, err)
	}
	if recs, err := store.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh); err != nil || string(recs[0].Value) != "1" {
		t.Errorf("%+v, error %v", recs, err)
	}
}

// The session's own keyspace is taken if none is named.
func TestKeyspaceOfSession(t *testing.T) {
	t.Parallel()
	opts := table(t)
	c := config(t, cluster(t))
	c.Keyspace = opts.Keyspace
	s := open(t, connect(t, c), &Options{Prefix: opts.Prefix})
	if s.opts.Keyspace != opts.Keyspace {
		t.Errorf("got %q, want %q", s.opts.Keyspace, opts.Keyspace)
	}
}

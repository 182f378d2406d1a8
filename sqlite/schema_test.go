package sqlite

import (
	"database/sql"
	"maps"
	"os"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// What is published is what runs.
func TestSchema(t *testing.T) {
	published, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if Schema() != string(published) {
		t.Error("Schema() differs from schema.sql")
	}
	want, err := publishedObjects()
	if err != nil {
		t.Fatal(err)
	}
	s := fresh(t)
	for range 2 { // also after a repetition
		err = s.names.Use(t.Context(), func(c *conn) error {
			got, err := c.objects()
			if err == nil && !maps.Equal(got, want) {
				t.Errorf("the file has %q, published is %q", got, want)
			}
			if err == nil {
				err = c.script(Schema())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := Verify(t.Context(), s.path); err != nil {
		t.Error(err)
	}
	db := application(t, s)
	if _, err := db.Exec(`drop trigger holdfast_fence_insert`); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), s.path); err == nil {
		t.Error("Verify did not miss the trigger")
	}
	if err := Migrate(t.Context(), s.path); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), s.path); err != nil {
		t.Errorf("after Migrate: %v", err)
	}
}

// A person reads the locks with any SQLite shell.
func TestLocksView(t *testing.T) {
	s := fresh(t)
	db := application(t, s)
	version := hold(t, s, "deploy", `{"holders":[{"session":"8f3a","nr":1,"slots":1,"n":8,"ttl":15000,"since":1795226403001234,"reason":"release 42"}],
		"waiters":[{"session":"51bd","nr":3,"slots":0,"ttl":15000,"since":1795226404001234}]}`)
	hold(t, s, "not json", "\xff\x00{")
	hold(t, s, "not a lock", `[1,2]`)
	hold(t, s, "no claims", `{"holders":[7,null]}`)
	_, err := s.CompareAndSwap(t.Context(), []driver.Write{
		{Key: driver.Key{Space: driver.Sessions, Name: "8f3a"}, Old: driver.IfEmpty, Value: []byte(`{"owner":{"host":"runner7","pid":52310,"user":"ci","program":"run"},"beat":7,"suspected":{"by":"ana@db1"}}`)},
		{Key: driver.Key{Space: driver.Sessions, Name: "51bd"}, Old: driver.IfEmpty, Value: []byte("rubbish")},
	})
	if err != nil {
		t.Fatal(err)
	}
	type line struct {
		Name, Mode, State         string
		Position                  int
		Token, Last               sql.NullInt64
		Session                   string
		Host, User, Reason, Since sql.NullString
		PID                       sql.NullInt64
		TTL                       float64
		By                        sql.NullString
	}
	str := func(s string) sql.NullString { return sql.NullString{String: s, Valid: true} }
	num := func(n int64) sql.NullInt64 { return sql.NullInt64{Int64: n, Valid: true} }
	want := []line{
		{"deploy", "exclusive", "held", 1, num(version), num(version + 7), "8f3a", str("runner7"), str("ci"), str("release 42"), str("2026-11-21T02:00:03Z"), num(52310), 15, str("ana@db1")},
		{"deploy", "shared", "waiting", 1, sql.NullInt64{}, sql.NullInt64{}, "51bd", sql.NullString{}, sql.NullString{}, sql.NullString{}, str("2026-11-21T02:00:04Z"), sql.NullInt64{}, 15, sql.NullString{}},
	}
	rows, err := db.Query(`select name, mode, state, position, token, last_token, session, host, user, reason, since, pid, ttl, suspected_by from holdfast_locks order by name, state, position`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var l line
		if err := rows.Scan(&l.Name, &l.Mode, &l.State, &l.Position, &l.Token, &l.Last, &l.Session, &l.Host, &l.User, &l.Reason, &l.Since, &l.PID, &l.TTL, &l.By); err != nil {
			t.Fatal(err)
		}
		if n >= len(want) || l != want[n] {
			t.Errorf("row %d is %+v, want one of %+v", n, l, want)
		}
	}
	if rows.Err() != nil || n != len(want) {
		t.Errorf("%d rows, error %v, want %d", n, rows.Err(), len(want))
	}
}

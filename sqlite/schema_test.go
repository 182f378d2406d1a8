package sqlite

import (
	"database/sql"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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
	version := hold(t, s, "deploy", `{"holders":[{"session":"8f3a","nr":1,"slots":1,"n":8,"ttl":15000,"since":1795226403001234,"granted":1795226408001234,"reason":"release 42","labels":{"build":"7"}}],
		"waiters":[{"session":"51bd","nr":3,"slots":0,"ttl":15000,"since":9795226404001234,"retries":4,"labels":{"build":"8"}}]}`)
	hold(t, s, "older", `{"next":9000000000000000,"holders":[{"session":"51bd","nr":1,"slots":1,"token":1795226409501234,"ttl":1500,"since":1795226408001234}]}`)
	hold(t, s, "not json", "\xff\x00{")
	hold(t, s, "not a lock", `[1,2]`)
	hold(t, s, "no claims", `{"holders":[7,null]}`)
	out, err := s.CompareAndSwap(t.Context(), []driver.Write{
		{Key: driver.Key{Space: driver.Sessions, Name: "8f3a"}, Old: driver.IfEmpty, Value: []byte(`{"owner":{"name":"web-7","host":"runner7","pid":52310,"user":"ci","program":"run","address":"10.0.0.7","device":"pts/3"},"beat":7,"suspected":{"by":"ana@db1"},"labels":{"1":{"build":"7","step":"2"}}}`)},
		{Key: driver.Key{Space: driver.Sessions, Name: "51bd"}, Old: driver.IfEmpty, Value: []byte("rubbish")},
	})
	if err != nil {
		t.Fatal(err)
	}
	type line struct {
		Name, Mode, State            string
		Position                     int
		Token, Last                  sql.NullInt64
		Holder, Session              string
		Host, User, Reason           sql.NullString
		Requested, Granted           sql.NullString
		PID                          sql.NullInt64
		Waited, TTL                  float64
		Retries                      int64
		By, Since, Owner, At, Device sql.NullString
		Labels                       sql.NullString
	}
	str := func(s string) sql.NullString { return sql.NullString{String: s, Valid: true} }
	since := str(time.UnixMicro(out[0].Record.Version + 500).UTC().Format("2006-01-02T15:04:05.000Z"))
	none := sql.NullString{}
	num := func(n int64) sql.NullInt64 { return sql.NullInt64{Int64: n, Valid: true} }
	want := []line{
		{"deploy", "exclusive", "held", 1, num(version), num(version + 7), "web-7 (ci@runner7, pid 52310)", "8f3a", str("runner7"), str("ci"), str("release 42"),
			str("2026-11-21T02:00:03.001Z"), str("2026-11-21T02:00:08.001Z"), num(52310), 5, 15, 0, str("ana@db1"), since, str("web-7"), str("10.0.0.7"), str("pts/3"), str(`{"build":"7","step":"2"}`)},
		{"deploy", "shared", "waiting", 1, sql.NullInt64{}, sql.NullInt64{}, "session 51bd", "51bd", none, none, none,
			str("2280-05-25T16:13:24.001Z"), none, sql.NullInt64{}, 0, 15, 4, none, none, none, none, none, str(`{"build":"8"}`)},
		{"older", "exclusive", "held", 1, num(1795226409501234), num(1795226409501234), "session 51bd", "51bd", none, none, none,
			str("2026-11-21T02:00:08.001Z"), str("2026-11-21T02:00:09.501Z"), sql.NullInt64{}, 1.5, 1.5, 0, none, none, none, none, none, none},
	}
	rows, err := db.Query(`select name, mode, state, position, token, last_token, holder, session, host, user, reason, requested, granted, pid, round(waited, 3), ttl, retries, suspected_by, suspected_since, owner, address, device, labels from holdfast_locks order by name, state, position`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var l line
		if err := rows.Scan(&l.Name, &l.Mode, &l.State, &l.Position, &l.Token, &l.Last, &l.Holder, &l.Session, &l.Host, &l.User, &l.Reason, &l.Requested, &l.Granted, &l.PID, &l.Waited, &l.TTL, &l.Retries, &l.By, &l.Since, &l.Owner, &l.At, &l.Device, &l.Labels); err != nil {
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

// A person reads what was with any SQLite shell.
func TestHistoryView(t *testing.T) {
	s := fresh(t)
	db := application(t, s)
	for name, value := range map[string]string{
		"deploy": `{"holds":[{"token":7,"owner":{"name":"web-7","host":"runner7","pid":52310,"user":"ci","program":"run"},"from":1795226403001234,"to":1795226408501234,"waited":2500000,"end":"broken","by":{"user":"ana","host":"db1"},"reason":"release 42","why":"ticket 815"},
			{"token":6,"owner":{"host":"runner8"},"to":1795226402001234,"end":"taken over","by":{"host":"db1"}},7,null],"at":1795226408501234}`,
		"not json": "\xff\x00{", "a list": `[1,2]`, "no list": `{"holds":7}`,
	} {
		out, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Histories.Key(name), Old: driver.IfEmpty, Value: []byte(value)}})
		if err != nil || !out[0].Won {
			t.Fatal(out, err)
		}
	}
	rows, err := db.Query(`select concat_ws('|', name, token, holder, host, pid, user, program, owner, reason, granted, ended, held, waited, how, ended_by, why) from holdfast_history order by token desc`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		got = append(got, line)
	}
	want := []string{
		"deploy|7|web-7 (ci@runner7, pid 52310)|runner7|52310|ci|run|web-7|release 42|2026-11-21T02:00:03.001Z|2026-11-21T02:00:08.501Z|5.5|2.5|broken|ana@db1|ticket 815",
		"deploy|6|runner8|runner8|2026-11-21T02:00:02.001Z|0.0|taken over|db1",
	}
	if rows.Err() != nil || !slices.Equal(got, want) {
		t.Errorf("%q, error %v, want %q", got, rows.Err(), want)
	}
}

// A view as it was before a lock had a time of its grant becomes that of today, in place and with
// locks held; who reads the view meanwhile is not disturbed.
func TestOlderView(t *testing.T) {
	s := fresh(t)
	db := application(t, s)
	hold(t, s, "deploy", `{"holders":[{"session":"8f3a","nr":1,"slots":1,"ttl":15000,"since":1795226403001234}]}`)
	if _, err := db.Exec(`drop view holdfast_locks; create view holdfast_locks as
		select cast(name as text) as name, 'exclusive' as mode, 'held' as state, version as token, version as last_token, '' as since from holdfast_records where space = 0`); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), s.path); err == nil || !strings.Contains(err.Error(), "holdfast_locks") {
		t.Errorf("Verify says of the older view: %v", err)
	}
	query, err := db.Prepare(`select count(*) from holdfast_locks`)
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	for range 2 {
		if err := Migrate(t.Context(), s.path); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := query.QueryRow().Scan(&n); err != nil || n != 1 {
			t.Errorf("%d rows, error %v", n, err)
		}
	}
	if err := Verify(t.Context(), s.path); err != nil {
		t.Error(err)
	}
	var granted string
	if err := db.QueryRow(`select granted from holdfast_locks`).Scan(&granted); err != nil || granted == "" {
		t.Errorf("granted %q, error %v", granted, err)
	}
}

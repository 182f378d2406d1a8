package postgres

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/jackc/pgx/v5"
)

// A DBA reads the locks with psql, whatever is in the records.
func TestView(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	session := func(id, value string) int64 {
		return put(t, r, driver.Key{Space: driver.Sessions, Name: id}, value)
	}
	version := hold(t, r, "deploy", `{"holders":[{"session":"8f3ac1d2e4","nr":1,"slots":1,"n":8,"ttl":15000,"since":1795226403001234,"granted":1795226408001234,"reason":"release 42\u0000","labels":{"build":"7"}}],
		"waiters":[{"session":"51bd","nr":3,"slots":0,"ttl":1500,"since":1795226404001234,"granted":5,"retries":4,"labels":{"build":"8\u202e"}},{"session":"none","nr":4,"slots":3,"ttl":15000,"since":9795226404001234}]}`)
	hold(t, r, "given", `{"next":200,"holders":[{"session":"8f3ac1d2e4","nr":2,"slots":4,"token":1795226403001234,"ttl":15000,"since":1795226401501234}]}`)
	hold(t, r, "next", `{"next":9000000000000000,"holders":[{"session":"8f3ac1d2e4","nr":2,"slots":0,"off":3}]}`)
	hold(t, r, "not json", "\xff\x00{")
	hold(t, r, "not a lock", `[1,2]`)
	hold(t, r, "no claims", `{"holders":[7,null,"x",[]],"waiters":{"a":1}}`)
	hold(t, r, "strange claims", `{"holders":[{"session":{"a":1},"nr":"x","slots":1.5,"ttl":1e400,"token":99999999999999999999,"since":"then","granted":-999999999999999999,"n":null,"labels":7}]}`)
	hold(t, r, "\xff\xfe", `{"holders":[{"session":"dead","nr":1,"slots":1,"token":1,"since":-999999999999999999}]}`)
	suspected := session("8f3ac1d2e4", `{"owner":{"host":"runner7","pid":52310,"user":"ci","program":"run","name":"web-7","address":"10.0.0.7","device":"pts/3"},"beat":7,"suspected":{"by":"ana@db1","age":2000000},"labels":{"1":{"build":"7","step":"2"}}}`)
	session("51bd", "rubbish")
	beat := session("dead", `{"dead":17,"owner":{"host":"db1"}}`)
	put(t, r, driver.Key{Space: driver.Audits, Name: "deploy"}, `{"holders":[{"session":"a"}]}`)

	// As a big table would be read.
	exec(t, r.pool, `alter table holdfast_records set (parallel_workers = 2)`)
	exec(t, r.pool, `do $$ begin
		execute format('alter database %I set parallel_setup_cost = 0', current_database());
		execute format('alter database %I set parallel_tuple_cost = 0', current_database());
		execute format('alter database %I set min_parallel_table_scan_size = 0', current_database());
		execute format('alter database %I set enable_indexscan = off', current_database());
		execute format('alter database %I set enable_bitmapscan = off', current_database());
	end $$`)
	r.pool.Reset()
	rows, err := r.pool.Query(ctx, `select * from holdfast_locks order by name, state, position`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil {
		t.Fatal(err)
	}
	µs := func(n int64) time.Time { return time.UnixMicro(n) }
	want := []map[string]any{
		{"name": `\377\376`, "mode": "exclusive", "state": "held", "token": int64(1), "holder": "db1", "dead": true, "last_beat": µs(beat), "granted": µs(1)},
		{"name": "deploy", "mode": "exclusive", "state": "held", "position": int64(1), "holder": "web-7 (ci@runner7, pid 52310)", "host": "runner7", "pid": int64(52310),
			"user": "ci", "program": "run", "session": "8f3ac1d2e4", "nr": int64(1), "reason": "release 42?", "token": version, "last_token": version + 7,
			"requested": µs(1795226403001234), "granted": µs(1795226408001234), "waited": 5.0, "retries": int64(0), "ttl": 15.0,
			"owner": "web-7", "address": "10.0.0.7", "device": "pts/3", "labels": `{"step": "2", "build": "7"}`,
			"last_beat": µs(suspected - 2000000), "suspected_by": "ana@db1", "suspected_since": µs(suspected), "dead": false},
		{"name": "deploy", "mode": "shared", "state": "waiting", "position": int64(1), "holder": "session 51bd", "host": nil, "token": nil, "granted": nil, "owner": nil, "labels": `{"build": "8?"}`,
			"retries": int64(4), "ttl": 1.5, "suspected_since": nil, "dead": false},
		{"name": "deploy", "mode": "slots 3", "state": "waiting", "position": int64(2), "waited": 0.0, "holder": "session none"},
		{"name": "given", "mode": "slots 4", "state": "held", "token": int64(1795226403001234), "last_token": int64(1795226403001234), "granted": µs(1795226403001234), "waited": 1.5},
		{"name": "next", "mode": "shared", "token": int64(9000000000000003)},
		{"name": "strange claims", "mode": "shared", "nr": nil, "ttl": nil, "requested": nil, "holder": `session {"a": 1}`},
	}
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d: %v", len(got), len(want), got)
	}
	for i, w := range want {
		for column, value := range w {
			is := got[i][column]
			if at, ok := is.(time.Time); ok {
				if wanted, ok := value.(time.Time); ok && wanted.Sub(at).Abs() <= 2*time.Microsecond {
					continue
				}
			}
			if is != value {
				t.Errorf("row %d (%v): %s is %v (%T), want %v", i, w["name"], column, is, is, value)
			}
		}
	}
	if waited := got[2]["waited"].(float64); waited < 1 {
		t.Errorf("it has waited for %v seconds so far", waited)
	}
}

// The view shows what the command's list shows, of real clients.
func TestViewOfClients(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	c, err := holdfast.New(r, &holdfast.Options{RuntimeDir: "/dev/null", Owner: holdfast.Owner{Host: "db1", PID: 7, User: "ana", Program: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Acquire(ctx, "a", holdfast.Reason("because"), holdfast.Slots(2))
	if err != nil {
		t.Fatal(err)
	}
	info, err := c.Show(ctx, "a")
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("%+v, error %v", info, err)
	}
	h := info.Holders[0]
	var got string
	if err := r.pool.QueryRow(ctx, `select concat_ws('|', holder, mode, token, reason, session, round(ttl)) from holdfast_locks`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{h.Owner.String(), h.Mode(), fmt.Sprint(l.Token()), "because", h.Owner.Session, fmt.Sprint(h.TTL.Seconds())}, "|")
	if got != want {
		t.Errorf("the view shows %s, list %s", got, want)
	}
	var requested, granted time.Time
	if err := r.pool.QueryRow(ctx, `select requested, granted from holdfast_locks where granted between now() - '1 minute'::interval and clock_timestamp()`).Scan(&requested, &granted); err != nil || !requested.Equal(h.Requested) || !granted.Equal(h.Granted) {
		t.Errorf("requested at %v, granted at %v, error %v, want %v and %v", requested, granted, err, h.Requested, h.Granted)
	}
}

// What strangers have written into a record does nothing to a terminal: no character
// that controls it, turns the direction of text or is invisible is shown as it is.
func TestViewEscapes(t *testing.T) {
	r := fresh(t, nil)
	odd := []rune{1, '\t', '\n', '\r', 0x1b, 0x1f, 0x7f, 0x80, 0x9b, 0x9f, 0xad, 0x61c, 0x180e, 0x200b, 0x200c, 0x200d, 0x200e, 0x200f,
		0x2028, 0x2029, 0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2060, 0x2064, 0x2066, 0x2067, 0x2068, 0x2069, 0x206f, 0xfeff, 0xfff9}
	want := ""
	for _, o := range odd {
		want += fmt.Sprintf(`\u%04x`, o)
	}
	text := string(odd)
	const plain = `C:\dir ünï 日本 "quoted" 😀`
	quoted := func(s string) string {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	session := put(t, r, driver.Key{Space: driver.Sessions, Name: text}, fmt.Sprintf(
		`{"owner":{"host":%[1]s,"pid":7,"user":%[1]s,"program":%[1]s},"suspected":{"by":%[1]s,"age":1}}`, quoted(text+plain)))
	hold(t, r, text+plain, fmt.Sprintf(`{"holders":[{"session":%s,"nr":1,"slots":1,"reason":%s}]}`, quoted(text), quoted(text+plain)))
	hold(t, r, "bytes\x1b\x9b", `{"holders":[{"session":"none","nr":1,"slots":1,"reason":"\u202e\u001b\\u202e"}]}`)
	var got [9]string
	if err := r.pool.QueryRow(t.Context(), `select name, holder, host, "user", program, session, reason, suspected_by, (last_beat is not null)::text from holdfast_locks where pid = 7`).Scan(
		&got[0], &got[1], &got[2], &got[3], &got[4], &got[5], &got[6], &got[7], &got[8]); err != nil {
		t.Fatal(err)
	}
	w := want + plain
	for i, want := range []string{w, w + "@" + w + " (pid 7)", w, w, w, want, w, w, "true"} {
		if got[i] != want {
			t.Errorf("column %d shows %q, want %q (session %d)", i, got[i], want, session)
		}
	}
	if err := r.pool.QueryRow(t.Context(), `select name, holder, reason from holdfast_locks where pid is null`).Scan(&got[0], &got[1], &got[2]); err != nil {
		t.Fatal(err)
	}
	if got[0] != `bytes\u001b\233` || got[1] != "session none" || got[2] != `\u202e\u001b\u202e` {
		t.Errorf("it shows %q", got[:3])
	}
}

// One who has only a client of PostgreSQL reads what was.
func TestHistoryView(t *testing.T) {
	r := fresh(t, nil)
	k := func(name string) driver.Key { return driver.Histories.Key(name) }
	put(t, r, k("deploy"), `{"holds":[{"token":7,"owner":{"name":"web-7","host":"runner7","pid":52310,"user":"ci","program":"run"},"from":1795226403001234,"to":1795226408501234,"waited":2500000,"end":"broken","by":{"user":"ana","host":"db1"},"reason":"release\u202e 42","why":"ticket 815"},
		{"token":6,"owner":{"host":"runner8"},"to":1795226402001234,"end":"taken over","by":{"host":"db1"}},7,null]}`)
	put(t, r, k("a list"), `[1,2]`)
	put(t, r, k("no list"), `{"holds":7}`)
	put(t, r, k("not json"), "\xff\x00{")
	rows, err := r.pool.Query(t.Context(), `select concat_ws('|', name, token, holder, host, pid, "user", program, owner, reason,
		extract(epoch from granted)::bigint, extract(epoch from ended)::bigint, held, waited, how, ended_by, why) from holdfast_history order by token desc`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{
		`deploy|7|web-7 (ci@runner7, pid 52310)|runner7|52310|ci|run|web-7|release\u202e 42|1795226403|1795226409|5.5|2.5|broken|ana@db1|ticket 815`,
		"deploy|6|runner8|runner8|1795226402|0|taken over|db1",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, error %v, want %q", got, err, want)
	}
}

package mysql

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// The character set of the database, which may be the application's, does not matter
// to the view and the fence.
func TestDatabaseCharacterSet(t *testing.T) {
	for _, collation := range []string{"utf8mb4_unicode_ci", "utf8mb4_bin", "latin1_german1_ci", "utf8mb3_general_ci", "ucs2_general_ci", "utf32_bin", "gbk_chinese_ci", "binary"} {
		target := servers.MySQL(t, nil).Database(t)
		admin := connect(t, target, way{})
		charset, _, _ := strings.Cut(collation, "_")
		if _, err := admin.Exec(`alter database character set ` + charset + ` collate ` + collation); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{"migrate", `create table orders (id integer primary key auto_increment, paid text)`} {
			var err error
			if q == "migrate" {
				err = Migrate(t.Context(), admin, nil)
			} else {
				_, err = admin.Exec(q)
			}
			if err != nil {
				t.Fatalf("%s: %v", collation, err)
			}
		}
		if err := Verify(t.Context(), admin, nil); err != nil {
			t.Errorf("%s: %v", collation, err)
		}
		c, err := holdfast.New(open(t, target, way{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.Acquire(t.Context(), "größe")
		if err != nil {
			t.Fatal(err)
		}
		if err := pay(t.Context(), t, target, l); err != nil {
			t.Errorf("%s: %v", collation, err)
		}
		for _, query := range []string{`call holdfast_fence('größe', ?)`, `select name from holdfast_locks where token = ? and name = 'größe'`} {
			tx := begin(t, admin)
			if _, err := tx.Exec(query, l.Token()); err != nil {
				t.Errorf("%s: %s: %v", collation, query, err)
			}
			tx.Rollback()
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What strangers write is shown so that a terminal neither obeys nor hides it.
func TestViewEscapes(t *testing.T) {
	h := fresh(t, way{})
	db := connect(t, h.url, way{})
	for _, test := range []struct{ text, want string }{
		{"plain, größe.x 世界 \U0001f600 {} \\1 $1", "plain, größe.x 世界 \U0001f600 {} \\1 $1"},
		{"a\x00b\tc\nd\x1be\x7ff", `a\u0000b\u0009c\u000ad\u001be\u007ff`},
		{"\u0080\u009b31m\u009f\u00ad", `\u0080\u009b31m\u009f\u00ad`},
		{"\u200b\u200f\u2028\u202e\u2060\u2066\u2069\ufeff\u061c\u180e", `\u200b\u200f\u2028\u202e\u2060\u2066\u2069\ufeff\u061c\u180e`},
		{"tags \U000e0001\U000e0041\U000e007f", `tags \U000e0001\U000e0041\U000e007f`},
	} {
		quoted, err := json.Marshal(test.text)
		if err != nil {
			t.Fatal(err)
		}
		name := "n" + test.text
		version := hold(t, h, name, fmt.Sprintf(`{"holders":[{"session":%s,"nr":1,"slots":1,"reason":%s}]}`, quoted, quoted))
		k := driver.Key{Space: driver.Sessions, Name: test.text}
		value := fmt.Sprintf(`{"owner":{"host":%[1]s,"user":%[1]s,"program":%[1]s,"pid":7},"suspected":{"by":%[1]s,"age":5}}`, quoted)
		if out, err := h.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte(value)}}); err != nil || !out[0].Won && string(out[0].Record.Value) != value {
			t.Fatalf("%+v, error %v", out, err)
		}
		var got [8]string
		err = db.QueryRow("select name, reason, session, host, `user`, program, suspected_by, holder from holdfast_locks where token = ?", version).
			Scan(&got[0], &got[1], &got[2], &got[3], &got[4], &got[5], &got[6], &got[7])
		if err != nil {
			t.Fatalf("%q: %v", test.text, err)
		}
		if w := test.want; got != [8]string{"n" + w, w, w, w, w, w, w, w + "@" + w + " (pid 7)"} {
			t.Errorf("got %q, want all %q", got, w)
		}
	}
}

// One who has only a client of MySQL reads what was.
func TestHistoryView(t *testing.T) {
	h := fresh(t, way{})
	db := connect(t, h.url, way{})
	for name, value := range map[string]string{
		"deploy": `{"holds":[{"token":7,"owner":{"name":"web-7","host":"runner7","pid":52310,"user":"ci","program":"run"},"from":1795226403001234,"to":1795226408501234,"waited":2500000,"end":"broken","by":{"user":"ana","host":"db1"},"reason":"release\u202e 42","why":"ticket 815"},
			{"token":6,"owner":{"host":"runner8"},"to":1795226402001234,"end":"taken over","by":{"host":"db1"}},7,null]}`,
		"a list": `[1,2]`, "no list": `{"holds":7}`, "not json": "\xff\x00{",
	} {
		out, err := h.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Histories.Key(name), Old: driver.IfEmpty, Value: []byte(value)}})
		if err != nil || !out[0].Won {
			t.Fatalf("%+v, error %v", out, err)
		}
	}
	rows, err := db.Query("select concat_ws('|', name, token, holder, host, pid, `user`, program, owner, reason, " +
		"round(unix_timestamp(granted), 1), round(unix_timestamp(ended), 1), round(held, 1), round(waited, 1), how, ended_by, why) from holdfast_history order by token desc")
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
		`deploy|7|web-7 (ci@runner7, pid 52310)|runner7|52310|ci|run|web-7|release\u202e 42|1795226403.0|1795226408.5|5.5|2.5|broken|ana@db1|ticket 815`,
		"deploy|6|runner8|runner8|1795226402.0|0.0|taken over|db1",
	}
	if rows.Err() != nil || !slices.Equal(got, want) {
		t.Errorf("%q, error %v, want %q", got, rows.Err(), want)
	}
}

package spanner

import (
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// The prefix of the table comes from a configuration. What is taken is a name to
// Spanner, and the statement that is made with it has it nowhere but in quotes.
func FuzzTable(f *testing.F) {
	f.Add("hf_", byte(0), "a")
	f.Fuzz(func(t *testing.T, prefix string, space byte, name string) {
		table, err := (&Options{Prefix: prefix}).table()
		if err == nil {
			want := prefix + "records"
			if prefix == "" {
				want = "holdfast_records"
			}
			if table != want || len(table) > 128 || strings.Trim(table, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				t.Fatalf("the prefix %q makes the table %q", prefix, table)
			}
			text, err := Schema(&Options{Prefix: prefix})
			if err != nil || strings.Count(text, "`"+table+"`") == 0 || strings.Count(text, "`")%2 != 0 || strings.Contains(text, "{") {
				t.Fatalf("the prefix %q makes %s, %v", prefix, text, err)
			}
		}
		k := driver.Key{Space: driver.Space(space), Name: name}
		if k.Check() != nil {
			return
		}
		row := rowKey(k)
		if n := row[0].(int64); n < 0 || n >= shards || row[1].(int64) != int64(space) || string(row[2].([]byte)) != name {
			t.Fatalf("%v has the row %v", k, row)
		}
	})
}

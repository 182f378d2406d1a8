package postgres

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5/pgtype"
)

// Anybody who may connect may send a notification. What is no notification of ours means that
// anything may have changed, and never a key that is none; what we send is understood.
func FuzzPayload(f *testing.F) {
	f.Add("0061 2a", byte(0), "a", "*")
	f.Fuzz(func(t *testing.T, payload string, space byte, name, wake string) {
		h, ok := notificationOf(payload)
		switch {
		case !ok && h != (driver.Notification{}):
			t.Fatalf("%q is no notification, and %+v", payload, h)
		case h != (driver.Notification{}) && (h.Key.Check() != nil || h.To == ""):
			t.Fatalf("%q is the notification %+v", payload, h)
		}
		k := driver.Key{Space: driver.Space(space), Name: name}
		if k.Check() != nil || wake == "" || len(wake) > 64 {
			return
		}
		sent := payloadOf(k, wake)
		if got, ok := notificationOf(sent); !ok || got != (driver.Notification{Key: k, To: wake}) {
			t.Fatalf("%+v for %q is sent as %q and read as %+v, %v", k, wake, sent, got, ok)
		}
		if len(sent) >= 8000 {
			t.Fatalf("%d bytes of a notification", len(sent))
		}
	})
}

func payloadOf(k driver.Key, wake string) string {
	return payload(sqlstore.Write{ID: sqlstore.ID(k), Notify: wake})
}

// Channels are names to the server, whatever the tables are called and whoever is
// meant, and no two who are meant have one by chance.
func FuzzChannel(f *testing.F) {
	f.Add("locks", "holdfast_", "8f3ac1d2", "*")
	f.Fuzz(func(t *testing.T, schema, prefix, a, b string) {
		if _, err := sqlstore.NewTables(schema, prefix); err != nil {
			return
		}
		c := channelOf(schema, prefix)
		for _, name := range []string{c.all(), c.of(a)} {
			if len(name) > 63 || name == "" || !utf8.ValidString(name) || strings.Contains(name, "\x00") {
				t.Fatalf("%q is a channel", name)
			}
		}
		if a != b && c.of(a) == c.of(b) {
			t.Fatalf("%q and %q have the channel %q", a, b, c.of(a))
		}
	})
}

// Bytes are read from each of the forms that PostgreSQL sends them in.
func FuzzBytea(f *testing.F) {
	f.Add([]byte("a\\b\x00\xff\\x7"))
	f.Fuzz(func(t *testing.T, value []byte) {
		escaped := ""
		for _, c := range value {
			switch {
			case c == '\\':
				escaped += `\\`
			case c < ' ' || c > '~':
				escaped += fmt.Sprintf(`\%03o`, c)
			default:
				escaped += string(rune(c))
			}
		}
		for _, text := range []string{fmt.Sprintf(`\x%x`, value), escaped} {
			var got bytea
			if err := got.ScanText(pgtype.Text{String: text, Valid: true}); err != nil || string(got) != string(value) {
				t.Fatalf("%q is read as %q, error %v, want %q", text, got, err, value)
			}
		}
		var got bytea
		got.ScanText(pgtype.Text{String: string(value), Valid: true}) // whatever it is
		if err := got.ScanText(pgtype.Text{}); err != nil || got != nil {
			t.Fatalf("null is read as %q, error %v", got, err)
		}
	})
}

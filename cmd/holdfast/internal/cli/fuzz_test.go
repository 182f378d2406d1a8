package cli

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/etcd"
)

// schemes are those of FuzzStore, by number.
var schemes = []string{"postgres", "mysql", "cassandra", "etcd", "oracle", "sqlite", "dir", "memory", "postgresql", "oracle"}

// Whatever is written as a store, and however odd its password: what is understood has
// that password and no other, and nothing that is said of it shows it.
func FuzzStore(f *testing.F) {
	for _, name := range []string{"PGHOST", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGPASSFILE", "PGSERVICEFILE", "MYSQL_PWD", "CASSANDRA_USER", "CASSANDRA_PASSWORD",
		"CASSANDRA_PASSWORD_FILE", "ETCD_USER", "ETCD_PASSWORD", "ETCD_PASSWORD_FILE"} {
		f.Setenv(name, "")
	}
	k, p := Kinds, Others
	f.Cleanup(func() { Kinds, Others = k, p })
	Kinds, Others = append(slices.Clone(Kinds), etcd.Kind), nil
	f.Add(byte(0), "app", "hunter2", "db:5432/shop", "sslmode=disable")
	f.Fuzz(func(t *testing.T, scheme byte, user, password, place, query string) {
		name := schemes[int(scheme)%len(schemes)]
		raw := name + "://" + user + ":" + password + "@" + place + "?" + query
		whole, err := ParseStore(raw)
		said := "" // of it, as it was written
		if err != nil {
			said = err.Error()
		} else {
			said = whole.String()
		}
		if strings.ContainsAny(said, "\n\x1b\x00") {
			t.Fatalf("%q: more than a line is said: %q", raw, said)
		}

		// As it has to be written, so that it is plain what the password is.
		secret := "Zq7-" + password + "-7qZ"
		in := name + "://" + escaped(strings.ReplaceAll(user, "Zq7", "")) + ":" + escaped(secret) + "@" + place + "?" + query
		target, err := ParseStore(in)
		var told []string
		if err != nil {
			told = append(told, err.Error())
		} else {
			told = append(told, target.String(), target.Redact("dial "+in+": refused"), target.Redact("they know "+secret), driver.Redact(in))
			if target.Kind.Server {
				if got, _ := url.PathUnescape(target.Password); got != secret {
					t.Fatalf("%q: the password is %q, not %q", in, got, secret)
				}
			}
			if target.Kind.Schema != nil {
				_, err := target.Kind.Schema(target.Location)
				told = append(told, texts(err))
			}
		}
		for _, text := range told {
			if strings.Contains(text, "Zq7") && !strings.Contains(place+query, "Zq7") && target.Location != nil && target.Kind.Server {
				t.Fatalf("%q: the password is shown: %s", in, text)
			}
		}
	})
}

// escaped is a password as a URL has it.
func escaped(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

func texts(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A driver's message may have connection strings in it, of whatever form: after
// redaction it has no password.
func FuzzRedact(f *testing.F) {
	f.Add(byte(0), "dial ", "app", "hunter2", ": refused")
	f.Fuzz(func(t *testing.T, form byte, before, user, middle, after string) {
		if strings.ContainsFunc(middle, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("&'\\", r) }) {
			return // written as %20 and so on
		}
		if strings.ContainsAny(user, ":@/? \t\n\r\v\f") || strings.ContainsFunc(user, func(r rune) bool { return r > '~' }) || user == "" {
			return
		}
		secret := "Zq7" + middle + "7qZ"
		before, user, after = strings.ReplaceAll(before, "Zq7", ""), strings.ReplaceAll(user, "Zq7", "u"), strings.ReplaceAll(after, "Zq7", "")
		var text string
		switch form % 5 {
		case 0:
			text = "postgres://" + user + ":" + secret + "@db/shop"
		case 1:
			text = user + ":" + secret + "@tcp(db:3306)/shop"
		case 2:
			text = "host=db password=" + secret + " user=x"
		case 3:
			text = "postgres://db/shop?sslpassword=" + secret + "&x=y"
		case 4:
			text = "host=db password='" + secret + " and more' user=x"
		}
		if got := driver.Redact(before + text + after); strings.Contains(got, "Zq7") {
			t.Fatalf("%q is told as %q", before+text+after, got)
		}
	})
}

// A span is what it says, and never less than nothing; what is shown of one is short,
// and of a whole number of seconds the same.
func FuzzSpan(f *testing.F) {
	f.Add("90s")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseSpan(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x1b\x00") {
				t.Fatalf("%q: %q", text, err)
			}
			return
		}
		if d < 0 {
			t.Fatalf("%q is %v", text, d)
		}
		if again, err := ParseSpan(d.String()); err != nil || again != d {
			t.Fatalf("%q is %v, and that is %v, %v", text, d, again, err)
		}
		for _, shown := range []string{Brief(d), Whole(d)} {
			if shown == "" || strings.HasPrefix(shown, "-") || len(shown) > 16 {
				t.Fatalf("%v is shown as %q", d, shown)
			}
		}
		if d%time.Second == 0 && d < time.Hour {
			if again, err := time.ParseDuration(Brief(d)); err != nil || again != d {
				t.Fatalf("%v is shown as %s", d, Brief(d))
			}
		}
	})
}

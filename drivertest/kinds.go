package drivertest

import (
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// FuzzKind tests what a kind of store makes of URLs on a server, however odd they are: a URL that
// is understood has the password that was written and no other, and no message shows it.
// given returns the password that the driver would get, or why the settings cannot be used; it
// connects to nothing.
func FuzzKind(f *testing.F, k *driver.Kind, given func(*driver.Location) (password string, err error)) {
	for _, name := range k.Secrets {
		f.Setenv(name, "")
	}
	if env := k.SendsPassword; env != "" {
		for _, name := range []string{"_USER", "_PASSWORD", "_PASSWORD_FILE"} {
			f.Setenv(env+name, "")
		}
	}
	f.Add("app", "hunter2", "db/shop", "")
	f.Fuzz(func(t *testing.T, user, password, place, query string) {
		const mark = "Zq7"
		secret := mark + "-" + password + "-7qZ"
		escaped := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
		rest := "//" + escaped(strings.ReplaceAll(user, mark, "")) + ":" + escaped(secret) + "@" + place + "?" + query
		at, err := k.Parse(k.Schemes[0], rest)
		var told []string
		if err == nil {
			if got, _ := url.PathUnescape(at.Password); got != secret {
				t.Fatalf("%q: the password is %q, not %q", rest, got, secret)
			}
			told = append(told, at.String(), at.Redact("dial "+rest+": refused"), at.Redact("they know "+secret))
			var got string
			if got, err = given(at); err == nil && got != secret {
				t.Fatalf("%q: the driver is given %q, not %q", rest, got, secret)
			}
		}
		if err != nil {
			told = append(told, err.Error())
		}
		for _, text := range told {
			if strings.Contains(text, mark) && !strings.Contains(place+query, mark) {
				t.Fatalf("%q: the password is shown: %s", rest, text)
			}
			if strings.ContainsAny(text, "\n\x1b\x00") {
				t.Fatalf("%q: more than a line is said: %q", rest, text)
			}
		}
	})
}

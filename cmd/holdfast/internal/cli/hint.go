package cli

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/open"
)

// GivenStore is the --store of this command, for the commands that we tell the user to run next.
// HOLDFAST_STORE is not repeated, because they find it, too.
var GivenStore string

// Hint is a command to run next, on the same store.
func Hint(format string, args ...any) string {
	store := ""
	if GivenStore != "" {
		store = "--store " + ShellWord(withoutSecrets(GivenStore)) + " "
	}
	return "holdfast " + store + fmt.Sprintf(format, args...)
}

// WithHints adds the same --store to the commands that the library names.
func WithHints(text string) string {
	return strings.ReplaceAll(text, "holdfast schema ", Hint("schema "))
}

// withoutSecrets is the URL of a store without its password.
func withoutSecrets(store string) string {
	head, query, _ := strings.Cut(store, "?")
	if scheme, rest, ok := open.Scheme(head); ok && strings.HasPrefix(rest, "//") {
		if k := open.Find(scheme, Kinds...); k != nil && k.Server {
			if i := strings.IndexAny(rest[2:], "@/"); i >= 0 && rest[2+i] == '@' {
				user, _, _ := strings.Cut(rest[2:2+i], ":")
				head = scheme + "://" + user + rest[2+i:]
			}
		}
	}
	pairs := slices.DeleteFunc(strings.Split(query, "&"), func(pair string) bool {
		key, _, _ := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(key)
		return pair == "" || err != nil || driver.IsSecret(plain)
	})
	if len(pairs) > 0 {
		head += "?" + strings.Join(pairs, "&")
	}
	return head
}

// ShellWord quotes a text so that a shell reads one word. What a terminal would act on is escaped.
func ShellWord(s string) string {
	s = Escape(s)
	plain := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-./:@%+,=", r) || r > 127)
	}
	if s != "" && !strings.ContainsFunc(s, plain) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

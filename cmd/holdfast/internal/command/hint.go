package command

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/open"
)

// given is the --store of this command, for those that we tell the user to run next. HOLDFAST_STORE
// is not repeated: they find it, too.
var given string

// hint is a command to run next, on the same store.
func hint(format string, args ...any) string {
	store := ""
	if given != "" {
		store = "--store " + shellWord(withoutSecrets(given)) + " "
	}
	return "holdfast " + store + fmt.Sprintf(format, args...)
}

// withHints has the commands that the library names be on the same store.
func withHints(text string) string {
	return strings.ReplaceAll(text, "holdfast schema ", hint("schema "))
}

// withoutSecrets is the URL of a store without its password.
func withoutSecrets(store string) string {
	head, query, _ := strings.Cut(store, "?")
	if scheme, rest, ok := open.Scheme(head); ok && strings.HasPrefix(rest, "//") {
		if k := open.Find(scheme, kinds...); k != nil && k.Server {
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

// shellWord is a text as a shell takes it for one word. What a terminal would act on is escaped.
func shellWord(s string) string {
	s = escape(s)
	plain := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-./:@%+,=", r) || r > 127)
	}
	if s != "" && !strings.ContainsFunc(s, plain) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

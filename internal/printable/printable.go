// Package printable makes foreign text fit for a terminal.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Escape escapes control and format characters (also those that change the direction of
// text) and bytes that are not UTF-8.
func Escape(s string) string {
	plain := 0
	for plain < len(s) && ' ' <= s[plain] && s[plain] <= '~' {
		plain++
	}
	if plain == len(s) { // as most are
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// OneLine replaces line breaks and tabs by spaces.
func OneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\t' }), " ")
}

// Quote is Escape between quotes.
func Quote(s string) string { return `"` + Escape(s) + `"` }

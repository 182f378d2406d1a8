package holdfast

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-lock/holdfast/driver"
)

// checkName says what is wrong with the name of a lock. A name is 1 to 1,024
// bytes of UTF-8 without control characters, so that it can be shown, typed
// and passed in an environment as it is.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("name is empty")
	case len(name) > driver.MaxName:
		if n := 2 * (strings.Count(name, "%2F") + strings.Count(name, "%25")); n > 0 {
			return fmt.Errorf("name has %d bytes, at most %d; JoinName has added %d for each / and %% of its parts", len(name), driver.MaxName, n)
		}
		return fmt.Errorf("name has %d bytes, at most %d", len(name), driver.MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("name is not UTF-8: %q", name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("name %q has a control character", name)
	}
	return nil
}

// JoinName makes one name from parts, such as a project and a ref, so that
// different parts always make different names: parts are joined by "/", and a
// "/" or "%" inside a part is written "%2F" or "%25". All names that begin with
// the same parts are found by List(ctx, JoinName(parts...)+"/"). A name has at most 1,024 bytes, in
// which the "/" between two parts counts as one, and each "/" or "%" in a part as three.
func JoinName(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = partEscaper.Replace(part)
	}
	return strings.Join(escaped, "/")
}

// SplitName returns the parts of a name that JoinName made.
func SplitName(name string) []string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = partUnescaper.Replace(part)
	}
	return parts
}

var (
	partEscaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	partUnescaper = strings.NewReplacer("%25", "%", "%2F", "/")
)

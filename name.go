package holdfast

import (
	"strings"
)

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

package sqlstore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CheckSchema compares the version of a schema, as found, with that a program
// needs. migrate is what creates it, in Go.
func CheckSchema(t Tables, found, need int64, migrate string) error {
	switch {
	case found == 0:
		return fmt.Errorf("schema of %q is missing; create it with %s or: holdfast schema apply", t.String(), migrate)
	case found > need:
		return fmt.Errorf("schema of %q is version %d, newer than this program (%d): upgrade the program", t.String(), found, need)
	case found < need:
		return fmt.Errorf("schema of %q is version %d, this program needs %d; the owner of the tables runs: holdfast schema apply", t.String(), found, need)
	}
	return nil
}

// Compare says which of the published objects, by their names without a prefix, is missing
// or something else. schema is how a person calls it.
func Compare(schema, prefix, migrate string, published, found map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(published)) {
		want := published[name]
		switch is, there := found[name]; {
		case !there:
			return fmt.Errorf("schema %s: %s is missing; create it with %s or: holdfast schema apply", schema, prefix+name, migrate)
		case is != want && (len(want) > 40 || strings.Contains(is, "\n")):
			return fmt.Errorf("schema %s: %s is not as published; compare it with: holdfast schema print", schema, prefix+name)
		case is != want:
			return fmt.Errorf("schema %s: %s is %q and not %q, as published; compare it with: holdfast schema print", schema, prefix+name, is, want)
		}
	}
	return nil
}

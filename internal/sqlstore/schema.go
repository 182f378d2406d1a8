package sqlstore

import (
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
)

// Print is the cure where an object differs from what is published.
const Print = "compare it with: holdfast schema print"

// create is the cure where an object is missing.
func create(migrate string) string { return "create it with " + migrate + " or: holdfast schema apply" }

// CheckSchema compares the version of a schema, as found, with the one that this
// program needs. migrate is the Go function that creates it.
func CheckSchema(t Tables, found, need int64, migrate string) error {
	switch {
	case found == 0:
		return driver.NewSchemaError(create(migrate), "schema of %q is missing", t.String())
	case found > need:
		return driver.NewSchemaError("upgrade the program", "schema of %q is version %d, newer than this program (%d)", t.String(), found, need)
	case found < need:
		return driver.NewSchemaError("the owner of the tables runs: holdfast schema apply", "schema of %q is version %d, this program needs %d", t.String(), found, need)
	}
	return nil
}

// Compare says which of the published objects, by their names without a prefix, is missing
// or differs. schema is what people call it.
func Compare(schema, prefix, migrate string, published, found map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(published)) {
		want := published[name]
		switch is, there := found[name]; {
		case !there:
			return driver.NewSchemaError(create(migrate), "schema %s: %s is missing", schema, prefix+name)
		case is != want && (len(want) > 40 || strings.Contains(is, "\n")):
			return driver.NewSchemaError(Print, "schema %s: %s is not as published", schema, prefix+name)
		case is != want:
			return driver.NewSchemaError(Print, "schema %s: %s is %q and not %q, as published", schema, prefix+name, is, want)
		}
	}
	return nil
}

// Objects reads a list of published objects. Each line has a table, columns if it is about
// these, and after = what they are.
func Objects(list string) map[string]string {
	objects := make(map[string]string)
	for line := range strings.Lines(list) {
		names, is, _ := strings.Cut(strings.TrimSpace(line), " = ")
		table, columns, _ := strings.Cut(names, " ")
		if columns == "" {
			objects[table] = is
		}
		for _, column := range strings.Fields(columns) {
			objects[table+"."+column] = is
		}
	}
	return objects
}

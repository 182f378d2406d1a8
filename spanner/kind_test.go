package spanner

import (
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"

	"strings"
	"testing"

	storeurl "github.com/holdfast-lock/holdfast/open"
)

func TestURL(t *testing.T) {
	at, err := storeurl.Parse("spanner://projects/p/instances/i/databases/d/?prefix=app_", Kind)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := databaseOf(at); err != nil || name != "projects/p/instances/i/databases/d" || at.Prefix != "app_" {
		t.Errorf("got %q with prefix %q, error %v", name, at.Prefix, err)
	}
	for in, want := range map[string]string{
		"spanner://app:hunter2@projects/p/instances/i/databases/d":  "has no user",
		"spanner://projects/p/instances/i":                          "is written as in",
		"spanner://projects/p/instances/i/databases/d?frob=hunter2": `unknown setting "frob"`,
	} {
		at, err := storeurl.Parse(in, Kind)
		if err == nil {
			_, err = databaseOf(at)
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
}

// The driver is given the password that stands in the URL, however odd it is, and nothing that
// is said shows it.
func FuzzURL(f *testing.F) {
	drivertest.FuzzKind(f, Kind, func(at *driver.Location) (string, error) {
		name, err := databaseOf(at)
		return name, err // a user is refused
	})
}

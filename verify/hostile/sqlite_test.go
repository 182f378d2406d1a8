//go:build linux

package hostile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/sqlite"
)

// SQLite's file is refused on a file system that other hosts may share, also
// where a link leads to it.
func TestSQLiteOnNetwork(t *testing.T) {
	_, paths := serve(t, 1, Durable, 1)
	there := filepath.Join(paths[0], "locks.db")
	put(t, "", there)
	here := filepath.Join(t.TempDir(), "locks.db")
	must(t, os.Symlink(there, here))
	for _, path := range []string{there, here} {
		for _, create := range []bool{false, true} {
			_, err := sqlite.Open(t.Context(), path, &sqlite.Options{Create: create})
			if want := path + " is on fuse, where SQLite's locks cannot be trusted"; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}

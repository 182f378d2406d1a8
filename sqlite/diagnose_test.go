package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-lock/holdfast"
)

func TestDiagnose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	s := open(t, path, &Options{Create: true, Allow: []string{"async-commit"}})
	want := func(subject string, level holdfast.Level) {
		t.Helper()
		findings, err := s.Diagnose(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if f.Subject == subject {
				if f.Level != level || f.Text == "" {
					t.Errorf("got %+v, want level %d", f, level)
				}
				return
			}
		}
		t.Errorf("nothing on %s in %+v", subject, findings)
	}
	want("database", holdfast.Good)
	want("durability", holdfast.Warning)

	// Another tool may have changed the journal mode while nobody had the file open.
	err := s.names.use(t.Context(), func(c *conn) error { return c.script(`pragma journal_mode = delete`) })
	if err != nil {
		t.Fatal(err)
	}
	want("database", holdfast.Failure)

	s = open(t, filepath.Join(t.TempDir(), "locks.db"), &Options{Create: true})
	want("durability", holdfast.Good)
}

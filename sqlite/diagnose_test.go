package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// wantFinding is that doctor tells of a subject at a level.
func wantFinding(t *testing.T, s *Store, subject string, level driver.Level) {
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

func TestDiagnose(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "locks.db"), &Options{Create: true, Allow: []string{"async-commit"}})
	wantFinding(t, s, "database", driver.Good)
	wantFinding(t, s, "durability", driver.Warning)
	s = fresh(t)
	wantFinding(t, s, "durability", driver.Good)
	db := application(t, s)
	if _, err := db.Exec(`create trigger audit after update on holdfast_records begin select 1; end`); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, s, "trigger", driver.Warning)
}

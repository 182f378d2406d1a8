package directory

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/mounts"
)

// The doctor says that others have another directory in the place of an overlay.
func TestDiagnoseOverlay(t *testing.T) {
	below := fresh(t)
	mounts.Private(t)
	dir, merged := t.TempDir(), t.TempDir()
	for _, name := range []string{"upper", "work"} {
		if err := os.Mkdir(dir+"/"+name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mounts.Mount(t, "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", below.path, dir, dir), merged)
	s, err := open(merged)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	findings, err := s.diagnose(t.Context()) // where the mount is seen
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Subject == "file system" && f.Level == driver.Warning && strings.Contains(f.Text, "overlay") {
			return
		}
	}
	t.Errorf("nothing on it in %+v", findings)
}

//go:build linux

package admin

import (
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// Doctor says how commands are guarded here.
func TestDoctorOfGuards(t *testing.T) {
	d := &checkup{}
	d.run()
	if len(d.findings) != 1 || d.findings[0].Level == driver.Failure {
		t.Errorf("got %+v", d.findings)
	}
}

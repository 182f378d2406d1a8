//go:build linux

package hold

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
)

// TestMain leaves the terminal, if there is one: at a terminal a command shares the process group
// of its tests.
func TestMain(m *testing.M) {
	if guard.Terminal() {
		if _, err := syscall.Setsid(); err != nil {
			fmt.Fprintln(os.Stderr, "at a terminal these tests are run by go test:", err)
			os.Exit(1)
		}
		unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0)
	}
	os.Exit(m.Run())
}

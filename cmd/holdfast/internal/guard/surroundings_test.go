//go:build linux && !portableguard

package guard

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// hides says what Hides does, in a process with other rights.
func hides([]string) { fmt.Println(Hides()) }

// Where /proc is mounted with hidepid it hides processes from root too, unless root may trace
// all of them: in a container it often has no CAP_SYS_PTRACE, or a user namespace of its own.
func TestProcHidesProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can mount /proc, so what it hides is not tested")
	}
	for _, test := range []struct {
		name, script, want string
	}{
		{"nothing hidden", `exec "$@"`, "false"},
		{"root", `mount -t proc -o hidepid=2 proc /proc && exec "$@"`, "false"},
		{"a user", `mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --clear-groups -- "$@"`, "true"},
		{"root without CAP_SYS_PTRACE", `mount -t proc -o hidepid=2 proc /proc && exec setpriv --bounding-set=-sys_ptrace -- "$@"`, "true"},
		{"root of a user namespace", `mount -t proc -o hidepid=2 proc /proc && exec unshare --user --map-root-user -- "$@"`, "true"},
	} {
		t.Run(test.name, func(t *testing.T) {
			self, err := os.Open("/proc/self/exe")
			if err != nil {
				t.Fatal(err)
			}
			defer self.Close()
			c := exec.Command("unshare", "-m", "sh", "-c", test.script, "sh", "/proc/self/fd/3", "act-hides")
			c.ExtraFiles = []*os.File{self} // another user may not reach its path
			out, err := c.CombinedOutput()
			if err != nil {
				t.Skipf("SKIPPED: this cannot be had here: %v: %s", err, out)
			}
			if got := strings.TrimSpace(string(out)); got != test.want {
				t.Errorf("Hides() is %s, want %s", got, test.want)
			}
		})
	}
}

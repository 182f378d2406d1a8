//go:build unix && (!linux || portableguard)

package guard

import (
	"fmt"
	"os/exec"
	"strings"
)

// sessions of their own are a way out: what is tested stays in the command's group.
const sessions = false

const resumed = 1 // times

// children lists the live processes below pid.
func children(pid int) (live []int) {
	out, _ := exec.Command("/bin/ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "stat=").Output()
	for line := range strings.Lines(string(out)) {
		var id, parent int
		var state string
		if fmt.Sscan(line, &id, &parent, &state); parent == pid && state[0] != 'Z' {
			live = append(live, id)
		}
	}
	return live
}

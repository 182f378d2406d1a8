//go:build linux

package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// children are the processes whose parent is pid.
func children(pid int) (pids []int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		for _, f := range bytes.Fields(text) {
			child, _ := strconv.Atoi(string(f))
			pids = append(pids, child)
		}
	}
	return pids
}

// stopped is whether a process stands still.
func stopped(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(state, "T")
}

// guardOf is the guard process of a `holdfast run`.
func guardOf(t *testing.T, p *process) (guard int) {
	t.Helper()
	await(t, "the guard is there", func() bool {
		for _, child := range children(p.Process.Pid) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child))
			if string(name) == "holdfast-guard\n" {
				guard = child
			}
		}
		return guard != 0
	})
	return guard
}

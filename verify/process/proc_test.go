//go:build linux

package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
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

// state is what /proc says of a process: T stands still, Z is dead; 0: gone.
func state(pid int) byte {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := bytes.LastIndex(text, []byte(") ")); i >= 0 {
		return text[i+2]
	}
	return 0
}

// guardOf is the guard process of a `holdfast run`.
func guardOf(t *testing.T, p *process) (guard int) {
	t.Helper()
	await(t, "the guard is there", func() bool {
		if p.isDone() {
			t.Fatalf("there is no guard, since run has ended: %s", p.said())
		}
		for _, child := range children(p.Process.Pid) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child))
			if string(name) == "hf-guard\n" {
				guard = child
			}
		}
		return guard != 0
	})
	return guard
}

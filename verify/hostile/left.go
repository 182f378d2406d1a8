//go:build linux

package hostile

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const sourcePrefix = "hostile-"

// source is what mounts of this process are called.
func source() string { return fmt.Sprintf("%s%d", sourcePrefix, os.Getpid()) }

// closeOnExec keeps files of that name from processes that are started. The FUSE
// library does not: a worker that outlived us would then wait for itself.
func closeOnExec(name string) {
	const dir = "/proc/self/fd"
	fds, _ := os.ReadDir(dir)
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if to, _ := os.Readlink(dir + "/" + e.Name()); err == nil && to == name {
			syscall.CloseOnExec(fd)
		}
	}
}

// watched has mounts go when this process does, however it ends, and removes
// those that were left by processes whose watcher was killed too.
var watched = sync.OnceValue(func() error {
	table, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(table) {
		f := strings.Fields(string(line))
		if f[2] != "fuse."+kernelName {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimPrefix(f[0], sourcePrefix))
		if err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
	const janitor = `read -r _; while read -r source path _; do [ "$source" != "$0" ] || umount -l "$path"; done </proc/mounts`
	cmd := exec.Command("/bin/sh", "-c", janitor, source())
	cmd.Dir = "/"
	if _, err := cmd.StdinPipe(); err != nil { // closed by the end of this process
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait()
	return nil
})

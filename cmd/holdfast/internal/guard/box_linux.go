//go:build !portableguard

package guard

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A box is a control group for one command. It is made below the group of this process if
// that is delegated, which systemd does for a unit that has Delegate=yes. All processes in a
// box can be killed at once, including those of other users and those that /proc does not
// show. A command is guarded without a box, too: a nil box does nothing.
//
// The program and the guard each hold a shared lock on the directory while they
// live. A process that obtains an exclusive lock knows that both are gone, and kills
// what they have left.
type box struct {
	parent string // the directory of this process's own group
	path   string
	dir    *os.File
}

const boxes = "holdfast-"

// newBox makes a box, if it may.
func newBox() *box {
	parent := ownGroup()
	if parent == "" || !delegated(parent) {
		return nil
	}
	// Pids repeat in successive pid namespaces, and so would names made of pids alone.
	path := filepath.Join(parent, fmt.Sprintf("%s%d-%x%s", boxes, os.Getpid(), rand.Uint32(), device(parent)))
	if os.Mkdir(path, 0o755) != nil {
		return nil
	}
	b := openBox(path)
	if b == nil || unix.Access(path+"/cgroup.kill", unix.W_OK) != nil {
		os.Remove(path)
		return nil
	}
	return b
}

// device is the end of a box's name. It tells the mounts of the control groups
// apart, since locks that were taken through one are not seen through another.
func device(dir string) string {
	var stat unix.Stat_t
	if unix.Stat(dir, &stat) != nil {
		return ".?"
	}
	return "." + strconv.FormatUint(stat.Dev, 16)
}

// openBox opens an existing box.
func openBox(path string) *box {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	if unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		dir.Close()
		return nil
	}
	return &box{filepath.Dir(path), path, dir}
}

// ownGroup is the directory of this process's control group, or "".
func ownGroup() string {
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok || strings.HasPrefix(path, "/..") {
			continue
		}
		for _, m := range mounts() {
			if below, ok := strings.CutPrefix(path, strings.TrimSuffix(m.root, "/")); ok && m.kind == "cgroup2" && (below == "" || below[0] == '/') {
				return filepath.Join(m.point, below)
			}
		}
	}
	return ""
}

// delegated reports whether groups may be made in a group.
func delegated(dir string) bool {
	if unix.Access(dir, unix.W_OK) != nil || unix.Access(dir+"/cgroup.procs", unix.W_OK) != nil {
		return false
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return true
	}
	value := make([]byte, 8)
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, name, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

func (b *box) where() string {
	if b == nil {
		return ""
	}
	return b.path
}

// start starts a command in the box, or without it if that fails.
func (b *box) start(path string, args []string, attr *syscall.ProcAttr) (pid int, err error) {
	if b != nil {
		boxed := *attr.Sys
		boxed.UseCgroupFD, boxed.CgroupFD = true, int(b.dir.Fd())
		if pid, err = syscall.ForkExec(path, args, &syscall.ProcAttr{Dir: attr.Dir, Env: attr.Env, Files: attr.Files, Sys: &boxed}); err == nil {
			return pid, nil
		}
	}
	return syscall.ForkExec(path, args, attr)
}

// kill kills all processes in the box, and reports whether it could.
func (b *box) kill() bool {
	if b == nil {
		return false
	}
	file, err := os.OpenFile(b.path+"/cgroup.kill", os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	_, err = file.WriteString("1")
	return err == nil
}

// procs returns the pids of the processes in the box.
func (b *box) procs() []int {
	if b == nil {
		return nil
	}
	text, _ := os.ReadFile(b.path + "/cgroup.procs")
	return numbers(text)
}

// remove removes the box if no process is left in it.
func (b *box) remove() {
	if b == nil {
		return
	}
	for end := Now().Add(pollInterval); !removeGroup(b.path) && len(b.procs()) == 0 && Now() < end; {
		time.Sleep(time.Millisecond)
	}
	b.dir.Close()
}

// removeGroup removes a group without processes, and the boxes that commands in it
// have left. It reports whether the group is gone: the kernel keeps one in which a
// process has not ended yet, though cgroup.procs no longer lists it.
func removeGroup(path string) bool {
	inner, _ := filepath.Glob(path + "/" + boxes + "*")
	for _, path := range inner {
		removeGroup(path)
	}
	err := os.Remove(path)
	return err == nil || os.IsNotExist(err)
}

// sweep ends commands beside this one that nobody guards any more.
func (b *box) sweep() {
	if b == nil {
		return
	}
	others, _ := filepath.Glob(b.parent + "/" + boxes + "*" + device(b.parent))
	for _, path := range others {
		if dir, err := os.Open(path); err == nil {
			if path != b.path && unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				left := &box{b.parent, path, dir}
				left.kill()
				for end := Now().Add(pollInterval); !removeGroup(path) && Now() < end; {
					time.Sleep(time.Millisecond)
				}
			}
			dir.Close()
		}
	}
}

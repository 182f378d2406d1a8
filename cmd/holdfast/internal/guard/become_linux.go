//go:build !portableguard

package guard

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// become makes this process a guard, and returns its arguments.
func become(args []string) []string {
	// The command dies with the thread that starts it: this one.
	runtime.LockOSThread()
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	comm := []byte(argv0 + "\x00")
	unix.Prctl(unix.PR_SET_NAME, uintptr(ptr(comm)), 0, 0, 0)
	deaf = append(deaf, syscall.SIGPWR)
	return hide(args)
}

// inherit makes this process the parent of the guard's children if the guard dies.
func (g *Guard) inherit() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// dismiss has nothing to do here: the guard is below this process, and killed with the rest.
func (g *Guard) dismiss() {}

// attributes are those of a command that joins a process group, or has one of its own.
func attributes(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
}

// spare keeps the kernel from killing this process when memory runs out, if that is allowed.
// The command was started before, and is not spared.
func spare() { os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }

// alone reports whether nothing is left, when this process has no children.
func (w *watch) alone() bool { return true }

// stopped is called when the command is stopped, and back when it has ended. There is nothing to
// do: where there is a terminal, the program and the command share a process group.
func (w *watch) stopped(syscall.Signal) {}
func (w *watch) back()                  {}

// Joins reports whether a command joins the process group of a program that has a terminal.
const Joins = true

// Limits is "" here: everything that a command has started is ended.
func Limits() string { return "" }

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }

// hide takes arguments out of what ps and pkill -f see of this process, and returns
// copies. They are the command's, and a user who kills by them must not hit the guard.
func hide(args []string) (copies []string) {
	for _, arg := range args {
		copies = append(copies, strings.Clone(arg))
		clear(unsafe.Slice(unsafe.StringData(arg), len(arg))) // the memory that ps reads
	}
	return copies
}

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

// inherit has this process get the guard's children if the guard dies.
func (g *Guard) inherit() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// dismiss ends a guard that does not do its work. It is below this process, as is the rest
// that is killed.
func (g *Guard) dismiss() {}

// attributes are those of a command that joins a process group, or has one of its own.
func attributes(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
}

// spare has the kernel take other processes than this one where memory runs out,
// if it may. The command has been started, and is not spared.
func spare() { os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }

// alone reports whether nothing is left, when this process has no children.
func (w *watch) alone() bool { return true }

// stopped is called when the command stands still. back is called when it goes on. The
// terminal is the program's and the command's: they share a process group where there is one.
func (w *watch) stopped(syscall.Signal) {}
func (w *watch) back()                  {}

// Joins reports whether a command joins the process group of a program that has a terminal.
const Joins = true

// Limits is "" here: everything that a command has started is ended.
func Limits() string { return "" }

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }

// hide takes arguments out of what ps and pkill -f see of this process, and returns
// copies. They are the command's, and who kills by them shall not meet the guard.
func hide(args []string) (copies []string) {
	for _, arg := range args {
		copies = append(copies, strings.Clone(arg))
		clear(unsafe.Slice(unsafe.StringData(arg), len(arg))) // memory that the kernel gave for them
	}
	return copies
}

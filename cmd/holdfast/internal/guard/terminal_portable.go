//go:build unix && (!linux || portableguard)

package guard

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// The command has a process group of its own even at a terminal, because it is killed by
// its group. The signals of keys go to the program, which passes them on. A command that
// wants the terminal is stopped, as any background job is; then the guard puts it in the
// foreground, and does for the program's group what the keys no longer do.

// stopped is called when the command is stopped.
func (w *watch) stopped(sig syscall.Signal) {
	fd, front := foreground()
	if fd < 0 {
		return
	}
	defer unix.Close(fd)
	wants := sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	switch {
	case sig == syscall.SIGTSTP && w.passed == sig: // the program is stopped, too
	case wants && (front == w.box.program || front == w.main):
		bring(fd, w.main)
		syscall.Kill(-w.main, syscall.SIGCONT)
	default: // all of the job is stopped
		if front == w.main {
			bring(fd, w.box.program)
		}
		if sig == syscall.SIGSTOP {
			sig = syscall.SIGTSTP // which the program passes on
		}
		syscall.Kill(-w.box.program, sig)
	}
}

// back gives the terminal back to the program's group, with the signal of the key that has
// ended the command.
func (w *watch) back() {
	fd, front := foreground()
	if fd < 0 {
		return
	}
	defer unix.Close(fd)
	if front != w.main {
		return
	}
	bring(fd, w.box.program)
	if sig := w.status.Signal(); w.ended && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
		syscall.Kill(-w.box.program, sig)
	}
}

// foreground is the terminal, and the process group to which its keys send their signals.
func foreground() (fd, group int) {
	fd, err := tty()
	if err != nil {
		return -1, 0
	}
	group, _ = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return fd, group
}

func bring(fd, group int) {
	signal.Ignore(syscall.SIGTTOU) // else a process in the background may not do this
	unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, group)
}

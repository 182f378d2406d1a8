//go:build unix

package hold

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
)

// passed are the signals that are meant for the command.
var passed = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
}

// catch catches them, except those that our caller ignores (as nohup does), so
// that the command ignores them, too.
func catch(shared bool) chan os.Signal {
	c := make(chan os.Signal, 16)
	for _, sig := range passed {
		if !guard.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	if !shared && !guard.Ignored(syscall.SIGTSTP) {
		signal.Notify(c, syscall.SIGTSTP)
	}
	return c
}

// ends reports whether a signal ends a process that does nothing about it.
func ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2:
		return true
	}
	return false
}

// isKey reports whether a signal may come from a key.
func isKey(sig os.Signal) bool { return sig == syscall.SIGINT || sig == syscall.SIGQUIT }

func isStop(sig os.Signal) bool { return sig == syscall.SIGTSTP }

// standStill stops this process until somebody continues it.
func standStill() { syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// signalName is TERM for SIGTERM.
func signalName(sig syscall.Signal) string {
	if name := signalNames[sig]; name != "" {
		return name
	}
	return sig.String()
}

var signalNames = map[syscall.Signal]string{
	syscall.SIGHUP: "HUP", syscall.SIGINT: "INT", syscall.SIGQUIT: "QUIT", syscall.SIGTERM: "TERM", syscall.SIGKILL: "KILL",
	syscall.SIGUSR1: "USR1", syscall.SIGUSR2: "USR2", syscall.SIGSEGV: "SEGV", syscall.SIGABRT: "ABRT", syscall.SIGPIPE: "PIPE",
	syscall.SIGALRM: "ALRM", syscall.SIGBUS: "BUS", syscall.SIGFPE: "FPE", syscall.SIGILL: "ILL",
}

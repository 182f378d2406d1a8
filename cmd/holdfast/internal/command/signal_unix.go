//go:build unix

package command

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/origin"
)

// passed are the signals that are meant for the command.
var passed = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
}

// catch catches them, but for those that our caller ignores (as nohup does):
// these the command shall ignore, too.
func catch(shared bool) chan os.Signal {
	c := make(chan os.Signal, 16)
	for _, sig := range passed {
		if !guard.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	for _, key := range keys {
		watched[key] = shared && !guard.Ignored(key) && origin.Watch(key)
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

// keys are the signals of keys that end a command: Ctrl-C and Ctrl-\.
var keys = []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT}

// watched are those of which it is known where they come from.
var watched = make(map[syscall.Signal]bool)

// typed reports whether a signal is that of a key, which the terminal sends to the
// command as well if that shares our group.
func typed(sig os.Signal) bool {
	key, ok := sig.(syscall.Signal)
	switch {
	case !ok || !slices.Contains(keys, key):
		return false
	case watched[key]:
		return !origin.Sent(key)
	}
	return guard.Foreground() // else the terminal sends us none
}

func isStop(sig os.Signal) bool { return sig == syscall.SIGTSTP }

// standStill stops this process until somebody continues it.
func standStill() { syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// dieOf ends this process by a signal.
func dieOf(sig syscall.Signal) {
	signal.Reset(sig)
	syscall.Kill(os.Getpid(), sig)
	time.Sleep(time.Second)
}

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

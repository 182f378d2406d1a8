//go:build !portableguard

package guard

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listener is the name of the process that listens for the terminal's keys.
const listener = "hf-keys"

// Keys tells the signal of a key from one that a process has sent, which os/signal cannot.
// The terminal sends its signals to all processes of a group, so a small process in ours
// hears them too; it does not hear a signal that is sent to us alone. (Rejected: a signal
// handler in front of the runtime's, which could read si_code; it would be assembly.)
type Keys struct {
	heard chan key
	mu    sync.Mutex // one caller asks at a time
}

// A key is a signal that the listener has heard.
type key struct {
	sig syscall.Signal
	at  time.Time
}

// Listen starts a listener, which ends with this process. It returns nil if that fails;
// then every signal is taken for that of a key.
func Listen() *Keys {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "keys"), os.NewFile(uintptr(pair[1]), "keys")
	defer theirs.Close()
	c := exec.Cmd{Path: Program, Args: []string{listener}, ExtraFiles: []*os.File{theirs}, Env: []string{}}
	if err := c.Start(); err != nil {
		ours.Close()
		return nil
	}
	k := &Keys{heard: make(chan key, 64)}
	go func() {
		defer ours.Close()
		defer close(k.heard)
		for b := make([]byte, 1); ; {
			if _, err := ours.Read(b); err != nil {
				c.Wait()
				return
			}
			select {
			case k.heard <- key{syscall.Signal(b[0]), time.Now()}:
			default:
			}
		}
	}()
	return k
}

// listens is how long the listener may take to say what it has heard, and how long that is
// of use: the kernel may merge two signals to us, but not those to the listener.
const listens = time.Second

// Typed reports whether a signal that has come is that of a key. It may take a moment.
func (k *Keys) Typed(sig syscall.Signal) bool {
	if k == nil {
		return true
	}
	came := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	t := time.NewTimer(listens)
	defer t.Stop()
	for {
		select {
		case heard, ok := <-k.heard:
			if !ok || heard.sig == sig && came.Sub(heard.at) < listens {
				return true // or the listener is gone
			}
		case <-t.C:
			return false
		}
	}
}

// listenIfSo does the work of a listener, if this process is one.
func listenIfSo() {
	if len(os.Args) != 1 || os.Args[0] != listener {
		return
	}
	comm := []byte(listener + "\x00") // of the first thread, on which this still runs
	unix.Prctl(unix.PR_SET_NAME, uintptr(ptr(comm)), 0, 0, 0)
	signals := make(chan os.Signal, 16)
	signal.Ignore(syscall.SIGHUP, syscall.SIGTERM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	socket := os.NewFile(3, "keys")
	go func() {
		io.Copy(io.Discard, socket) // until the program ends
		os.Exit(0)
	}()
	for sig := range signals {
		socket.Write([]byte{byte(sig.(syscall.Signal))})
	}
}

//go:build unix

package guard

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxMessage is more than the longest environment variable (128 KiB) takes when quoted.
const maxMessage = 1 << 20

// deaths returns a file that has something to read when a child has ended.
func deaths() (fd int) {
	var ends [2]int
	if err := syscall.Pipe(ends[:]); err != nil {
		return -1 // poll ignores it, and the end of a child is seen a poll interval later
	}
	for _, fd := range ends {
		unix.CloseOnExec(fd)
		unix.SetNonblock(fd, true)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	go func() {
		for range children {
			unix.Write(ends[1], []byte{0})
		}
	}()
	return ends[0]
}

// drain reads what deaths has written.
func drain(fd int) {
	var some [64]byte
	unix.Read(fd, some[:])
}

// high duplicates a file under a number that is out of the way of those that users choose.
func high(fd int, inherit bool) (int, error) {
	how := unix.F_DUPFD_CLOEXEC
	if inherit {
		how = unix.F_DUPFD
	}
	for _, from := range []int{100, 10, 3} {
		if n, err := unix.FcntlInt(uintptr(fd), how, from); err == nil {
			return n, nil
		}
	}
	return -1, os.NewSyscallError("dup "+strconv.Itoa(fd), unix.EMFILE)
}

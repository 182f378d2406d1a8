package guard

import (
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// send writes one message. A peer that does not read is not waited for: it is
// told everything again with the next beat, or is killed.
func send(fd int, message any, file *os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	for {
		err = unix.Sendmsg(fd, text, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// buffer is where messages are received.
type buffer [maxMessage]byte

// receive reads the next message, and the open file that came with it, or -1. The
// error is EAGAIN if there is none yet, and another when the peer is gone.
func receive(fd int, in *buffer, message any) (file int, err error) {
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		n, nr, _, _, err := unix.Recvmsg(fd, in[:], rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECONNRESET: // told once of what the peer had not read; what it has said comes after
			continue
		case err != nil:
			return -1, err
		case n == 0:
			return -1, io.EOF
		}
		file = -1
		if parts, err := unix.ParseSocketControlMessage(rights[:nr]); err == nil && len(parts) == 1 {
			if fds, err := unix.ParseUnixRights(&parts[0]); err == nil && len(fds) == 1 {
				file = fds[0]
			}
		}
		json.Unmarshal(in[:n], message) // what cannot be read says nothing
		return file, nil
	}
}

// sleep is until something is to be read from one of the files, or for d.
func sleep(d time.Duration, files ...int) {
	var fds []unix.PollFd
	for _, fd := range files {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	t := unix.NsecToTimespec(int64(max(0, d)))
	unix.Ppoll(fds, &t, nil)
}

// deaths is a file from which there is something to be read when a child has ended.
func deaths() (fd int) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1 // poll does without, and children are seen a glance later
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

// drain takes what deaths has written.
func drain(fd int) {
	var some [64]byte
	unix.Read(fd, some[:])
}

// maxMessage is more than an environment variable can have (128 KiB), quoted.
const maxMessage = 1 << 20

// high moves a file out of the way of the numbers that users give to theirs.
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

package guard

import (
	"encoding/json"
	"os"
	"strconv"

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

// receive reads messages until the other side is gone, and closes the channel
// then. With a message may come an open file.
func receive[T any](fd int, messages chan<- T, file func(fd int)) {
	defer close(messages)
	text, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	for {
		n, nr, _, _, err := unix.Recvmsg(fd, text, rights, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if nr > 0 {
			if parts, err := unix.ParseSocketControlMessage(rights[:nr]); err == nil && len(parts) == 1 {
				if fds, err := unix.ParseUnixRights(&parts[0]); err == nil && len(fds) == 1 {
					file(fds[0])
				}
			}
		}
		var message T
		if json.Unmarshal(text[:n], &message) == nil {
			messages <- message
		}
	}
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

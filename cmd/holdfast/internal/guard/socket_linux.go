//go:build !portableguard

package guard

import (
	"encoding/json"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A conn is one end of the socket between a program and its guard. The kernel keeps messages apart.
type conn struct {
	fd int
	in [maxMessage]byte
}

func newConn(fd int) *conn {
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, maxMessage)
	return &conn{fd: fd}
}

// socketPair makes both ends.
func socketPair() (ours, theirs int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return pair[0], pair[1], err
}

// send writes one message. It does not wait for a peer that does not read: such a peer gets
// everything again with the next beat, or is killed.
func (c *conn) send(message any, file *os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	for {
		err = unix.Sendmsg(c.fd, text, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// receive reads the next message, and the open file that came with it, or -1. The
// error is EAGAIN if there is none yet, and another when the peer is gone.
func (c *conn) receive(message any) (file int, err error) {
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		n, nr, _, _, err := unix.Recvmsg(c.fd, c.in[:], rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECONNRESET: // reported once if the peer left something unread; what it has said follows
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
		json.Unmarshal(c.in[:n], message) // what cannot be read says nothing
		return file, nil
	}
}

// sleep waits until something can be read from one of the files, or for d.
func sleep(d time.Duration, files ...int) {
	var fds []unix.PollFd
	for _, fd := range files {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	t := unix.NsecToTimespec(int64(max(0, d)))
	unix.Ppoll(fds, &t, nil)
}

//go:build unix && (!linux || portableguard)

package guard

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A conn is one end of the socket between a program and its guard: a stream of lines, since macOS
// has no sockets that keep messages apart.
type conn struct {
	fd  int
	in  []byte // received, and not yet a whole message
	out []byte // the part of a sent message for which the peer had no room
}

func newConn(fd int) *conn {
	unix.SetNonblock(fd, true)
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, maxMessage)
	return &conn{fd: fd}
}

// socketPair makes both ends.
func socketPair() (ours, theirs int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(pair[0])
		unix.CloseOnExec(pair[1])
	}
	return pair[0], pair[1], err
}

// send writes one message. It waits at most a poll interval for a peer that does not read: such a
// peer gets everything again with the next beat, or is killed. Files are not sent: there are no
// proofs of life off Linux.
func (c *conn) send(message any, _ *os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if err := c.flush(); err != nil {
		return err
	}
	c.out = append(text, '\n')
	if err := c.flush(); err != unix.EAGAIN {
		return err
	}
	return nil // the rest of it is sent before the next
}

func (c *conn) flush() error {
	for len(c.out) > 0 {
		n, err := unix.Write(c.fd, c.out)
		switch {
		case err == nil:
			c.out = c.out[n:]
		case err == unix.EAGAIN:
			room := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}}
			if n, _ := unix.Poll(room, int(pollInterval.Milliseconds())); n <= 0 {
				return err
			}
		case err != unix.EINTR:
			return err
		}
	}
	return nil
}

// receive reads the next message; there is never a file with it. The error is EAGAIN if
// there is none yet, and another when the peer is gone.
func (c *conn) receive(message any) (file int, err error) {
	some := make([]byte, 1<<16)
	for {
		if line, rest, ok := bytes.Cut(c.in, []byte("\n")); ok {
			c.in = rest
			json.Unmarshal(line, message) // what cannot be read says nothing
			return -1, nil
		}
		n, err := unix.Read(c.fd, some)
		switch {
		case err == unix.EINTR:
		case err == unix.ECONNRESET: // reported once if the peer left something unread; what it has said follows
		case err != nil:
			return -1, err
		case n == 0:
			return -1, io.EOF
		default:
			c.in = append(c.in, some[:n]...)
		}
	}
}

// sleep waits until something can be read from one of the files, or for d.
func sleep(d time.Duration, files ...int) {
	var fds []unix.PollFd
	for _, fd := range files {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	unix.Poll(fds, int((max(0, d) + time.Millisecond - 1).Milliseconds()))
}

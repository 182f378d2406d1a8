//go:build unix

package guard

import "golang.org/x/sys/unix"

// Terminal reports whether this process has a controlling terminal.
func Terminal() bool {
	fd, err := tty()
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

func tty() (fd int, err error) {
	return unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

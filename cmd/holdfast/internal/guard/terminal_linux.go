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

// Foreground reports whether the terminal's keys send their signals to this process.
func Foreground() bool {
	fd, err := tty()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func tty() (fd int, err error) {
	return unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

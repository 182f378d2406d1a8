//go:build unix

package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// monotonic reads the clock that all processes of a machine share, in ns.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// share maps a file into memory, for all processes that do so.
func share(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}

func tryFlock(f *os.File) bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }

func unflock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// freeze stops the process as SIGSTOP does, and returns just before when.
func (p *player) freeze() (int64, error) {
	at := monotonic()
	return at, p.cmd.Process.Signal(unix.SIGSTOP)
}

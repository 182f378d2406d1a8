package directory

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// touch makes the present time the time of a file, by the clock of whoever
// serves the files.
func touch(root *os.Root, name string) error {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	return unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root.Name(), name), now, unix.AT_SYMLINK_NOFOLLOW)
}

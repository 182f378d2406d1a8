package directory

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// touch has whoever serves the files say what time it is: it becomes the time
// of the file.
func touch(root *os.Root, name string) error {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	return unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root.Name(), name), now, unix.AT_SYMLINK_NOFOLLOW)
}

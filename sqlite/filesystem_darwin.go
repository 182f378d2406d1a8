package sqlite

import (
	"strings"

	"golang.org/x/sys/unix"
)

// networkFS names the network file system that path is on, or nothing.
func networkFS(path string) string {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil || s.Flags&unix.MNT_LOCAL != 0 {
		return ""
	}
	return strings.TrimRight(unix.ByteSliceToString(s.Fstypename[:]), "\x00")
}

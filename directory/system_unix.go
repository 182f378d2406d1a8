//go:build unix

package directory

import (
	"io/fs"
	"syscall"
)

// nonblock: opening a pipe in place of a file does not wait for its other end.
const nonblock = syscall.O_NONBLOCK

// dirsSync: a change of a directory is on disk once the directory has been synced.
const dirsSync = true

// owner returns the owner and the group of a file.
func owner(info fs.FileInfo) (uid, gid int) {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid), int(stat.Gid)
	}
	return -1, -1
}

//go:build unix

package directory

import (
	"io/fs"
	"syscall"
)

// nonblock: opening what should be a file does not wait for a reader of a pipe.
const nonblock = syscall.O_NONBLOCK

// dirsSync: a change of a directory is on disk when the directory was synced.
const dirsSync = true

// owner is whose a file is, and of which group.
func owner(info fs.FileInfo) (uid, gid int) {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid), int(stat.Gid)
	}
	return -1, -1
}

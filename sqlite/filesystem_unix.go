//go:build unix

package sqlite

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// links is how many names a file has.
func links(info fs.FileInfo) uint64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(stat.Nlink)
}

// writable tells why the file or directory cannot be read and written by us.
// It opens nothing.
func writable(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
}

// readable tells why the file cannot be read by us. It opens nothing.
func readable(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK, unix.AT_EACCESS)
}

// diskFull says whether a directory's file system has no room for a page.
func diskFull(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && uint64(fs.Bavail)*uint64(fs.Bsize) < 64<<10
}

// keptWhileOpen is whether a file that is open can neither be removed nor replaced.
const keptWhileOpen = false

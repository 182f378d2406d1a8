//go:build unix

package filesystem

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// Links is how many names a file has.
func Links(info fs.FileInfo) uint64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(stat.Nlink)
}

// Writable tells why the file or directory cannot be read and written by us.
// It opens nothing.
func Writable(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
}

// Readable tells why the file cannot be read by us. It opens nothing.
func Readable(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK, unix.AT_EACCESS)
}

// Full says whether a directory's file system has no room for a page.
func Full(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && uint64(fs.Bavail)*uint64(fs.Bsize) < 64<<10
}

// KeptWhileOpen is whether a file that is open can neither be removed nor replaced.
const KeptWhileOpen = false

//go:build unix

package sqlite

import "golang.org/x/sys/unix"

// writable tells why the file or directory cannot be read and written by us.
// It opens nothing.
func writable(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
}

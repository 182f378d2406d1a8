//go:build unix

package directory

import "syscall"

// nonblock: opening what should be a file does not wait for a reader of a pipe.
const nonblock = syscall.O_NONBLOCK

// dirsSync: a change of a directory is on disk when the directory was synced.
const dirsSync = true

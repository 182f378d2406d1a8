//go:build !unix

package directory

import "io/fs"

const (
	nonblock = 0
	dirsSync = false
)

// owner is for systems where files have an owner and a group.
func owner(fs.FileInfo) (uid, gid int) { return -1, -1 }

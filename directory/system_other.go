//go:build !unix

package directory

const (
	nonblock = 0
	dirsSync = false
)

package state

import (
	"errors"
	"fmt"
)

// A fileInfo is what a file was when it was asked.
type fileInfo struct {
	regular      bool
	size         int64
	links        uint64
	dev, ino     uint64
	mtime, ctime int64 // ns since 1970, by the clock of who keeps it
}

// id tells a file from all others, as long as it is there.
func (i fileInfo) id() string { return fmt.Sprintf("%d:%d", i.dev, i.ino) }

var (
	errNotFolder  = errors.New("not a directory, or a symbolic link to one")
	errNotRegular = errors.New("not a regular file")
	errTooLong    = errors.New("too long")
	errTorn       = errors.New("shorter than it was")
)

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

// A fileInfo is what a file was when it was looked at.
type fileInfo struct {
	regular      bool
	size         int64
	links        uint64
	dev, ino     uint64
	mtime, ctime int64 // ns since 1970, by the clock of the host that keeps it
}

// id tells a file from all others, as long as it exists.
func (i fileInfo) id() string { return fmt.Sprintf("%d:%d", i.dev, i.ino) }

var (
	errNotFolder  = errors.New("not a directory, or a symbolic link to one")
	errNotRegular = errors.New("not a regular file")
	errTooLong    = errors.New("too long")
	errOther      = errors.New("another file goes by that name")
	errTorn       = errors.New("shorter than it was")
)

// failed is an error of an operation on a path. Others may have named the path, so
// it is shown in quotes if it is not plain text. nil stays nil.
func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if quoted := strconv.Quote(path); quoted != `"`+path+`"` {
		path = quoted
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

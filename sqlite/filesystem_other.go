//go:build !linux

package sqlite

import "io/fs"

// opened says whether this process has the file open, where that can be known.
func opened(fs.FileInfo) bool { return true }

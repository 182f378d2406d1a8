package filesystem

import "io/fs"

// Links is how many names a file has, where that can be known.
func Links(fs.FileInfo) uint64 { return 1 }

// Writable leaves it to opening the file to say why it cannot be written.
func Writable(string) error { return nil }

// Readable leaves it to opening the file to say why it cannot be read.
func Readable(string) error { return nil }

// Full says whether a directory's file system has no room, where that can be known.
func Full(string) bool { return false }

// KeptWhileOpen is whether a file that is open can neither be removed nor replaced.
const KeptWhileOpen = true

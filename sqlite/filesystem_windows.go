package sqlite

import "io/fs"

// links is how many names a file has, where that can be known.
func links(fs.FileInfo) uint64 { return 1 }

// writable leaves it to opening the file to say why it cannot be written.
func writable(string) error { return nil }

func readable(string) error { return nil }

func diskFull(string) bool { return false }

// keptWhileOpen is whether a file that is open can neither be removed nor replaced.
const keptWhileOpen = true

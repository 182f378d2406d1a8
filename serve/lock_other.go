//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package serve

// lockFile locks nothing: listening on a path that is in use fails on these systems.
func lockFile(string) (unlock func(), err error) { return func() {}, nil }

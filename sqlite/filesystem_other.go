//go:build !linux && !darwin

package sqlite

// networkFS names the network file system that path is on, where it can be
// known.
func networkFS(string) string { return "" }

//go:build !linux

package holdfast

// terminal is known only on Linux; elsewhere it is not shown.
func terminal() string { return "" }

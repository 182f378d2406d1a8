//go:build !linux

package holdfast

// terminal is not known off Linux, and not shown.
func terminal() string { return "" }

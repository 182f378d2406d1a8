//go:build !linux

package command

import "os"

// isTerminal reports whether a person looks at f, or the null device.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func columns(*os.File) int { return 80 }

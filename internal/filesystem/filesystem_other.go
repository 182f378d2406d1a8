//go:build !linux && !darwin

package filesystem

import (
	"fmt"
	"runtime"
)

// Network names the network file system that path is on, where it can be
// known.
func Network(string) string { return "" }

// Local refuses file systems that are not known to be this kernel's alone.
func Local(path string) error {
	return fmt.Errorf("%s: not known to be local on %s", path, runtime.GOOS)
}

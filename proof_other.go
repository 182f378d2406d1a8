//go:build unix && !linux

package holdfast

import (
	"fmt"
	"runtime"
)

// localFS: only on Linux is it known which file systems are local.
func localFS(dir string) error {
	return fmt.Errorf("%s: not known to be local on %s", dir, runtime.GOOS)
}

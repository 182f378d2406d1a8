//go:build unix

package cli

import (
	"os"
	"syscall"
)

// replace runs a program in place of this one, with the same arguments.
func replace(path string) error {
	return syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
}

//go:build unix

package directory

import (
	"syscall"
	"testing"
)

// plant makes something that is no file, and that opening would wait for.
func plant(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

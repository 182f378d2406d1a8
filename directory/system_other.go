//go:build !unix

package directory

import "os"

const (
	nonblock = 0
	dirsSync = false
)

func touch(root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0}, 0); err != nil {
		return err
	}
	return f.Sync()
}

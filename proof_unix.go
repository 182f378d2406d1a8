//go:build unix

package holdfast

import (
	"fmt"
	"os"
	"syscall"

	"github.com/holdfast-lock/holdfast/internal/filesystem"
	"golang.org/x/sys/unix"
)

// prepareProofDir makes the directory and refuses one that others can change or
// that is not on a local file system.
func prepareProofDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm()&0o077 != 0 || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory of this user alone", dir)
	}
	return filesystem.Local(dir)
}

func lockNew(temporary, path string) (*os.File, error) {
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		os.Remove(temporary)
		file.Close()
		return nil, err
	}
	return file, nil
}

func openProof(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return file, nil
}

// named says whether a file still has its name.
func named(file *os.File) bool {
	info, err := file.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink > 0
}

// canLock tries for a shared lock and gives it back at once.
func canLock(file *os.File) bool {
	if unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		return false
	}
	unix.Flock(int(file.Fd()), unix.LOCK_UN)
	return true
}

package liveness

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/holdfast-lock/holdfast/internal/filesystem"
	"golang.org/x/sys/unix"
)

// kernelBoot is the boot id of the running kernel, or "".
func kernelBoot() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// strangers says whether what is at path belongs to another user.
func strangers(path string) bool {
	var stat unix.Stat_t
	return unix.Stat(path, &stat) == nil && int(stat.Uid) != os.Geteuid()
}

// prepareProofDir makes the directory and refuses one that others can change or
// whose files could be mistaken for others.
func prepareProofDir(dir string) error {
	info, err := os.Lstat(dir)
	if os.IsNotExist(err) {
		if err := distinct(filepath.Dir(dir)); err != nil { // and leave nothing there
			return err
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
			return err
		}
		info, err = os.Lstat(dir)
	}
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm()&0o077 != 0 || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory of this user alone", dir)
	}
	return distinct(dir)
}

func distinct(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return filesystem.Distinct(d)
}

// lockNew makes the file of a session, locks it and writes into it which file it
// is, before it gets its name.
func lockNew(path, session, boot string) (*os.File, error) {
	file, err := os.OpenFile(path+unnamed, os.O_CREATE|os.O_EXCL|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	var text string
	if err == nil {
		text, err = identity(file, session, boot)
	}
	if err == nil {
		_, err = file.WriteString(text)
	}
	if err == nil {
		err = os.Rename(path+unnamed, path)
	}
	if err != nil {
		os.Remove(path + unnamed)
		file.Close()
		return nil, err
	}
	return file, nil
}

// openProof opens the file of a session, if it is what it says of itself.
func openProof(path, session, boot string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	want, err := identity(file, session, boot)
	if err == nil {
		text := make([]byte, len(want)+1)
		n, _ := io.ReadFull(file, text)
		if string(text[:n]) != want {
			err = fmt.Errorf("%s is not the file that its session has locked", path)
		}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// identity is what the file of a session says: whose it is, and which file of
// which device in which boot of the kernel. A file that is what it says of itself
// is the one that its session has locked, because while the session lives
//
//   - its open file keeps its inode, so no other file of that file system has
//     the number, be it a copy or restored from a backup;
//   - the inode keeps its file system mounted, also after a lazy unmount, and
//     that keeps the number of its device: a snapshot, or a copy of the image
//     mounted beside it, has another;
//   - the boot lasts: a machine that was started from a copy of the disk has
//     another.
//
// A bind mount, another mount or user namespace, and a container that the
// directory is mounted into show the file itself, with its numbers and its lock.
// Where they show another boot (systemd-nspawn) nothing is known.
//
// File systems on which two files, each with locks of its own, may have the same
// numbers are refused: see filesystem.Distinct. No file can reveal a machine that
// was copied with its memory, or a process that was checkpointed, and so was dead,
// and is restored.
func identity(file *os.File, session, boot string) (string, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return "", err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", fmt.Errorf("%s is not a regular file", file.Name())
	}
	if err := filesystem.Distinct(file); err != nil {
		return "", err
	}
	return fmt.Sprintf("session %s\nboot %s\ndevice %d\ninode %d\n", session, boot, stat.Dev, stat.Ino), nil
}

// named says whether a file still has its name.
func named(file *os.File) bool {
	var stat unix.Stat_t
	return unix.Fstat(int(file.Fd()), &stat) == nil && stat.Nlink > 0
}

// canLock tries for a shared lock and gives it back at once.
func canLock(file *os.File) bool {
	if unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		return false
	}
	unix.Flock(int(file.Fd()), unix.LOCK_UN)
	return true
}

// abandoned says whether no live session has the file locked. It may be a copy.
func abandoned(path string) bool {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	return canLock(file)
}

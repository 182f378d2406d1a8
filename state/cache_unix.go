//go:build linux || darwin

package state

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// plainly opens what is there, without following a link or waiting for a FIFO.
const plainly = unix.O_NOFOLLOW | unix.O_NONBLOCK

// tag keeps the directory out of backups, and says that what is in it is ours.
const (
	tagName = "CACHEDIR.TAG"
	tag     = "Signature: 8a477f597d28d172789f06886806bc55\n# Blobs of holdfast. They may be removed at any time; see https://bford.info/cachedir/\n"
)

// openCacheDir makes a directory, or opens one that belongs to this user alone
// and has nothing in it that is not the cache's.
func openCacheDir(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.IsDir():
		return nil, errors.New("it is a symbolic link, or not a directory: name the directory itself")
	case int(stat.Uid) != os.Geteuid():
		return nil, fmt.Errorf("it belongs to user %d: name a directory of your own", stat.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("others can write to it (mode %04o): chmod go-w, or name another directory", info.Mode().Perm())
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if is, err := root.Stat("."); err != nil || !os.SameFile(info, is) {
		root.Close()
		return nil, errors.New("it changes while it is opened")
	}
	if err := markCacheDir(root); err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// markCacheDir makes the tag in an empty directory.
func markCacheDir(root *os.Root) error {
	text, err := root.ReadFile(tagName)
	if err == nil && string(text) == tag {
		return nil
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		// A process may have died while it made the tag.
		if id, _, _ := strings.Cut(name, "."); name != countName && !isID(id, new([32]byte)) && (name != tagName || !strings.HasPrefix(tag, string(text))) {
			return fmt.Errorf("it has %q in it, which is not a cache's: name an empty directory", name)
		}
	}
	return root.WriteFile(tagName, []byte(tag), 0o600)
}

// describe tells what a file is now.
func describe(file *os.File) (fileInfo, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(file.Fd()), &st)
	return infoOf(&st), err
}

// busy says whether a lock failed because another has it.
func busy(err error) bool { return errors.Is(err, unix.EWOULDBLOCK) }

// full says whether there is no room on a disk, or for this user.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

//go:build linux || darwin

package state

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// A folder is an open directory. What is in it is named by single components,
// and no symbolic link is followed: nothing planted there leads elsewhere, and
// all that one call does happens in the same directory.
type folder struct {
	fd   int
	path string // for messages
}

// openFolder opens a directory by a path, through whatever links it has.
func openFolder(path string) (folder, error) {
	return open(unix.AT_FDCWD, path, path, 0)
}

// openBelow opens a directory in the one at a path.
func openBelow(path, name string) (folder, error) {
	path += "/" + name
	return open(unix.AT_FDCWD, path, path, unix.O_NOFOLLOW)
}

func (f folder) open(name string) (folder, error) {
	return open(f.fd, name, f.path+"/"+name, unix.O_NOFOLLOW)
}

func open(at int, name, path string, flags int) (folder, error) {
	fd, err := openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|flags, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		err = errNotFolder
	}
	if err != nil {
		return folder{}, failed("open", path, err)
	}
	return folder{fd, path}, nil
}

func (f folder) close() { unix.Close(f.fd) }

func (f folder) failed(op, name string, err error) error {
	return failed(op, f.path+"/"+name, err)
}

// refresh makes a file server's client ask what has changed in the folder. Otherwise it
// may answer from its cache for a while.
func (f folder) refresh() { fresh(f.fd) }

// mkdir makes a directory for those who may use this one, unless this one is sticky:
// there names belong to whoever made them.
func (f folder) mkdir(name string) error {
	if err := unix.Mkdirat(f.fd, name, 0o777); err != nil {
		return f.failed("mkdir", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err == nil && st.Mode&unix.S_ISVTX == 0 {
		unix.Fchmodat(f.fd, name, uint32(st.Mode)&(0o777|unix.S_ISGID), 0)
	}
	return nil
}

// list names what is in a folder, at most n, and says whether there is more.
func (f folder) list(n int) (names []string, more bool, err error) {
	f.refresh()
	buf := make([]byte, 4096)
	for {
		got, err := again(func() (int, error) { return unix.ReadDirent(f.fd, buf) })
		if err != nil {
			return nil, false, failed("list", f.path, err)
		}
		if got <= 0 {
			return names, false, nil
		}
		for part := buf[:got]; len(part) > 0; {
			used, _, next := unix.ParseDirent(part, n-len(names)+1, names)
			part, names = part[used:], next
			if len(names) > n {
				return names[:n], true, nil
			}
			if used == 0 {
				break
			}
		}
	}
}

// read returns what is in a small regular file, and what the file is.
func (f folder) read(name string, most int) ([]byte, fileInfo, error) {
	fd, info, err := f.openRegular(name)
	if err != nil {
		return nil, info, err
	}
	defer unix.Close(fd)
	if info.size > int64(most) {
		return nil, info, f.failed("read", name, errTooLong)
	}
	text := make([]byte, info.size)
	for n := 0; n < len(text); {
		got, err := again(func() (int, error) { return unix.Read(fd, text[n:]) })
		if err != nil {
			return nil, info, f.failed("read", name, err)
		}
		if got == 0 {
			return nil, info, f.failed("read", name, errTorn)
		}
		n += got
	}
	return text, info, nil
}

// openRegular opens a file to read it, and refuses whatever else goes by that
// name, without waiting for a FIFO's other end.
func (f folder) openRegular(name string) (int, fileInfo, error) {
	fd, err := openat(f.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		err = errNotRegular
	}
	if err != nil {
		return -1, fileInfo{}, f.failed("open", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, fileInfo{}, f.failed("stat", name, err)
	}
	if info := infoOf(&st); info.regular {
		return fd, info, nil
	}
	unix.Close(fd)
	return -1, fileInfo{}, f.failed("open", name, errNotRegular)
}

// stat describes a file by its name, as fresh as the file system has it.
func (f folder) stat(name string) (fileInfo, error) {
	info, err := statFresh(f.fd, name)
	return info, f.failed("stat", name, err)
}

// create makes a new file and leaves it open. Whoever may read the folder may read
// the file.
func (f folder) create(name string) (*os.File, error) {
	fd, err := openat(f.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, f.failed("create", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err == nil && st.Mode&0o044 != 0 {
		unix.Fchmod(fd, 0o600|uint32(st.Mode)&0o044)
	}
	return os.NewFile(uintptr(fd), f.path+"/"+name), nil
}

// touch gives a file the current time, by the clock of the host that keeps it.
func (f folder) touch(name string) error {
	_, err := again(func() (int, error) {
		return 0, unix.UtimesNanoAt(f.fd, name, nil, unix.AT_SYMLINK_NOFOLLOW)
	})
	return f.failed("touch", name, err)
}

func (f folder) rename(name string, to folder, as string) error {
	return f.failed("rename", name, unix.Renameat(f.fd, name, to.fd, as))
}

func (f folder) link(name, as string) error {
	return f.failed("link", as, unix.Linkat(f.fd, name, f.fd, as, 0))
}

func (f folder) remove(name string) error {
	return f.failed("remove", name, unix.Unlinkat(f.fd, name, 0))
}

// sync puts the names in a folder on disk.
func (f folder) sync() error {
	_, err := again(func() (int, error) { return 0, unix.Fsync(f.fd) })
	return failed("sync", f.path, err)
}

// identity tells a file from all others of this host.
func identity(file *os.File) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return "", err
	}
	return infoOf(&st).id(), nil
}

// lock takes the kernel's lock on a file of ours, which lasts as long as anyone has
// the file open.
func lock(file *os.File) error {
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

// locked says whether a process of this host has the file that goes by this
// name and identity locked. An error means that it cannot be known.
func (f folder) locked(name, id string) (bool, error) {
	fd, info, err := f.openRegular(name)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if info.id() != id {
		return false, f.failed("lock", name, errOther)
	}
	err = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

func infoOf(st *unix.Stat_t) fileInfo {
	return fileInfo{
		regular: st.Mode&unix.S_IFMT == unix.S_IFREG, size: st.Size, links: uint64(st.Nlink),
		dev: uint64(st.Dev), ino: st.Ino, mtime: unix.TimespecToNsec(st.Mtim), ctime: unix.TimespecToNsec(st.Ctim),
	}
}

func openat(at int, name string, flags int, mode uint32) (int, error) {
	return again(func() (int, error) { return unix.Openat(at, name, flags|unix.O_CLOEXEC, mode) })
}

// again repeats what a signal has interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// stale says whether what was opened is gone from its server, so that opening
// it again may help.
func stale(err error) bool { return errors.Is(err, unix.ESTALE) }

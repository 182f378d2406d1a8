package state

import "golang.org/x/sys/unix"

// fresh makes a file server's client ask the server for an open file's attributes.
func fresh(fd int) {
	var st unix.Statx_t
	unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_MTIME|unix.STATX_CTIME, &st)
}

// statFresh looks a name up, at the file server if there is one.
func statFresh(at int, name string) (fileInfo, error) {
	var x unix.Statx_t
	err := unix.Statx(at, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &x)
	if err == unix.ENOSYS || err == unix.EINVAL || err == unix.EPERM {
		var st unix.Stat_t
		err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		return infoOf(&st), err
	}
	return fileInfo{
		regular: x.Mode&unix.S_IFMT == unix.S_IFREG, size: int64(x.Size), links: uint64(x.Nlink),
		dev: unix.Mkdev(x.Dev_major, x.Dev_minor), ino: x.Ino,
		mtime: x.Mtime.Sec*1e9 + int64(x.Mtime.Nsec), ctime: x.Ctime.Sec*1e9 + int64(x.Ctime.Nsec),
	}, err
}

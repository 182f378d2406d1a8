package filesystem

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Magic numbers that x/sys does not have.
const (
	zfs      = 0x2fc12fc1
	bcachefs = 0xca451a4e
)

// Local refuses file systems that are not known to be this kernel's alone.
func Local(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return err
	}
	return local(&fs, path)
}

func local(fs *unix.Statfs_t, path string) error {
	switch uint32(fs.Type) {
	case unix.TMPFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.RAMFS_MAGIC, unix.F2FS_SUPER_MAGIC, zfs, bcachefs:
		return nil
	}
	return fmt.Errorf("%s is on a file system of type %#x, not known to be local", path, fs.Type)
}

// Distinct refuses a file unless it is on a local file system where no other
// file has, at the same time, both its device and its inode number and locks of
// its own. An overlay is refused: it keeps locks apart from those of its layers,
// and whether it has numbers of its own depends on the kernel and on how it was
// mounted. So is bcachefs, where a file and its snapshots have the same numbers.
func Distinct(file *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return err
	}
	switch uint32(fs.Type) {
	case unix.OVERLAYFS_SUPER_MAGIC, bcachefs:
		return fmt.Errorf("%s is on a file system of type %#x, where a file may seem to be another", file.Name(), fs.Type)
	}
	return local(&fs, file.Name())
}

// networks are the file systems whose locks other hosts, or the kernel itself,
// may not see, by their magic number.
var networks = map[uint32]string{
	0x6969:     "nfs",
	0x517b:     "smb",
	0xff534d42: "cifs",
	0xfe534d42: "smb2",
	0x65735546: "fuse",
	0x01021997: "9p",
	0x5346414f: "afs",
	0x6b414653: "afs",
	0x73757245: "coda",
	0x00c36400: "ceph",
	0x0bd00bd0: "lustre",
	0x01161970: "gfs2",
	0x7461636f: "ocfs2",
	0x47504653: "gpfs",
	0xaad7aaea: "panfs",
	0x19830326: "beegfs",
	0x20030528: "orangefs",
	0x786f4256: "vboxsf",
	0xbacbacbc: "vmhgfs",
	0x564c:     "ncp",
}

// Network names the network file system that path is on, or nothing.
func Network(path string) string {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return "" // opening the file says it better
	}
	return networks[uint32(s.Type)]
}

// Mounted says whether what is at path is mounted there by itself, as a single
// file can be.
func Mounted(path string) bool {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &stat)
	if err == nil && stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	}
	return listed(path) // before Linux 5.8
}

// mountinfo is the list of mounts that this thread sees.
func mountinfo() ([]byte, error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil { // before Linux 3.17
		text, err = os.ReadFile("/proc/self/mountinfo")
	}
	return text, err
}

// listed is Mounted, according to the list of mounts.
func listed(path string) bool {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	text, err := mountinfo()
	if err != nil {
		return false
	}
	escape := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == escape.Replace(path) {
			return true
		}
	}
	return false
}

// Overlay says whether path is seen through an overlay.
func Overlay(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC
}

// Volatile says whether what is at path is gone when the machine restarts.
func Volatile(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC)
}

// Options are the mount options of the file system that path is on: those of
// the file system itself, not of the mount point.
func Options(path string) []string {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return nil
	}
	text, err := mountinfo()
	if err != nil {
		return nil
	}
	dev := fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	for line := range strings.Lines(string(text)) {
		place, fs, found := strings.Cut(line, " - ")
		places, of := strings.Fields(place), strings.Fields(fs)
		if found && len(places) > 2 && places[2] == dev && len(of) > 2 {
			return strings.Split(of[2], ",")
		}
	}
	return nil
}

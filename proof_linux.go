package holdfast

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// localFS refuses file systems whose locks may not be this kernel's alone.
func localFS(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	switch uint32(fs.Type) {
	case unix.TMPFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.RAMFS_MAGIC, unix.F2FS_SUPER_MAGIC, 0x2fc12fc1 /* zfs */, 0xca451a4e /* bcachefs */ :
		return nil
	}
	return fmt.Errorf("%s is on a file system of type %#x, not known to be local", dir, fs.Type)
}

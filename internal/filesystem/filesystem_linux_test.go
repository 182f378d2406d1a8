package filesystem

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestNetwork(t *testing.T) {
	for magic, want := range map[uint32]string{
		unix.NFS_SUPER_MAGIC:       "nfs",
		unix.SMB_SUPER_MAGIC:       "smb",
		unix.CIFS_SUPER_MAGIC:      "cifs",
		unix.SMB2_SUPER_MAGIC:      "smb2",
		unix.FUSE_SUPER_MAGIC:      "fuse",
		unix.V9FS_MAGIC:            "9p",
		unix.AFS_SUPER_MAGIC:       "afs",
		unix.AFS_FS_MAGIC:          "afs",
		unix.CODA_SUPER_MAGIC:      "coda",
		unix.CEPH_SUPER_MAGIC:      "ceph",
		unix.EXT4_SUPER_MAGIC:      "",
		unix.TMPFS_MAGIC:           "",
		unix.OVERLAYFS_SUPER_MAGIC: "",
	} {
		if got := networks[magic]; got != want {
			t.Errorf("file system %#x is %q, want %q", magic, got, want)
		}
	}
}

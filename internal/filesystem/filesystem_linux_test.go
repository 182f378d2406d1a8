package filesystem

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-lock/holdfast/internal/mounts"
	"golang.org/x/sys/unix"
)

// A file that is mounted by itself is known by the attribute that the kernel gives
// it and, on those that do not, by the list of mounts.
func TestMounted(t *testing.T) {
	mounts.Private(t)
	dir := t.TempDir()
	file, odd, link := filepath.Join(dir, "file"), filepath.Join(dir, "an odd\\\tname\n"), filepath.Join(dir, "link")
	for _, name := range []string{file, odd} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(odd, link); err != nil {
		t.Fatal(err)
	}
	check := func(want bool) {
		t.Helper()
		for _, name := range []string{odd, link} {
			if Mounted(name) != want || listed(name) != want {
				t.Errorf("%q is mounted: %v, in the list: %v, want %v", name, Mounted(name), listed(name), want)
			}
		}
		if Mounted(file) || listed(file) {
			t.Errorf("%q is taken for a mount", file)
		}
	}
	check(false)
	mounts.Mount(t, "--bind", file, odd)
	check(true)
}

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

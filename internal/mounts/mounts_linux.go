// Package mounts lets a test mount file systems that nobody else sees.
package mounts

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Private gives the test's goroutine mounts of its own. They are gone with it,
// however it ends; other goroutines do not see them, processes that it starts do.
func Private(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: only root can mount")
	}
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err != nil {
		t.Skipf("NOT TESTED: no mounts of one's own: %v", err)
	}
}

// Mount is mount(8), after Private. The last of args is the mount point, which is
// unmounted when the test cleans up.
func Mount(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: mount %q: %v: %s", args, err, out)
	}
	t.Cleanup(func() { unix.Unmount(args[len(args)-1], unix.MNT_DETACH) })
}

// Format makes a file system in a new file of size MiB.
func Format(t testing.TB, kind, image string, size int64) {
	t.Helper()
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size << 20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs."+kind, "-q", image).CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: mkfs.%s: %v: %s", kind, err, out)
	}
}

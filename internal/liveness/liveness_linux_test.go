package liveness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/mounts"
	"golang.org/x/sys/unix"
)

// shell runs a script that is to succeed.
func shell(t *testing.T, format string, args ...any) {
	t.Helper()
	script := fmt.Sprintf(format, args...)
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func mkdirs(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// alive makes the proof of a session that lives.
func alive(t *testing.T, dir string) (session string, own *Proof) {
	t.Helper()
	session = fmt.Sprintf("%032x", len(t.Name()))
	p := &Dir{Path: dir}
	if own = p.Make(session); own == nil {
		t.Skipf("NOT TESTED: %s is on a file system where there is no proof", dir)
	}
	t.Cleanup(func() { own.File.Close() })
	return session, own
}

// The lock of a file proves nothing about another that only looks like it: a
// copy, a snapshot, or what an overlay shows. Whoever looks there never takes the
// living for dead. Who looks at the file itself, by whatever way, knows of a
// death at once.
func TestProofIsOfOneFile(t *testing.T) {
	type way struct {
		dir, session string // where the judge looks, and for whom
	}
	for _, test := range []struct {
		name string
		same bool // it is the file itself
		home func(t *testing.T, top string) (dir string)
		view func(t *testing.T, top, dir, session string) way
	}{
		{"the file itself", true, plainHome, func(t *testing.T, top, dir, session string) way {
			return way{dir, session}
		}},
		{"copy", false, plainHome, func(t *testing.T, top, dir, session string) way {
			shell(t, "cp -a %s %s/copy", dir, top)
			return way{top + "/copy", session}
		}},
		{"copy in its place", false, plainHome, func(t *testing.T, top, dir, session string) way {
			shell(t, "mv %s %s/old; cp -a %s/old %s", dir, top, top, dir)
			return way{dir, session}
		}},
		{"archive", false, plainHome, func(t *testing.T, top, dir, session string) way {
			shell(t, "tar -C %s -cf %s/tar run; mkdir %s/new; tar -C %s/new -xf %s/tar", top, top, top, top, top)
			return way{top + "/new/run", session}
		}},
		{"name of another session", false, plainHome, func(t *testing.T, top, dir, session string) way {
			other := "f" + session[1:]
			shell(t, "ln %s/%s %s/%s", dir, session, dir, other)
			return way{dir, other}
		}},
		{"bind mount", true, plainHome, func(t *testing.T, top, dir, session string) way {
			mounts.Private(t)
			mkdirs(t, top+"/bind")
			mounts.Mount(t, "--bind", top, top+"/bind")
			return way{top + "/bind/run", session}
		}},
		{"another boot, as a container of systemd has one", false, plainHome, func(t *testing.T, top, dir, session string) way {
			mounts.Private(t)
			shell(t, "echo 01234567-89ab-cdef-0123-456789abcdef >%s/boot", top)
			mounts.Mount(t, "--bind", top+"/boot", "/proc/sys/kernel/random/boot_id")
			return way{dir, session}
		}},
		{"boot that the judge cannot read", false, plainHome, func(t *testing.T, top, dir, session string) way {
			mounts.Private(t)
			mounts.Mount(t, "-t", "tmpfs", "none", "/proc/sys/kernel/random")
			return way{dir, session}
		}},
		{"overlay", false, plainHome, func(t *testing.T, top, dir, session string) way {
			mounts.Private(t)
			return way{overlay(t, top, "xino=off") + "/run", session}
		}},
		{"overlay of another file system", false, tmpfsHome, func(t *testing.T, top, dir, session string) way {
			return way{overlay(t, top, "xino=off") + "/run", session}
		}},
		{"overlay of another file system with xino", false, tmpfsHome, func(t *testing.T, top, dir, session string) way {
			return way{overlay(t, top, "xino=on") + "/run", session}
		}},
		{"copy of a disk", false, diskHome, func(t *testing.T, top, dir, session string) way {
			shell(t, "sync -f %s; cp %s/image %s/image2; mkdir %s/disk2", dir, top, top, top)
			mounts.Mount(t, "-o", "loop", top+"/image2", top+"/disk2")
			return way{top + "/disk2/run", session}
		}},
		{"copy of a disk in its place", false, diskHome, func(t *testing.T, top, dir, session string) way {
			shell(t, "sync -f %s; cp %s/image %s/image2; umount -l %s/disk", dir, top, top, top)
			mounts.Mount(t, "-o", "loop", top+"/image2", top+"/disk")
			return way{top + "/disk/run", session}
		}},
		{"snapshot", false, btrfsHome, func(t *testing.T, top, dir, session string) way {
			shell(t, "sync -f %s; btrfs subvolume snapshot %s/disk/volume %s/disk/snapshot", dir, top, top)
			return way{top + "/disk/snapshot/run", session}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			top := t.TempDir()
			session, own := alive(t, test.home(t, top))
			dir := filepath.Dir(own.path)
			at := test.view(t, top, dir, session)
			before := &Dir{Path: at.dir}
			if before.Dead(at.session) {
				t.Error("the living is proven dead")
			}
			own.File.Close() // it dies
			for i, judge := range []*Dir{before, {Path: at.dir}} {
				if got := judge.Dead(at.session); got != test.same {
					t.Errorf("judge %d: after its death the proof is %v, want %v", i, got, test.same)
				}
				judge.Close()
			}
		})
	}
}

func plainHome(_ *testing.T, top string) string { return filepath.Join(top, "run") }

// overlay mounts one that shows dir, and returns where.
func overlay(t *testing.T, dir, option string) string {
	t.Helper()
	at := t.TempDir()
	mkdirs(t, at+"/upper", at+"/work", at+"/merged")
	mounts.Mount(t, "-t", "overlay", "overlay", "-o", fmt.Sprintf("%s,lowerdir=%s,upperdir=%s/upper,workdir=%s/work", option, dir, at, at), at+"/merged")
	return at + "/merged"
}

func tmpfsHome(t *testing.T, top string) string {
	mounts.Private(t)
	mounts.Mount(t, "-t", "tmpfs", "-o", "mode=0700", "none", top)
	return filepath.Join(top, "run")
}

func diskHome(t *testing.T, top string) string {
	mounts.Private(t)
	mounts.Format(t, "ext4", top+"/image", 16)
	mkdirs(t, top+"/disk")
	mounts.Mount(t, "-o", "loop", top+"/image", top+"/disk")
	return top + "/disk/run"
}

func btrfsHome(t *testing.T, top string) string {
	mounts.Private(t)
	mounts.Format(t, "btrfs", top+"/image", 128)
	mkdirs(t, top+"/disk")
	mounts.Mount(t, "-o", "loop", top+"/image", top+"/disk")
	shell(t, "btrfs subvolume create %s/disk/volume", top)
	return top + "/disk/volume/run"
}

// Where the kernel does not tell its boot nobody gives a proof, for its next boot
// would look the same.
func TestNoProofWithoutBoot(t *testing.T) {
	mounts.Private(t)
	mounts.Mount(t, "-t", "tmpfs", "none", "/proc/sys/kernel/random")
	p := &Dir{Path: filepath.Join(t.TempDir(), "run")}
	if own := p.Make(strings.Repeat("0", 32)); own != nil {
		t.Errorf("there is a proof: %s", own.path)
		p.Drop(own)
	}
}

// A session that has ended in order is not proven dead: what it held it has
// given back.
func TestNoProofOfTheEnd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	session, own := alive(t, dir)
	judge := &Dir{Path: dir}
	if !judge.Near(session) {
		t.Fatal("its file is not seen")
	}
	judge.Drop(own)
	if judge.Dead(session) {
		t.Error("it is proven dead")
	}
}

// On an overlay nobody gives a proof: who sees the layer below sees other locks.
// In a container, whose temporary directory is on one, the proof is in memory.
func TestNoProofOnOverlay(t *testing.T) {
	mounts.Private(t)
	merged := overlay(t, t.TempDir(), "xino=off")
	given := &Dir{Path: merged + "/run"}
	if own := given.Make(strings.Repeat("0", 32)); own != nil {
		t.Errorf("there is a proof on an overlay: %s", own.path)
		given.Drop(own)
	}
	if _, err := os.Lstat(merged + "/run"); !os.IsNotExist(err) {
		t.Errorf("a directory was made that is not used: %v", err)
	}

	t.Setenv("TMPDIR", merged)
	t.Setenv("XDG_RUNTIME_DIR", "")
	if isDir("/run/user") {
		mounts.Mount(t, "-t", "tmpfs", "none", "/run/user")
	}
	mounts.Mount(t, "-t", "tmpfs", "-o", "mode=1777", "none", "/dev/shm")
	own := (&Dir{}).Make(strings.Repeat("0", 32))
	if own == nil {
		t.Fatal("no proof is given where the temporary directory is on an overlay")
	}
	defer own.File.Close()
	if want := fmt.Sprintf("/dev/shm/holdfast-%d", os.Geteuid()); filepath.Dir(own.path) != want {
		t.Errorf("the proof is %s, want it in %s", own.path, want)
	}

	// What is mounted into a container may be used, whatever it is mounted on.
	mkdirs(t, merged+"/run")
	mounts.Mount(t, "--bind", filepath.Dir(own.path), merged+"/run")
	if judge := (&Dir{Path: merged + "/run"}); !judge.Near(filepath.Base(own.path)) || judge.Dead(filepath.Base(own.path)) {
		t.Error("a directory that is mounted on an overlay is not used")
	}
}

// Root that has come by su finds the runtime directory of its caller in the environment.
// A directory of root's in that would keep the caller from having one there.
func TestNoProofInAStrangersDirectory(t *testing.T) {
	mounts.Private(t)
	xdg := t.TempDir()
	if err := os.Chown(xdg, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", xdg)
	t.Setenv("TMPDIR", t.TempDir())
	own := (&Dir{}).Make(strings.Repeat("0", 32))
	if left, err := os.ReadDir(xdg); err != nil || len(left) > 0 {
		t.Errorf("in the directory of another user: %v, %v", left, err)
	}
	if own == nil {
		t.Fatal("no proof is given where XDG_RUNTIME_DIR is another user's")
	}
	(&Dir{}).Drop(own)
}

// What dead sessions have left goes a day later, and nothing else.
func TestProofsAreTidied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	mkdirs(t, dir)
	old := time.Now().Add(-leftover - time.Hour)
	id := func(c string) string { return strings.Repeat(c, 32) }
	p := &Dir{Path: dir}
	var living []*Proof
	for _, c := range []string{"a", "b"} {
		own := p.Make(id(c))
		if own == nil {
			t.Skipf("NOT TESTED: %s is on a file system where there is no proof", dir)
		}
		defer own.File.Close()
		living = append(living, own)
	}
	living[1].File.Close() // dies, just now
	for _, name := range []string{id("c"), id("d") + unnamed, id("d") + ".123" + unnamed, id("e"), id("2") + "." + seen, id("3") + "." + seen, "notes", id("f") + ".txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, id("1")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{id("a"), id("c"), id("d") + unnamed, id("d") + ".123" + unnamed, id("1"), id("2") + "." + seen, "notes", id("f") + ".txt"} {
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	ancient := time.Now().Add(-record.MaxTTL - time.Hour)
	if err := os.Chtimes(filepath.Join(dir, id("3")+"."+seen), ancient, ancient); err != nil {
		t.Fatal(err)
	}
	next := &Dir{Path: dir}
	own := next.Make(id("9"))
	defer next.Drop(own)
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{id("1"), id("2") + "." + seen, id("9"), id("a"), id("b"), id("e"), id("f") + ".txt", "notes"}
	if !slices.Equal(left, want) {
		t.Errorf("left are\n%q, want\n%q", left, want)
	}
	if judge := (&Dir{Path: dir}); judge.Dead(id("a")) || !judge.Dead(id("b")) {
		t.Error("the living is proven dead, or the dead is not")
	}
}

// Sightings of holds that are over do not gather: also a process that only looks removes them.
func TestSightingsAreBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	p := &Dir{Path: dir}
	if !p.usable() {
		t.Skipf("NOT TESTED: %s is on a file system where there is no proof", dir)
	}
	other, _ := json.Marshal(sighted{Boot: "another", TTL: 1000})
	for i := range 3 * mostSightings {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%032x.%s", i, seen)), other, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	session := func(i int) string { return fmt.Sprintf("f%031x", i) }
	const alive = 50
	for i := range 2000 {
		if i < alive || i%100 == 0 { // others have these in between
			p.Recall(session(i), record.Session{Nonce: "1", TTL: 3_600_000, Detached: true})
		} else {
			p.sights++
		}
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) > mostSightings+300 {
		t.Errorf("%d files are left", len(names))
	}
	for i := range alive {
		if _, err := os.Stat(filepath.Join(dir, session(i)+"."+seen)); err != nil {
			t.Errorf("a sighting of a hold that lives: %v", err)
		}
	}
}

//go:build linux

package process

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A full disk is said to be full; what is in the directory stays, and who holds a
// lock meanwhile still does.
func TestFullDirectory(t *testing.T) {
	t.Parallel()
	w := newDir(t)
	dir := filepath.Join(w.dir, "small")
	must(t, os.Mkdir(dir, 0o700))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Skipf("SKIPPED: no small disk can be had here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	w.open("dir:" + dir)
	w.holdfast("run", "x", "--", "true").wantStatus(0)
	user := w.runActor([]string{"--ttl", "5", "other"}, "-stdin")
	w.after(0, 1)

	filler, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	for size := 4096; size > 0; {
		if _, err := filler.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	must(t, filler.Close())
	before := w.load("x")
	w.refused(w.holdfast("run", "--ttl", "1", "x", "--", "touch", "ran"), 69, "no space left on device", dir)
	if after := w.load("x"); after.Version != before.Version {
		t.Errorf("version %d has become %d %q", before.Version, after.Version, after.Value)
	}
	must(t, os.Remove(filler.Name()))
	w.holdfast("run", "x", "--", "true").wantStatus(0)
	user.end()
	user.wantStatus(0)
	w.sweep()
}

// What others have put into the directory, or have spoilt there, is named or
// left alone: nobody waits for a pipe, follows a link out of the directory, or
// holds a lock by a record that is not whole.
func TestPlanted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		plant func(p *planted)
		says  []string // none: it does not matter
	}{
		{"file beside a version", func(p *planted) { p.file(p.key + "/notes") }, nil},
		{"file of a network file system", func(p *planted) { p.file(p.key + "/.nfs000000000000000100000001") }, nil},
		{"pipe beside a version", func(p *planted) { p.pipe(p.key + "/pipe") }, nil},
		{"pipe as a version", func(p *planted) { p.pipe(filepath.Dir(p.version) + newer) }, []string{"does not answer"}},
		{"link as a version", func(p *planted) { p.link(filepath.Dir(p.version) + newer) }, []string{"does not answer"}},
		{"link among the names", func(p *planted) { p.link(p.dir + "/names/" + strings.Repeat("a", 64)) }, nil},
		{"file and pipe among the names", func(p *planted) { p.file(p.dir + "/names/notes"); p.pipe(p.dir + "/names/pipe") }, nil},
		{"pipe and link in tmp", func(p *planted) { p.pipe(p.dir + "/tmp/pipe"); p.link(p.dir + "/tmp/link") }, nil},
		{"pipe and link in wake", func(p *planted) { p.pipe(p.dir + "/wake/all.x"); p.link(p.dir + "/wake/all.y") }, nil},
		{"record cut off", func(p *planted) { must(p.t, os.Truncate(p.record, 20)) }, []string{"damaged"}},
		{"record emptied", func(p *planted) { must(p.t, os.Truncate(p.record, 0)) }, []string{"damaged"}},
		{"byte of a record turned", func(p *planted) {
			text, err := os.ReadFile(p.record)
			must(p.t, err)
			text[len(text)-1] ^= 1
			must(p.t, os.WriteFile(p.record, text, 0o600))
		}, []string{"damaged"}},
		{"link as a record", func(p *planted) {
			must(p.t, os.Rename(p.record, p.outside+"/record"))
			must(p.t, os.Symlink(p.outside+"/record", p.record))
		}, []string{"record-"}},
		{"pipe as a record", func(p *planted) { must(p.t, os.Remove(p.record)); must(p.t, syscall.Mkfifo(p.record, 0o600)) }, []string{"record-"}},
		{"directory as a record", func(p *planted) { must(p.t, os.Remove(p.record)); must(p.t, os.Mkdir(p.record, 0o700)) }, []string{"record-"}},
		{"link as the names", func(p *planted) {
			must(p.t, os.Rename(filepath.Join(p.dir, "names"), p.outside+"/names"))
			must(p.t, os.Symlink(p.outside+"/names", filepath.Join(p.dir, "names")))
		}, []string{"names"}},
		{"names gone", func(p *planted) { must(p.t, os.RemoveAll(filepath.Join(p.dir, "names"))) }, []string{"names"}},
		{"open to everyone", func(p *planted) { must(p.t, os.Chmod(p.dir, 0o777)) }, []string{"chmod o-w"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newDirectory(t)
			w.holdfast("run", "x", "--", "true").wantStatus(0)
			p := &planted{world: w, dir: strings.TrimPrefix(w.target, "dir:"), outside: filepath.Join(w.dir, "outside")}
			must(t, os.Mkdir(p.outside, 0o700))
			p.key = filepath.Dir(p.find("names/*/version-*"))
			w.holdfast("acquire", "--for", "1h", "held").wantStatus(0)
			p.version = p.find("names/*/version-*[^e]")
			p.record = p.find("names/record-*" + p.version[strings.LastIndex(p.version, "-")+1:])
			c.plant(p)
			before := p.seen()
			if c.says == nil {
				w.holdfast("run", "x", "--", "true").wantStatus(0)
				w.holdfast("run", "y", "--", "true").wantStatus(0)
				w.holdfast("list").wantStatus(0)
				_, err := w.store.Store.Sweep(t.Context(), 0)
				must(t, err)
			} else {
				w.refused(w.holdfast("run", "--ttl", "1", "-w", "5", "held", "--", "touch", "ran"), 69, append(c.says, p.dir)...)
			}
			if after := p.seen(); after != before {
				t.Errorf("outside of the directory was %q, and is %q", before, after)
			}
		})
	}
}

const newer = "/version-9000000000000000-AAAAAAAAAAAAAAAAAAAAAAAAAA"

// A planted directory has something in it that is not ours.
type planted struct {
	*world
	dir             string
	key             string // the directory of a name that is free
	version, record string // of one that is held
	outside         string // where nothing of ours has business
}

// find is the one file that matches.
func (p *planted) find(pattern string) string {
	p.t.Helper()
	all, err := filepath.Glob(filepath.Join(p.dir, pattern))
	must(p.t, err)
	if len(all) != 1 {
		p.t.Fatalf("%s are %q, want one", pattern, all)
	}
	return all[0]
}

func (p *planted) file(path string) { must(p.t, os.WriteFile(path, []byte("dear diary\n"), 0o600)) }

func (p *planted) pipe(path string) { must(p.t, syscall.Mkfifo(path, 0o600)) }

func (p *planted) link(path string) { must(p.t, os.Symlink(p.outside, path)) }

// seen is what is outside.
func (p *planted) seen() string {
	p.t.Helper()
	var all []string
	must(p.t, filepath.Walk(p.outside, func(path string, info os.FileInfo, err error) error {
		all = append(all, path)
		return err
	}))
	return strings.Join(all, " ")
}

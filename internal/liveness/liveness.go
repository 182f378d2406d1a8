// Package liveness detects, on one host, that a process is gone, so that nobody there has to wait
// for a TTL. Each session holds an exclusive kernel lock (flock) on a small file named after its
// random id, in a runtime directory of its user. The kernel releases the lock when the last process
// that has the file open is gone, and at no other time. A process that gets a shared lock on that
// very file, not on another that looks like it (see identity), knows that the session is dead. No
// file, no permission, another directory, another host: nothing is known, and the TTL decides. The
// proof is never a process id, which is reused and differs between containers.
//
// The file is locked under a temporary name, then renamed, and only then is the session
// opened: nobody can meet an unlocked file of a live session. When a session ends in order,
// the name goes first: a file without a name proves nothing. A locked file never delays a
// death by TTL. `holdfast run` hands the open file to its guard and command.
//
// A kernel lock proves something only about the very file that was locked. So before it gets
// its name, the file says which one it is: the session, the boot, device and inode. A live
// session keeps its file open, so nothing else can have these numbers in that boot: a copy
// has another inode, a snapshot or a copied disk another device, a machine that was started
// from the copy another boot. An overlay is refused on both sides, because its locks are not
// those of its layers. A machine that was copied with its memory is the one case left;
// nothing in it can tell. Rejected: the boot id alone (a copy in the same boot); the id of
// the machine (images share it).
package liveness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Dir is where this process keeps the proof of its life and looks for that of others. The zero
// value finds a directory by itself.
type Dir struct {
	Path string // as set; then as resolved
	Mute bool   // no proof is made, so that nobody learns of the death of this process

	mu     sync.Mutex
	state  int8   // 0 not looked at yet, 1 usable, -1 not
	boot   string // of the kernel
	tidied bool
	sights int // how many sightings this process has left
	others map[string]*os.File
}

// A Proof is the locked file of one session of ours.
type Proof struct {
	File *os.File
	path string
}

// runtimeDirs are where proofs may be; the first that can be used counts.
func runtimeDirs(dir string) []string {
	if dir != "" {
		return []string{dir}
	}
	if xdg := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(xdg) && !strangers(xdg) { // su leaves that of its caller
		return []string{filepath.Join(xdg, "holdfast")}
	}
	if own := fmt.Sprintf("/run/user/%d", os.Geteuid()); isDir(own) { // as for a login, also in cron
		return []string{filepath.Join(own, "holdfast")}
	}
	own := fmt.Sprintf("holdfast-%d", os.Geteuid())
	return []string{filepath.Join(os.TempDir(), own), filepath.Join("/dev/shm", own)} // the first is often on an overlay in a container
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// usable looks for a directory once; p.mu is held.
func (p *Dir) usable() bool {
	if p.state == 0 {
		p.state = -1
		p.boot = kernelBoot()
		for _, dir := range runtimeDirs(p.Path) {
			if p.boot != "" && dir != os.DevNull && prepareProofDir(dir) == nil {
				p.state, p.Path = 1, dir
				break
			}
		}
	}
	return p.state == 1
}

// Make locks a new file and only then gives it the session's name, so that
// nobody can meet an unlocked file of a live session. nil: no proof can be
// given here.
func (p *Dir) Make(session string) *Proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.usable() || p.Mute {
		return nil
	}
	if !p.tidied {
		p.tidied = true
		p.tidy()
	}
	path := filepath.Join(p.Path, session)
	file, err := lockNew(path, session, p.boot)
	if err != nil {
		return nil
	}
	return &Proof{file, path}
}

// Endings of the names of files that are not a session's proof.
const (
	unnamed = ".new" // not finished
	seen    = "seen" // says when a session was first seen
)

// leftover is how long an unlocked file stays: whoever waited for its session
// has long declared it dead by the TTL.
const leftover = 24 * time.Hour

// tidy removes the files of sessions that died long ago and were never declared dead,
// because nobody used their store again. Nothing is less safe without a file. If there
// are many files it looks at some, so that nobody waits for it. p.mu is held.
func (p *Dir) tidy() {
	d, err := os.Open(p.Path)
	if err != nil {
		return
	}
	defer d.Close()
	names, _ := d.Readdirnames(10_000)
	sightings := 0
	for _, name := range names {
		if strings.HasSuffix(name, "."+seen) {
			sightings++
		}
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:min(len(names), 250)] {
		path, keep := filepath.Join(p.Path, name), leftover
		id, end, _ := strings.Cut(name, ".")
		if end == seen {
			keep = record.MaxTTL
		}
		if !record.IsSession(id) || end != "" && end != seen && !strings.HasSuffix("."+end, unnamed) {
			continue // not ours
		}
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		old := time.Since(info.ModTime()) >= keep || end == seen && sightings > mostSightings && overLong(path)
		if old && abandoned(path) {
			os.Remove(path)
		}
	}
}

// Drop removes a proof of ours. The name goes first: a file without a name
// proves nothing.
func (p *Dir) Drop(own *Proof) {
	if own == nil {
		return
	}
	os.Remove(own.path)
	own.File.Close()
}

// Gone is Dead for one look: it keeps no file open.
func (p *Dir) Gone(session string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, kept := p.others[session]
	dead := p.dead(session)
	if file, ok := p.others[session]; ok && !kept {
		file.Close()
		delete(p.others, session)
	}
	return dead
}

// Dead says whether this host's kernel knows the session to be dead.
func (p *Dir) Dead(session string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead(session)
}

// dead is Dead; p.mu is held.
func (p *Dir) dead(session string) bool {
	file := p.open(session)
	if file == nil || !canLock(file) {
		return false
	}
	if !named(file) { // its session has ended in another way: it proves nothing
		file.Close()
		delete(p.others, session)
		return false
	}
	return true
}

// Near says whether the session has a proof on this host, so that Dead is worth
// calling again.
func (p *Dir) Near(session string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open(session) != nil
}

// open returns the session's file, kept open until forget; p.mu is held.
func (p *Dir) open(session string) *os.File {
	if !p.usable() || !record.IsSession(session) {
		return nil
	}
	if file, ok := p.others[session]; ok {
		return file
	}
	file, err := openProof(filepath.Join(p.Path, session), session, p.boot)
	if err != nil {
		return nil
	}
	if p.others == nil {
		p.others = make(map[string]*os.File)
	}
	p.others[session] = file
	return file
}

// DeclareDead removes the file of a session whose tombstone is written.
func (p *Dir) DeclareDead(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if file, ok := p.others[session]; ok {
		file.Close()
		delete(p.others, session)
	}
	if p.state == 1 && record.IsSession(session) {
		os.Remove(filepath.Join(p.Path, session))
		os.Remove(filepath.Join(p.Path, session+"."+seen))
	}
}

// Forget closes the files of sessions that are of no interest any more.
func (p *Dir) Forget(wanted func(session string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for session, file := range p.others {
		if !wanted(session) {
			file.Close()
			delete(p.others, session)
		}
	}
}

func (p *Dir) Close() { p.Forget(func(string) bool { return false }) }

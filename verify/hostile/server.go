//go:build linux

package hostile

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Server keeps the files. Its methods may be called from any goroutine.
type Server struct {
	names Names

	mu      sync.Mutex
	rng     *rand.Rand
	nodes   map[uint64]*node
	last    uint64 // node
	log     []change
	mounts  []*Mount
	skew    time.Duration // of its clock
	full    bool
	watcher Watcher
	closed  chan struct{}

	lateMu sync.Mutex
	late   int // what is still to be done
	none   *sync.Cond
}

// A node is a file, directory or symbolic link. Its number is its handle, and
// never used again.
type node struct {
	id, ino             uint64
	mode                uint32
	uid, gid            uint32
	links               int
	data, synced        []byte           // synced: what a crash leaves; nil: it was never synced
	dirty               bool             // data may differ from synced
	entries, durable    map[string]*node // entries is replaced, never changed
	above               *node            // of a directory
	atime, mtime, ctime time.Time
	open                map[*Mount]int
}

const root = 1

// Names are what a crash of the server does to changes of names that nobody has
// synced. Handles outlive it only where none is forgotten: a client that goes on
// has to be able to notice.
type Names int

const (
	Anyhow  Names = iota // any are forgotten, but a move is never half done
	InOrder              // the newest are, as by a journal
	Durable              // none is, as NFS has it of a server that is exported "sync"
)

// NewServer returns a server with an empty directory.
func NewServer(seed uint64, names Names) *Server {
	s := &Server{names: names, rng: rand.New(rand.NewPCG(seed, 2)), nodes: make(map[uint64]*node), closed: make(chan struct{})}
	s.none = sync.NewCond(&s.lateMu)
	s.make(syscall.S_IFDIR | 0o755)
	return s
}

// Skew sets the server's clock ahead.
func (s *Server) Skew(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew = by
}

// Fill makes the disk full, or not any more.
func (s *Server) Fill(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// A Watcher is told of what happens to the files, by paths from the root. It
// must not use the server or a mount.
type Watcher interface {
	Renamed(from, to string, read func(path string) (data []byte, age time.Duration))
	Crashed(walk func(f func(path string, data []byte))) // what is left
}

// Watch has w told.
func (s *Server) Watch(w Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watcher = w
}

// Walk tells of all files by their paths from the root.
func (s *Server) Walk(f func(path string, data []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.walk(f)
}

func (s *Server) walk(f func(path string, data []byte)) {
	var visit func(at string, n *node)
	visit = func(at string, n *node) {
		if !n.isDir() {
			f(at, n.data)
		}
		for _, name := range slices.Sorted(maps.Keys(n.entries)) {
			visit(path.Join(at, name), n.entries[name])
		}
	}
	visit("", s.nodes[root])
}

// at is the path of a name in a directory.
func (s *Server) at(d *node, name string) string {
	for d.above != nil {
		for n, below := range d.above.entries {
			if below == d {
				name = n + "/" + name
			}
		}
		d = d.above
	}
	return name
}

func (s *Server) read(name string) (data []byte, age time.Duration) {
	n := s.nodes[root]
	for part := range strings.SplitSeq(name, "/") {
		if n = n.entries[part]; n == nil {
			return nil, 0
		}
	}
	return n.data, s.now().Sub(n.mtime)
}

// Settle waits until what was delayed is done, or was never to be.
func (s *Server) Settle() {
	s.lateMu.Lock()
	defer s.lateMu.Unlock()
	for s.late > 0 {
		s.none.Wait()
	}
}

func (s *Server) now() time.Time { return time.Now().Add(s.skew) }

func (s *Server) make(mode uint32) *node {
	s.last++
	now := s.now()
	n := &node{id: s.last, ino: s.last, mode: mode, atime: now, mtime: now, ctime: now, open: make(map[*Mount]int)}
	if n.isDir() {
		n.entries, n.durable = make(map[string]*node), make(map[string]*node)
	}
	s.nodes[n.id] = n
	return n
}

func (n *node) isDir() bool { return n.mode&syscall.S_IFMT == syscall.S_IFDIR }

func (n *node) gone() bool { return n.links == 0 && n.id != root }

// find is the node of a handle. One that was removed has a stale handle.
func (s *Server) find(id uint64) (*node, syscall.Errno) {
	n := s.nodes[id]
	if n == nil || n.gone() {
		return nil, syscall.ESTALE
	}
	return n, 0
}

func (s *Server) dir(id uint64) (*node, syscall.Errno) {
	n, err := s.find(id)
	if err == 0 && !n.isDir() {
		err = syscall.ENOTDIR
	}
	return n, err
}

// in finds a name in a directory.
func (s *Server) in(dir uint64, name string) (d, n *node, err syscall.Errno) {
	d, err = s.dir(dir)
	if err != 0 {
		return nil, nil, err
	}
	if len(name) > 255 {
		return nil, nil, syscall.ENAMETOOLONG
	}
	if n = d.entries[name]; n == nil {
		return d, nil, syscall.ENOENT
	}
	return d, n, 0
}

// A set puts a node under a name, or removes the name.
type set struct {
	dir  *node
	name string
	node *node
	was  *node // that had the name
}

// change applies changes of names as one, and notes them as not durable.
func (s *Server) change(sets ...set) {
	now := s.now()
	for _, c := range sets {
		c.dir.entries = maps.Clone(c.dir.entries) // hosts go on seeing the old one
	}
	for i, c := range sets {
		old := c.dir.entries[c.name]
		if sets[i].was = old; old != nil {
			old.links--
			old.ctime = now
		}
		if c.node == nil {
			delete(c.dir.entries, c.name)
		} else {
			c.dir.entries[c.name] = c.node
			c.node.links++
			c.node.ctime = now
			if c.node.isDir() {
				c.node.above = c.dir
			}
		}
		c.dir.mtime, c.dir.ctime = now, now
	}
	s.log = append(s.log, change(sets))
}

// create makes a file or directory; a file that is there is found unless it
// must be new.
func (s *Server) create(dir uint64, name string, mode uint32, uid, gid uint32, excl bool) (*node, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, n, err := s.in(dir, name)
	switch {
	case err == 0 && excl:
		return nil, syscall.EEXIST
	case err == 0 && n.isDir():
		return nil, syscall.EISDIR
	case err != syscall.ENOENT:
		return n, err
	case s.full:
		return nil, syscall.ENOSPC
	}
	n = s.make(mode)
	n.uid, n.gid = uid, gid
	s.change(set{dir: d, name: name, node: n})
	return n, 0
}

func (s *Server) symlink(dir uint64, name, to string) (*node, syscall.Errno) {
	n, err := s.create(dir, name, syscall.S_IFLNK|0o777, 0, 0, true)
	if err == 0 {
		s.mu.Lock()
		n.data, n.synced = []byte(to), []byte(to)
		s.mu.Unlock()
	}
	return n, err
}

func (s *Server) link(id, dir uint64, name string) (*node, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.find(id)
	if err != 0 {
		return nil, err
	}
	d, _, err := s.in(dir, name)
	switch {
	case err == 0:
		return nil, syscall.EEXIST
	case err != syscall.ENOENT:
		return nil, err
	case n.isDir():
		return nil, syscall.EPERM
	case s.full:
		return nil, syscall.ENOSPC
	}
	s.change(set{dir: d, name: name, node: n})
	return n, 0
}

// unlink removes a file's name. If the host has it open, the file stays for it
// under a name that nobody else looks for, until it is closed.
func (s *Server) unlink(m *Mount, dir uint64, name string) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, n, err := s.in(dir, name)
	switch {
	case err != 0:
		return err
	case n.isDir():
		return syscall.EISDIR
	}
	s.change(append(s.silly(m, d, n), set{dir: d, name: name})...)
	return 0
}

const sillyPrefix = ".nfs"

func (s *Server) silly(m *Mount, d, n *node) []set {
	if m == nil || n.open[m] == 0 || n.links > 1 {
		return nil
	}
	s.last++
	name := sillyPrefix + strings.Repeat("0", 16) + string(rune('a'+s.rng.IntN(26))) + itoa(s.last)
	m.silly[n] = append(m.silly[n], set{dir: d, name: name})
	return []set{{dir: d, name: name, node: n}}
}

func (s *Server) rmdir(dir uint64, name string) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, n, err := s.in(dir, name)
	switch {
	case err != 0:
		return err
	case !n.isDir():
		return syscall.ENOTDIR
	case len(n.entries) > 0:
		return syscall.ENOTEMPTY
	}
	s.change(set{dir: d, name: name})
	return 0
}

const noReplace, exchange = 1, 2 // flags of renameat2

func (s *Server) rename(m *Mount, from uint64, old string, to uint64, name string, flags uint32) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, n, err := s.in(from, old)
	if err != 0 {
		return err
	}
	b, target, err := s.in(to, name)
	switch {
	case err != 0 && err != syscall.ENOENT:
		return err
	case flags != 0 && flags != noReplace:
		return syscall.EINVAL
	case target != nil && flags == noReplace:
		return syscall.EEXIST
	case target == n:
		return 0
	case target != nil && target.isDir() && !n.isDir():
		return syscall.EISDIR
	case target != nil && !target.isDir() && n.isDir():
		return syscall.ENOTDIR
	case target != nil && len(target.entries) > 0:
		return syscall.ENOTEMPTY
	}
	for up := b; up != nil; up = up.above {
		if up == n {
			return syscall.EINVAL
		}
	}
	var sets []set
	if target != nil {
		sets = s.silly(m, b, target)
	}
	s.change(append(sets, set{dir: b, name: name, node: n}, set{dir: a, name: old})...)
	if s.watcher != nil {
		s.watcher.Renamed(s.at(a, old), s.at(b, name), s.read)
	}
	return 0
}

// write writes at an offset, or at the end.
func (s *Server) write(id uint64, off int64, data []byte) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.find(id)
	switch {
	case err != 0:
		return err
	case s.full:
		return syscall.ENOSPC
	}
	if off < 0 {
		off = int64(len(n.data))
	}
	fresh := make([]byte, max(int64(len(n.data)), off+int64(len(data))))
	copy(fresh, n.data)
	copy(fresh[off:], data)
	n.dirty = n.dirty || !bytes.Equal(n.data, fresh) // what is written again as it is can not be torn
	n.data, n.mtime, n.ctime = fresh, s.now(), s.now()
	return 0
}

// A setting is a change of attributes; what is nil stays.
type setting struct {
	mode, uid, gid *uint32
	size           *uint64
	atime, mtime   *time.Time // zero: the server's now
}

func (s *Server) setattr(id uint64, c setting) (*node, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.find(id)
	if err != 0 {
		return nil, err
	}
	n.ctime = s.now()
	put := func(to *time.Time, t *time.Time) {
		if t != nil && t.IsZero() {
			*to = n.ctime
		} else if t != nil {
			*to = *t
		}
	}
	if c.size != nil {
		fresh := make([]byte, *c.size)
		copy(fresh, n.data)
		n.data, n.dirty, n.mtime = fresh, true, n.ctime
	}
	put(&n.atime, c.atime)
	put(&n.mtime, c.mtime)
	if c.mode != nil {
		n.mode = n.mode&syscall.S_IFMT | *c.mode&^syscall.S_IFMT
	}
	if c.uid != nil {
		n.uid = *c.uid
	}
	if c.gid != nil {
		n.gid = *c.gid
	}
	return n, 0
}

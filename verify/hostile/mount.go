//go:build linux

package hostile

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A Mount is a host's view of the server, a FUSE file system.
type Mount struct {
	fuse.RawFileSystem
	Path   string
	server *Server
	fuse   *fuse.Server

	unmount sync.Once
	failed  error

	silly map[*node][]set // removed while open here; the server's mutex guards it

	mu      sync.Mutex
	rng     *rand.Rand
	faults  Faults
	cut     Cut
	healed  chan struct{}
	counts  map[string]int
	views   map[uint64]view
	own     map[uint64]int // changes of a directory by this host
	handles map[uint64]*handle
	last    uint64 // handle
}

// A view is a directory as it was.
type view struct {
	until time.Time
	nodes map[string]*node
}

func (m *Mount) list(v view) (names []fuse.DirEntry) {
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(v.nodes)) {
		names = append(names, fuse.DirEntry{Name: name, Mode: v.nodes[name].mode, Ino: v.nodes[name].ino})
	}
	return names
}

// A handle is an open file or directory.
type handle struct {
	node  *node
	id    uint64
	flags uint32
	data  []byte // as it was when opened
	until time.Time
	list  []fuse.DirEntry
	stale bool // the server has crashed since

	closed bool // the server's mutex guards it
}

// kernelName is the type of these file systems, after "fuse.".
const kernelName = "holdfast-hostile"

// Mount mounts the server at path, an empty directory.
func (s *Server) Mount(path string) (*Mount, error) {
	if err := watched(); err != nil {
		return nil, err
	}
	m := &Mount{RawFileSystem: fuse.NewDefaultRawFileSystem(), Path: path, server: s,
		silly: make(map[*node][]set), counts: make(map[string]int), views: make(map[uint64]view), own: make(map[uint64]int), handles: make(map[uint64]*handle)}
	s.mu.Lock()
	m.rng = rand.New(rand.NewPCG(s.rng.Uint64(), 3))
	s.mu.Unlock()
	var err error
	syscall.ForkLock.RLock() // no process may inherit the connection, and keep it
	m.fuse, err = fuse.NewServer(m, path, &fuse.MountOptions{
		FsName: source(), Name: kernelName, DirectMountStrict: true, DirectMount: true,
		DisableXAttrs: true, DisableReadDirPlus: true, MaxBackground: 64, MaxWrite: 1 << 17,
		Options: []string{"default_permissions"},
	})
	closeOnExec("/dev/fuse")
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("mount at %s: %w", path, err)
	}
	go m.fuse.Serve()
	if err := m.fuse.WaitMount(); err != nil {
		m.Unmount()
		return nil, fmt.Errorf("mount at %s: %w", path, err)
	}
	s.mu.Lock()
	s.mounts = append(s.mounts, m)
	s.mu.Unlock()
	return m, nil
}

// Unmount ends the mount, whoever uses it. Calls that hang fail.
func (m *Mount) Unmount() error {
	m.CutOff(Connected)
	m.unmount.Do(func() {
		if err := syscall.Unmount(m.Path, syscall.MNT_DETACH); err != nil {
			m.failed = fmt.Errorf("unmount %s: %w", m.Path, err)
		}
	})
	return m.failed
}

// Close unmounts all, and drops what was to be done later.
func (s *Server) Close() (err error) {
	s.mu.Lock()
	mounts := s.mounts
	s.mu.Unlock()
	close(s.closed)
	for _, m := range mounts {
		err = errors.Join(err, m.Unmount())
	}
	s.Settle()
	return err
}

// forget is what becomes of a host when the server has crashed.
func (m *Mount) forget() {
	clear(m.silly)
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.views)
	for _, h := range m.handles {
		h.stale = true
	}
}

// look is a directory as this host sees it.
func (m *Mount) look(id uint64) (view, syscall.Errno) {
	m.mu.Lock()
	v, ok := m.views[id]
	own := m.own[id]
	m.mu.Unlock()
	if ok && time.Now().Before(v.until) {
		return v, 0
	}
	m.server.mu.Lock()
	d, err := m.server.dir(id)
	if err != 0 {
		m.server.mu.Unlock()
		return view{}, err
	}
	v = view{nodes: d.entries}
	m.server.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.until = time.Now().Add(m.upTo(m.faults.Stale)); m.faults.Stale > 0 && m.own[id] == own {
		m.views[id] = v
	}
	return v, 0
}

// changed is that this host knows to have changed directories.
func (m *Mount) changed(ids ...uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		delete(m.views, id)
		m.own[id]++
	}
}

// stale is that this host was told so of a node: it looks again where it is.
func (m *Mount) stale(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count("stale handle")
	for dir, v := range m.views {
		for _, n := range v.nodes {
			if n.id == id {
				delete(m.views, dir)
				break
			}
		}
	}
}

func (m *Mount) timeout() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.upTo(m.faults.Stale)
}

// attr is what the server tells of a node.
func (m *Mount) attr(n *node, out *fuse.Attr) {
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	*out = fuse.Attr{Ino: n.ino, Size: uint64(len(n.data)), Blocks: uint64(len(n.data)+511) / 512, Mode: n.mode,
		Nlink: uint32(max(n.links, 1)), Owner: fuse.Owner{Uid: n.uid, Gid: n.gid}, Blksize: 4096}
	if n.isDir() {
		out.Nlink = 2
	}
	out.SetTimes(&n.atime, &n.mtime, &n.ctime)
}

func (m *Mount) entry(n *node, out *fuse.EntryOut) fuse.Status {
	m.attr(n, &out.Attr)
	out.NodeId, out.Generation = n.id, 1
	out.SetEntryTimeout(m.timeout())
	out.SetAttrTimeout(m.timeout())
	return fuse.OK
}

func (m *Mount) status(id uint64, err syscall.Errno) fuse.Status {
	if err == syscall.ESTALE {
		m.stale(id)
	}
	return fuse.Status(err)
}

func (m *Mount) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	m.mu.Lock()
	views := m.faults.Views
	m.mu.Unlock()
	var n *node
	err := m.call(h.Pid, "lookup", reads, func() (err syscall.Errno) {
		if len(name) > 255 {
			return syscall.ENAMETOOLONG
		}
		if views {
			v, err := m.look(h.NodeId)
			if n = v.nodes[name]; err == 0 && n == nil {
				err = syscall.ENOENT
			}
			return err
		}
		m.server.mu.Lock()
		defer m.server.mu.Unlock()
		_, n, err = m.server.in(h.NodeId, name)
		return err
	})
	if err == syscall.ENOENT {
		if d := m.timeout(); d > 0 {
			out.SetEntryTimeout(d)
			return fuse.OK
		}
	}
	if err != 0 {
		return m.status(h.NodeId, err)
	}
	return m.entry(n, out)
}

func (m *Mount) Forget(nodeid, nlookup uint64) {}

func (m *Mount) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	var n *node
	err := m.call(in.Pid, "getattr", reads, func() (err syscall.Errno) {
		m.server.mu.Lock()
		defer m.server.mu.Unlock()
		n, err = m.server.find(in.NodeId)
		return err
	})
	if err != 0 {
		return m.status(in.NodeId, err)
	}
	m.attr(n, &out.Attr)
	out.SetTimeout(m.timeout())
	return fuse.OK
}

func (m *Mount) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	id, c := in.NodeId, setting{}
	if v, ok := in.GetMode(); ok {
		c.mode = &v
	}
	if v, ok := in.GetUID(); ok {
		c.uid = &v
	}
	if v, ok := in.GetGID(); ok {
		c.gid = &v
	}
	if v, ok := in.GetSize(); ok {
		c.size = &v
	}
	now := time.Time{}
	if v, ok := in.GetATime(); ok {
		c.atime = &v
	}
	if v, ok := in.GetMTime(); ok {
		c.mtime = &v
	}
	if in.Valid&fuse.FATTR_ATIME_NOW != 0 {
		c.atime = &now
	}
	if in.Valid&fuse.FATTR_MTIME_NOW != 0 {
		c.mtime = &now
	}
	got := make(chan *node, 2)
	err := m.call(in.Pid, "setattr", sets, func() syscall.Errno {
		n, err := m.server.setattr(id, c)
		if err == 0 {
			got <- n
		}
		return err
	})
	if err != 0 {
		return m.status(id, err)
	}
	m.attr(<-got, &out.Attr)
	out.SetTimeout(m.timeout())
	return fuse.OK
}

// made does an operation that gives a new name to a node.
func (m *Mount) made(h fuse.InHeader, op string, out *fuse.EntryOut, do func() (*node, syscall.Errno)) (*node, fuse.Status) {
	got := make(chan *node, 2)
	err := m.call(h.Pid, op, makes, func() syscall.Errno {
		n, err := do()
		if err == 0 {
			got <- n
		}
		return err
	})
	if err != 0 {
		return nil, m.status(h.NodeId, err)
	}
	m.changed(h.NodeId)
	n := <-got
	return n, m.entry(n, out)
}

func (m *Mount) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	h, mode := in.InHeader, in.Mode
	_, status := m.made(h, "mkdir", out, func() (*node, syscall.Errno) {
		return m.server.create(h.NodeId, name, syscall.S_IFDIR|mode&0o7777, h.Uid, h.Gid, true)
	})
	return status
}

func (m *Mount) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	h, mode := in.InHeader, in.Mode
	_, status := m.made(h, "mknod", out, func() (*node, syscall.Errno) {
		return m.server.create(h.NodeId, name, mode, h.Uid, h.Gid, true)
	})
	return status
}

func (m *Mount) Symlink(cancel <-chan struct{}, h *fuse.InHeader, to, name string, out *fuse.EntryOut) fuse.Status {
	head := *h
	_, status := m.made(head, "symlink", out, func() (*node, syscall.Errno) { return m.server.symlink(head.NodeId, name, to) })
	return status
}

func (m *Mount) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	h, id := in.InHeader, in.Oldnodeid
	_, status := m.made(h, "link", out, func() (*node, syscall.Errno) { return m.server.link(id, h.NodeId, name) })
	return status
}

func (m *Mount) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	n, err := m.server.find(h.NodeId)
	if err != 0 {
		return nil, fuse.Status(err)
	}
	return n.data, fuse.OK
}

func (m *Mount) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	dir := h.NodeId
	err := m.call(h.Pid, "unlink", removes, func() syscall.Errno { return m.server.unlink(m, dir, name) })
	if err == 0 {
		m.changed(dir)
	}
	return m.status(dir, err)
}

func (m *Mount) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	dir := h.NodeId
	err := m.call(h.Pid, "rmdir", removes, func() syscall.Errno { return m.server.rmdir(dir, name) })
	if err == 0 {
		m.changed(dir)
	}
	return m.status(dir, err)
}

func (m *Mount) Rename(cancel <-chan struct{}, in *fuse.RenameIn, old, name string) fuse.Status {
	from, to, flags := in.NodeId, in.Newdir, in.Flags
	err := m.call(in.Pid, "rename", renames, func() syscall.Errno { return m.server.rename(m, from, old, to, name, flags) })
	if err == 0 {
		m.changed(from, to)
	}
	return m.status(from, err)
}

// StatFs tells the type of the file system, and room.
func (m *Mount) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	*out = fuse.StatfsOut{Bsize: 4096, Frsize: 4096, NameLen: 255, Blocks: 1 << 20, Bfree: 1 << 19, Bavail: 1 << 19, Files: 1 << 20, Ffree: 1 << 19}
	return fuse.OK
}

func (m *Mount) String() string { return kernelName }

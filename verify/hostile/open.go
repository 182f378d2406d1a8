//go:build linux

package hostile

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// opened is a new handle of a node. What is read by it is for a while what the
// file was when it was opened.
func (m *Mount) opened(n *node, flags uint32) (fh uint64) {
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	n.open[m]++
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	m.handles[m.last] = &handle{node: n, id: n.id, flags: flags, data: n.data, until: time.Now().Add(m.upTo(m.faults.Stale))}
	return m.last
}

func (m *Mount) handle(fh uint64) (*handle, syscall.Errno) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.handles[fh]
	if h == nil || h.stale {
		return nil, syscall.ESTALE
	}
	return h, 0
}

// Open asks the server, and has the kernel ask for the attributes too.
func (m *Mount) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	id, flags := in.NodeId, in.Flags
	var n *node
	err := m.call(in.Pid, "open", reads, func() (err syscall.Errno) {
		m.server.mu.Lock()
		defer m.server.mu.Unlock()
		n, err = m.server.find(id)
		return err
	})
	if err == 0 && flags&syscall.O_TRUNC != 0 {
		zero := uint64(0)
		err = m.call(in.Pid, "setattr", sets, func() syscall.Errno {
			_, err := m.server.setattr(id, setting{size: &zero})
			return err
		})
	}
	if err != 0 {
		return m.status(id, err)
	}
	m.fuse.InodeNotify(id, -1, 0)
	out.Fh, out.OpenFlags = m.opened(n, flags), fuse.FOPEN_DIRECT_IO
	return fuse.OK
}

func (m *Mount) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	h, flags, mode := in.InHeader, in.Flags, in.Mode
	n, status := m.made(h, "create", &out.EntryOut, func() (*node, syscall.Errno) {
		n, err := m.server.create(h.NodeId, name, syscall.S_IFREG|mode&0o7777, h.Uid, h.Gid, flags&syscall.O_EXCL != 0)
		if err == 0 && flags&syscall.O_TRUNC != 0 {
			zero := uint64(0)
			m.server.setattr(n.id, setting{size: &zero})
		}
		return n, err
	})
	if status == fuse.OK {
		out.OpenOut.Fh, out.OpenOut.OpenFlags = m.opened(n, flags), fuse.FOPEN_DIRECT_IO
	}
	return status
}

func (m *Mount) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h, err := m.handle(in.Fh)
	if err != 0 {
		return nil, m.status(in.NodeId, err)
	}
	var data []byte
	err = m.call(in.Pid, "read", reads, func() syscall.Errno {
		m.server.mu.Lock()
		defer m.server.mu.Unlock()
		if _, err := m.server.find(h.id); err != 0 {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if data = h.data; time.Now().After(h.until) {
			h.data = h.node.data
			data = h.data
		}
		return 0
	})
	if err != 0 {
		return nil, m.status(in.NodeId, err)
	}
	data = data[min(in.Offset, uint64(len(data))):]
	return fuse.ReadResultData(data[:min(len(data), len(buf))]), fuse.OK
}

func (m *Mount) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	h, err := m.handle(in.Fh)
	if err != 0 {
		return 0, m.status(in.NodeId, err)
	}
	data = append([]byte(nil), data...)
	off := int64(in.Offset)
	if h.flags&syscall.O_APPEND != 0 {
		off = -1
	}
	err = m.call(in.Pid, "write", writes, func() syscall.Errno { return m.server.write(h.id, off, data) })
	if err != 0 {
		return 0, m.status(in.NodeId, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h.until = time.Time{}
	return uint32(len(data)), fuse.OK
}

// Flush is told of each close(2), while Release comes when it comes.
func (m *Mount) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	if h, err := m.handle(in.Fh); err == 0 {
		m.closed(h)
	}
	return fuse.OK
}

// closed is that a file is not open by that handle any more. What was removed
// while it was open goes now.
func (m *Mount) closed(h *handle) {
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	if h.stale || h.closed || h.node == nil {
		return
	}
	h.closed = true
	if h.node.open[m]--; h.node.open[m] > 0 {
		return
	}
	delete(h.node.open, m)
	for _, c := range m.silly[h.node] {
		if c.dir.entries[c.name] == h.node {
			m.server.change(c)
		}
	}
	delete(m.silly, h.node)
}

func (m *Mount) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h, err := m.handle(in.Fh)
	if err == 0 {
		err = m.call(in.Pid, "fsync", syncs, func() syscall.Errno { return m.server.sync(h.id) })
	}
	if err == notSynced {
		m.server.giveUp(h.id)
		err = syscall.EIO
	}
	return m.status(in.NodeId, err)
}

func (m *Mount) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	m.mu.Lock()
	h := m.handles[in.Fh]
	delete(m.handles, in.Fh)
	m.mu.Unlock()
	if h != nil {
		m.closed(h)
	}
}

func (m *Mount) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	id := in.NodeId
	var v view
	err := m.call(in.Pid, "opendir", reads, func() (err syscall.Errno) {
		v, err = m.look(id)
		return err
	})
	if err != 0 {
		return m.status(id, err)
	}
	list := m.list(v)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	m.handles[m.last] = &handle{id: id, list: list}
	out.Fh = m.last
	return fuse.OK
}

// ReadDir lists what was there when the listing began.
func (m *Mount) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	h, err := m.handle(in.Fh)
	if err == 0 {
		err = m.call(in.Pid, "readdir", reads, func() syscall.Errno {
			if in.Offset > 0 {
				return 0
			}
			v, err := m.look(h.id)
			list := m.list(v)
			m.mu.Lock()
			h.list = list
			m.mu.Unlock()
			return err
		})
	}
	if err != 0 {
		return m.status(in.NodeId, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := in.Offset; i < uint64(len(h.list)); i++ {
		if !out.AddDirEntry(h.list[i]) {
			break
		}
	}
	return fuse.OK
}

func (m *Mount) ReleaseDir(in *fuse.ReleaseIn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.handles, in.Fh)
}

func (m *Mount) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h, err := m.handle(in.Fh)
	if err == 0 {
		err = m.call(in.Pid, "fsyncdir", syncs, func() syscall.Errno { return m.server.sync(h.id) })
	}
	if err == notSynced {
		err = syscall.EIO
	}
	return m.status(in.NodeId, err)
}

//go:build linux

package hostile

import (
	"maps"
	"slices"
	"syscall"
)

// A change is of one or more names, at once, also in a crash.
type change []set

func (c change) keep() {
	for _, s := range c {
		if s.node == nil {
			delete(s.dir.durable, s.name)
		} else {
			s.dir.durable[s.name] = s.node
		}
	}
}

// sync makes a file's data, or the names in a directory, durable.
func (s *Server) sync(id uint64) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.find(id)
	if err != 0 {
		return err
	}
	if !n.isDir() && n.dirty || n.synced == nil {
		n.synced, n.dirty = slices.Clone(n.data), false
		if n.synced == nil {
			n.synced = []byte{}
		}
	}
	dirs := map[*node]bool{n: true}
	s.settle(func(c change) bool {
		if s.names == InOrder || slices.ContainsFunc(c, func(s set) bool { return dirs[s.dir] }) {
			for _, s := range c {
				dirs[s.dir] = true // what came before a move goes before it
			}
			return true
		}
		return false
	})
	s.collect()
	return 0
}

// settle makes those changes durable that are chosen, and what has to come before
// them: a file or directory never has two names because it was moved. Chosen is
// backwards.
func (s *Server) settle(choose func(c change) bool) {
	kept := make([]bool, len(s.log))
	nodes := make(map[*node]bool)
	for i, c := range slices.Backward(s.log) {
		kept[i] = choose(c) || slices.ContainsFunc(c, func(s set) bool { return nodes[s.node] || nodes[s.was] })
		for _, s := range c {
			if kept[i] && s.node != nil {
				nodes[s.node] = true
			}
			if kept[i] && s.was != nil {
				nodes[s.was] = true
			}
		}
	}
	left := s.log[:0:0]
	for i, c := range s.log {
		if kept[i] {
			c.keep()
		} else {
			left = append(left, c)
		}
	}
	s.log = left
}

// giveUp is a sync of a file that has failed: a later one does not write again what
// this one has not. That of a directory can be repeated.
func (s *Server) giveUp(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.find(id)
	if err != 0 || n.isDir() {
		return
	}
	if n.dirty && s.rng.IntN(2) == 0 { // the host drops what it could not write
		n.data = slices.Clone(n.synced)
	}
	if n.dirty = false; n.synced == nil {
		n.synced = s.torn(n.data)
	}
}

// Crash has the server forget what was not synced. Handles of open files are
// stale afterwards; so are those of directories but the root, unless names are
// Durable.
func (s *Server) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	forgets := s.rng.IntN(len(s.log) + 1)
	s.settle(func(change) bool {
		forgets--
		return s.names == Durable || s.names == InOrder && forgets < 0 || s.names == Anyhow && s.rng.IntN(2) == 0
	})
	s.log = nil
	top := s.nodes[root]
	fresh := make(map[uint64]*node)
	for _, n := range s.nodes {
		n.links = 0
	}
	var visit func(n *node)
	visit = func(n *node) {
		if fresh[n.id] != nil {
			return
		}
		if n.id != root && (s.names != Durable || !n.isDir()) {
			s.last++
			n.id = s.last
		}
		fresh[n.id] = n
		clear(n.open)
		if !n.isDir() {
			if n.dirty || n.synced == nil {
				n.data = s.left(n)
			} else {
				n.data = slices.Clone(n.synced)
			}
			n.synced, n.dirty = slices.Clone(n.data), false
			return
		}
		n.entries = maps.Clone(n.durable)
		for _, below := range n.entries {
			if below.links++; below.isDir() {
				below.above = n
			}
			visit(below)
		}
	}
	visit(top)
	s.nodes = fresh
	for _, m := range s.mounts {
		m.forget()
	}
	if s.watcher != nil {
		s.watcher.Crashed(s.walk)
	}
}

// left is what may be left of a file's data that was not synced.
func (s *Server) left(n *node) []byte {
	switch s.rng.IntN(3) {
	case 0:
		return slices.Clone(n.synced)
	case 1:
		return s.torn(n.data)
	}
	return slices.Clone(n.data)
}

// torn is data of which only a part was written.
func (s *Server) torn(data []byte) []byte {
	data = slices.Clone(data)
	if len(data) == 0 {
		return []byte{}
	}
	switch n := s.rng.IntN(len(data)); s.rng.IntN(4) {
	case 0:
		return []byte{}
	case 1:
		clear(data)
	case 2:
		clear(data[n:])
	case 3:
		data = data[:n]
	}
	return data
}

// collect drops nodes that no name leads to, durable or not.
func (s *Server) collect() {
	if len(s.nodes) < 4096 || s.rng.IntN(len(s.nodes)/4) > 0 {
		return
	}
	used := make(map[uint64]*node)
	var visit func(n *node)
	visit = func(n *node) {
		if n == nil || used[n.id] != nil {
			return
		}
		used[n.id] = n
		for _, names := range []map[string]*node{n.entries, n.durable} {
			for _, below := range names {
				visit(below)
			}
		}
	}
	visit(s.nodes[root])
	for _, c := range s.log {
		for _, set := range c {
			visit(set.dir)
			visit(set.node)
		}
	}
	for _, n := range s.nodes {
		if len(n.open) > 0 {
			visit(n)
		}
	}
	s.nodes = used
}

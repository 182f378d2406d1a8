package models

import "fmt"

// Gitaly's repository state: writers announce themselves in a directory, change the data, change the
// key and leave; readers look cached answers up by the key. As it was written, with
// a lease that readers end, on a file system that shows old directories, and with a key that can
// be read while it is being replaced.

type gitalyState struct {
	key     uint8    // 0: torn, being replaced
	keys    uint8    // keys used
	data    uint8    // grows with each change
	settled uint8    // the last change whose writer has ended
	blobs   [8]uint8 // 1 + content, for each key
	crashes uint8
	w       [3]gitalyWriter
	r       [2]gitalyReader
	bad     uint8
}

type gitalyWriter struct {
	pc      uint8
	changes uint8 // still to be made
	last    uint8 // the last change it made
	listed  uint8 // its entry in pending: 0 none, 1 there, 2 in expired
}

type gitalyReader struct {
	pc    uint8
	key   uint8
	floor uint8 // what it has to be served at least
	value uint8
	view  uint8 // the data as this host last saw it
	left  uint8
	clean uint8 // nobody wrote when it looked
}

type gitaly struct {
	writers, readers, changes, rounds, crashes uint8
	expire, nfs, torn                          bool
	fixed                                      bool
	forgets, unasked                           bool // the fix, broken: an ended lease leaves nothing; readers fill whoever writes
	noProof                                    bool // of a death
}

const ( // writers
	wIdle = iota
	wWrites
	wRotates // in the middle of replacing the key, if that can be torn
	wRotated
	wDone
	wDead
)

const ( // readers
	rIdle  = iota
	rKey   // has the key, and looks for the blob
	rReads // no blob: reads the data
	rFills
)

func (w gitaly) model() Model[gitalyState] {
	s := gitalyState{key: 1, keys: 1, crashes: w.crashes}
	for i := range w.writers {
		s.w[i].changes = w.changes
	}
	for i := range w.readers {
		s.r[i].left = w.rounds
	}
	return Model[gitalyState]{Init: []gitalyState{s}, Next: w.next, Bad: w.bad, Show: w.show}
}

func (w gitaly) bad(s gitalyState) string {
	if s.bad == 1 {
		return "a reader is served what was before a finished write"
	}
	for _, p := range s.w {
		if p.pc != wIdle && p.pc != wDone && p.pc != wDead || p.listed == 1 || p.listed == 2 && !(w.noProof && p.pc == wDead) {
			return ""
		}
	}
	if s.key != 0 && s.blobs[s.key] != 0 && s.blobs[s.key] != 1+s.data {
		return "a wrong blob under the key, and nobody who would change it"
	}
	return ""
}

func (w gitaly) show(s gitalyState) string {
	out := fmt.Sprintf("key %d, data %d, blobs", s.key, s.data)
	for k, b := range s.blobs {
		if b != 0 {
			out += fmt.Sprintf(" %d:%d", k, b-1)
		}
	}
	for i, p := range s.w {
		if p.listed != 0 {
			out += fmt.Sprintf(", %s %s", names[i], [...]string{"", "pending", "expired"}[p.listed])
		}
	}
	return out
}

func (s *gitalyState) rotate() {
	s.keys++
	s.key = s.keys
}

func (s *gitalyState) clean() uint8 {
	for _, p := range s.w {
		if p.listed != 0 {
			return 0
		}
	}
	return 1
}

func (w gitaly) next(s gitalyState, emit func(Step, gitalyState)) {
	if s.bad != 0 {
		return
	}
	for i := range w.writers {
		p := s.w[i]
		do := func(what string, fault bool, f func(t *gitalyState, p *gitalyWriter)) {
			t := s
			f(&t, &t.w[i])
			emit(Step{"writer " + names[i], what, fault}, t)
		}
		switch p.pc {
		case wIdle:
			do("begins", false, func(_ *gitalyState, p *gitalyWriter) { p.pc, p.listed = wWrites, 1 })
		case wWrites:
			if p.changes > 0 {
				do("changes the data", false, func(t *gitalyState, p *gitalyWriter) {
					t.data++
					p.last = t.data
					p.changes--
				})
			}
			do("changes the key", false, func(t *gitalyState, p *gitalyWriter) {
				if p.pc = wRotated; w.torn && !w.fixed {
					p.pc, t.key = wRotates, 0
					return
				}
				t.rotate()
			})
		case wRotates:
			do("has changed the key", false, func(t *gitalyState, p *gitalyWriter) {
				p.pc = wRotated
				t.rotate()
			})
		case wRotated:
			do("ends", false, func(t *gitalyState, p *gitalyWriter) {
				p.pc, p.listed, p.changes = wDone, 0, 0
				t.settled = max(t.settled, p.last)
				p.last = 0
			})
		}
		if s.crashes > 0 && (p.pc == wWrites || p.pc == wRotated) {
			do("is killed", true, func(t *gitalyState, p *gitalyWriter) { p.pc, p.changes, p.last, t.crashes = wDead, 0, 0, t.crashes-1 })
		}
		if p.listed == 1 && s.keys < 7 && (w.expire || p.pc == wDead) {
			// Some reader finds the entry old. Who is dead leaves one that gets old in any case.
			do("'s entry is old: a reader changes the key and removes it", false, func(t *gitalyState, p *gitalyWriter) {
				t.rotate()
				if p.listed = 0; w.fixed && p.pc != wDead && !w.forgets {
					p.listed = 2
				}
			})
		}
		if p.listed == 2 && p.pc == wDead && s.keys < 7 && !w.noProof {
			do("'s death is proved: a reader changes the key and removes the entry", false, func(t *gitalyState, p *gitalyWriter) {
				t.rotate()
				p.listed = 0
			})
		}
	}
	for i := range w.readers {
		r := s.r[i]
		do := func(what string, f func(t *gitalyState, r *gitalyReader)) {
			t := s
			f(&t, &t.r[i])
			emit(Step{Who: "reader " + names[i], What: what}, t)
		}
		again := func(r *gitalyReader) { *r = gitalyReader{left: r.left, view: r.view} }
		if w.nfs && r.view != s.data {
			do("'s host looks at the directory again", func(_ *gitalyState, r *gitalyReader) { r.view = s.data })
		}
		switch r.pc {
		case rIdle:
			if r.left > 0 {
				do("reads the key", func(t *gitalyState, r *gitalyReader) {
					*r = gitalyReader{pc: rKey, key: s.key, floor: s.settled, view: r.view, left: r.left - 1, clean: t.clean()}
				})
			}
		case rKey:
			switch blob := s.blobs[r.key]; {
			case blob != 0:
				do("is served from the cache", func(t *gitalyState, r *gitalyReader) {
					if blob-1 < r.floor {
						t.bad = 1
					}
					again(r)
				})
			default:
				do("finds no blob and reads the data", func(_ *gitalyState, r *gitalyReader) {
					r.pc, r.value = rFills, s.data
					if w.nfs && !w.fixed {
						r.value = r.view
					}
				})
			}
		case rFills:
			do("puts a blob under its key, if it may", func(t *gitalyState, r *gitalyReader) {
				if !w.fixed || w.unasked || r.clean == 1 && t.clean() == 1 && r.key == s.key {
					t.blobs[r.key] = 1 + r.value
				}
				again(r)
			})
		}
	}
}

func gitalyCases() []Case {
	const forever = "a wrong blob under the key, and nobody who would change it"
	base := gitaly{writers: 2, readers: 2, changes: 2, rounds: 2}
	crash := gitaly{writers: 2, readers: 2, changes: 1, rounds: 2, crashes: 1}
	expire := gitaly{writers: 1, readers: 2, changes: 2, rounds: 2, crashes: 1, expire: true}
	nfs := gitaly{writers: 2, readers: 2, changes: 1, rounds: 2, nfs: true}
	torn := gitaly{writers: 3, readers: 1, changes: 1, rounds: 3, torn: true}
	all := gitaly{writers: 2, readers: 2, changes: 1, rounds: 1, crashes: 1, expire: true, torn: true, fixed: true}
	forgets := expire
	forgets.fixed, forgets.forgets = true, true
	unasked := expire
	unasked.fixed, unasked.unasked, unasked.noProof = true, true, true
	unproved := expire
	unproved.fixed, unproved.noProof = true, true
	fixed := func(w gitaly) Model[gitalyState] { w.fixed = true; return w.model() }
	return []Case{
		of("gitaly", "as written, the base: no lease ends; 2 writers, 2 readers", "", Quick, base.model()),
		of("gitaly", "as written, the base, with a crash", "", Quick, crash.model()),
		of("gitaly", "as written (K1): a lease ends under a writer, which is killed", forever, Quick, expire.model()),
		of("gitaly", "repaired: an entry whose lease has ended stays as expired until its writer ends or is proved dead, and meanwhile nobody fills", "", Quick, fixed(expire)),
		of("gitaly", "as written (K2): a file system that shows old directories", forever, Quick, nfs.model()),
		of("gitaly", "repaired: read past the file system's cache, with the key and the writers the same before and after", "", Quick, fixed(nfs)),
		of("gitaly", "as written (K3): the key can be read while it is replaced; 3 writers", "a reader is served what was before a finished write", Quick, torn.model()),
		of("gitaly", "repaired: the key is replaced at once; 3 writers", "", Quick, fixed(torn)),
		of("state keys", "leases end, a crash; 2 writers, 2 readers", "", Quick, all.model()),
		of("state keys", "leases end, a crash that nothing proves; a writer, 2 readers", "", Quick, unproved.model()),
		of("state keys", "an ended lease leaves nothing behind", forever, Quick, forgets.model()),
		of("state keys", "readers put blobs without asking for writers, a crash that nothing proves", forever, Quick, unasked.model()),
	}
}

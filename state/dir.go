package state

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/filesystem"
	"github.com/holdfast-lock/holdfast/internal/machine"
)

// DirOptions are settings of plain files.
type DirOptions struct {
	// Lease is how long a writer may be silent before readers take it for dead;
	// it is renewed every third of that. 0: 30s. At least 1s.
	Lease time.Duration
	// Limit is the same for entries without a lease of their own, such as
	// the empty ones of scripts. 0: an hour. At least 1s.
	Limit time.Duration
	// Trace receives Acquired, Heartbeat, Lost and Released of each writer's lease. Name is the
	// path. nil: none.
	Trace *holdfast.Trace
}

// Dir is the state in the files state/key and state/pending/* below an existing
// directory, which several hosts may mount and other programs share: a writer
// makes a randomly named file in state/pending, and at its end first writes a
// new random value to state/key and then removes its file; a reader that finds a
// file older than an hour does so in its place. Dir does no I/O; what is missing
// is made when it is needed. opts may be nil.
//
// A writer of ours is recognized by the name of its file. Its lease is short and
// renewed, and its age is measured by the clock of the file server, never by
// this host's. Where a file system is known to be this host's alone, a writer
// also locks its file. Its death is then known at once; and while it lives, or a
// command that has inherited the file, it is respected up to Limit even if it
// is silent. A file server that does not answer holds up its callers, whatever
// their ctx says.
func Dir(path string, opts *DirOptions) (*State, error) {
	d := &dir{seen: make(map[string]*seen)}
	if opts != nil {
		d.DirOptions = *opts
	}
	if d.Trace == nil {
		d.Trace = new(holdfast.Trace)
	}
	if d.Lease == 0 {
		d.Lease = 30 * time.Second
	}
	d.Lease = d.Lease.Truncate(time.Millisecond) // as the names of entries tell it
	if d.Limit == 0 {
		d.Limit = time.Hour
	}
	switch {
	case path == "":
		return nil, errors.New("state: no directory")
	case d.Lease < holdfast.MinTTL || d.Lease > holdfast.MaxTTL:
		return nil, fmt.Errorf("state: lease %v is not between %v and %v", d.Lease, holdfast.MinTTL, holdfast.MaxTTL)
	case d.Limit < holdfast.MinTTL:
		return nil, fmt.Errorf("state: limit %v is below %v", d.Limit, holdfast.MinTTL)
	}
	var err error
	if d.path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return &State{d}, nil
}

// A dir is a state in plain files.
type dir struct {
	DirOptions
	path string

	// For tests:
	step    func(what string) error // called before each step, which fails with its error
	machine *machine.Machine        // has the clock and the timers of writers; nil: the real one

	mu   sync.Mutex
	seen map[string]*seen // pending entries, by name
	ages clock.Remote     // of the file server
}

// A seen is a pending entry as this process has seen it.
type seen struct {
	ino   uint64
	mtime int64
	since time.Duration // when it was first seen with that mtime, by clock.Steady
	until time.Duration // it is good until then, whatever else is found
	lease time.Duration // as its name says; 0: it is another program's, and its text says nothing
	read  bool          // its text was read, as far as it can be
	entry entry
}

const (
	maxPending = 1024         // entries that a reader looks at in one go
	maxTries   = 60           // two seconds
	temporary  = ".holdfast-" // how the names of our temporary files begin
	pending    = "pending"
	keyFile    = "key"
)

var (
	errAgain  = errors.New("it keeps changing")
	errNoKey  = errors.New("holds no key")
	errLinked = errors.New("has a second name")
	errCrowd  = fmt.Errorf("has more than %d entries, and the first of them belong to no writer: remove them", maxPending)
	errNoRoom = errors.New("there is a directory in the place of the key: remove it")
)

func (d *dir) id() string { return "dir:" + d.path }

func (d *dir) key(ctx context.Context) (Key, error) {
	k, err := d.retry(ctx, d.look)
	if err != nil {
		return Key{}, fmt.Errorf("key of %q: %w", d.path, err)
	}
	return k, nil
}

// retry repeats a look that met a change, or a file that is gone from its server.
func (d *dir) retry(ctx context.Context, look func() (Key, error)) (k Key, err error) {
	for try := range maxTries {
		if err := ctx.Err(); err != nil {
			return Key{}, err
		}
		if k, err = look(); !errors.Is(err, errAgain) && !stale(err) {
			break
		}
		time.Sleep(time.Duration(max(0, try-3)) * time.Millisecond)
	}
	return k, err
}

// look does what a reader has to do: it lists the writers, makes up for the dead,
// and reads the key.
func (d *dir) look() (Key, error) {
	st, err := d.open()
	if err != nil {
		return Key{}, err
	}
	defer st.close()
	writing, dead, err := d.observe(st)
	if err != nil {
		return Key{}, err
	}
	if len(dead) > 0 {
		if err := d.takeOver(st, dead); err != nil {
			return Key{}, fmt.Errorf("for a writer that died: %w", err)
		}
		return Key{}, errAgain // there may be more
	}
	k, err := readKey(st)
	for try := 0; errors.Is(err, errLinked) && try < 20; try++ { // it is being made, see create
		time.Sleep(time.Millisecond)
		k, err = readKey(st)
	}
	switch {
	case err == nil:
		k.Writing = writing
		return k, nil
	case writing && (errors.Is(err, errNoKey) || errors.Is(err, errLinked) || errors.Is(err, fs.ErrNotExist)):
		return Key{Writing: true}, nil // the writer will make one
	case errors.Is(err, fs.ErrNotExist):
		err = d.create(st)
	case errors.Is(err, errNoKey) || errors.Is(err, errLinked): // as if a writer had died
		err = d.rotate(st)
	}
	if err != nil {
		return Key{}, err
	}
	return Key{}, errAgain
}

// readKey returns the key, errNoKey if there is something else, errLinked if
// the file can be changed under another name, or fs.ErrNotExist.
func readKey(st folder) (Key, error) {
	st.refresh()
	text, info, err := st.read(keyFile, maxKey)
	if errors.Is(err, errNotRegular) || errors.Is(err, errTooLong) || errors.Is(err, errTorn) {
		return Key{}, errNoKey
	}
	if err != nil {
		return Key{}, err
	}
	id, ok := parseKey(text)
	if !ok {
		return Key{}, errNoKey
	}
	if info.links > 1 {
		return Key{}, errLinked
	}
	return Key{ID: id, stamp: fmt.Sprintf("%d:%d", info.ino, info.ctime)}, nil
}

// open opens the directory called state, and makes it if there is none.
func (d *dir) open() (folder, error) {
	st, err := openBelow(d.path, "state")
	if !errors.Is(err, fs.ErrNotExist) {
		return st, err
	}
	top, err := openFolder(d.path)
	if err != nil {
		return folder{}, err
	}
	defer top.close()
	if err := top.mkdir("state"); err != nil && !errors.Is(err, fs.ErrExist) {
		return folder{}, err
	}
	if err := top.sync(); err != nil {
		return folder{}, err
	}
	return top.open("state")
}

// observe looks at the pending entries: whether someone writes, and who is dead.
func (d *dir) observe(st folder) (writing bool, dead []string, err error) {
	pend, err := st.open(pending)
	if errors.Is(err, fs.ErrNotExist) {
		// Make it, to save asking again, and to be sure: a file server's client may
		// remember that it is not there.
		if err := st.mkdir(pending); errors.Is(err, fs.ErrExist) {
			return false, nil, errAgain
		}
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	defer pend.close()
	names, more, err := pend.list(maxPending)
	if err != nil || len(names) == 0 {
		return false, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := clock.Steady()
	var t serverTime
	probed := false
	listed := make(map[string]bool, len(names))
	for _, name := range names {
		listed[name] = true
		if strings.HasPrefix(name, ".nfs") { // removed, and open somewhere
			continue
		}
		s := d.seen[name]
		if s != nil && now < s.until && s.entry.Proof == "" {
			writing = true
			continue
		}
		if !probed && (s == nil || now >= s.until) {
			// Probe before the look at the entry: if it is renewed in between, it
			// only looks younger.
			t, probed = d.probe(st), true
		}
		alive, err := d.see(pend, name, t)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular):
		case err != nil:
			return false, nil, err
		case alive:
			writing = true
		default:
			dead = append(dead, name)
		}
	}
	for name := range d.seen {
		if !listed[name] {
			delete(d.seen, name)
		}
	}
	if more && !writing && len(dead) == 0 {
		return false, nil, failed("list", pend.path, errCrowd)
	}
	return writing, dead, nil
}

// see looks at a pending entry, and says whether its writer lives; d.mu is held.
func (d *dir) see(pend folder, name string, t serverTime) (alive bool, err error) {
	info, err := pend.stat(name)
	if err != nil {
		return false, err
	}
	if !info.regular {
		return false, errNotRegular
	}
	now := clock.Steady()
	s := d.seen[name]
	if s == nil || s.ino != info.ino {
		s = &seen{ino: info.ino, mtime: info.mtime, since: now, lease: leaseOf(name)}
		s.read = s.lease == 0
		d.seen[name] = s
	}
	if !s.read {
		text, err := []byte(nil), d.at("read entry")
		if err == nil {
			text, _, err = pend.read(name, maxEntry)
		}
		if err == nil {
			s.entry = parseEntry(text)
		}
		s.read = err == nil || errors.Is(err, errTooLong) || errors.Is(err, fs.ErrPermission)
	}
	if s.mtime != info.mtime {
		s.mtime, s.since = info.mtime, now
	}
	look := sight{limit: d.Limit, most: d.Limit, age: t.age(info.mtime), stood: now - s.since}
	if t.before(info.mtime) { // otherwise nobody could tell its age for a long time
		pend.touch(name)
	}
	if s.lease > 0 && s.read {
		look.limit = s.lease
	}
	if s.entry.Proof != "" && filesystem.Local(pend.path) == nil {
		if locked, err := pend.locked(name, s.entry.Proof); err == nil {
			look.lock = free
			if locked {
				look.lock = held
			}
		}
	}
	if s.read {
		s.until = now + look.left()
	}
	return !look.dead(), nil
}

// A serverTime is the time by the clock of the host that keeps the files. The clock of
// this host is never compared with the time of a file.
type serverTime struct {
	now  int64 // ns since 1970; 0: unknown
	ages func(version int64) time.Duration
}

// age is how long ago, at least, a file was changed; negative if that is unknown.
func (t serverTime) age(mtime int64) time.Duration {
	if t.now == 0 {
		return -1
	}
	age := t.ages(mtime / 1000)
	if age > 0 && mtime%int64(time.Second) == 0 { // times may be kept in steps of two seconds
		age = max(0, age-2*time.Second)
	}
	return age
}

// before says whether a time of change is in the future.
func (t serverTime) before(mtime int64) bool { return t.now != 0 && mtime > t.now+int64(time.Second) }

// probe asks for the time, with a file made for that purpose.
func (d *dir) probe(st folder) serverTime {
	name := temporary + rand.Text()
	began := clock.Steady()
	file, err := st.create(name)
	if err != nil {
		return serverTime{}
	}
	defer st.remove(name)
	defer file.Close()
	if st.touch(name) != nil || d.at("probe") != nil {
		return serverTime{}
	}
	info, err := st.stat(name)
	if err != nil {
		return serverTime{}
	}
	return serverTime{info.mtime, d.ages.Ages(info.mtime/1000, began)}
}

// takeOver changes the key in place of dead writers, and only then removes their
// entries.
func (d *dir) takeOver(st folder, dead []string) error {
	if err := d.rotate(st); err != nil {
		return err
	}
	if len(dead) > 0 {
		pend, err := st.open(pending)
		if err != nil {
			return err
		}
		defer pend.close()
		for _, name := range dead {
			if err := d.at("remove entry"); err != nil {
				return err
			}
			if err := pend.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	d.sweep(st)
	return nil
}

// sweep removes temporary files that crashed processes of ours have left. After the
// limit that harms no live process: its rename only fails.
func (d *dir) sweep(st folder) {
	names, _, err := st.list(maxPending)
	if err != nil {
		return
	}
	var t serverTime
	for _, name := range names {
		if !strings.HasPrefix(name, temporary) {
			continue
		}
		if t.now == 0 {
			t = d.probe(st)
		}
		if info, err := st.stat(name); err == nil && t.age(info.mtime) > max(d.Limit, d.Lease) {
			st.remove(name)
		}
	}
}

// rotate gives the state a new key. It is on disk when rotate returns.
func (d *dir) rotate(st folder) error {
	id, name := rand.Text(), temporary+rand.Text()
	if err := d.prepare(st, name, id); err != nil {
		return err
	}
	err := d.at("rename key")
	if err == nil {
		err = st.rename(name, st, keyFile)
	}
	if err != nil {
		// The answer of a file server may have been lost.
		if k, look := readKey(st); look != nil || k.ID != id {
			st.remove(name)
			if in, look := st.open(keyFile); look == nil {
				in.close()
				return fmt.Errorf("%w: %w", err, errNoRoom)
			}
			return err
		}
	}
	if err := d.at("sync key"); err != nil {
		return err
	}
	return st.sync()
}

// create makes the first key; of all processes that do so at once, one wins.
func (d *dir) create(st folder) error {
	id, name := rand.Text(), temporary+rand.Text()
	if err := d.prepare(st, name, id); err != nil {
		return err
	}
	if err := st.link(name, keyFile); err != nil && !errors.Is(err, fs.ErrExist) {
		// A file system without links: the last one wins.
		if err := st.rename(name, st, keyFile); err != nil {
			st.remove(name)
			return err
		}
		return st.sync()
	}
	if err := st.remove(name); err != nil {
		return err
	}
	return st.sync()
}

// prepare writes a key to a temporary file, and syncs it to disk.
func (d *dir) prepare(st folder, name, id string) (err error) {
	if err := d.at("write key"); err != nil {
		return err
	}
	file, err := st.create(name)
	if err != nil {
		return err
	}
	defer func() {
		if e := file.Close(); err == nil {
			err = e
		}
		if err != nil {
			st.remove(name)
		}
	}()
	return d.fill(file, []byte(id))
}

// fill writes a new file, and syncs it to disk.
func (d *dir) fill(file *os.File, text []byte) error {
	if _, err := file.Write(text); err != nil {
		return err
	}
	if err := d.at("sync file"); err != nil {
		return err
	}
	return file.Sync()
}

func (d *dir) clear(ctx context.Context) error {
	_, err := d.retry(ctx, func() (Key, error) {
		st, err := d.open()
		if err != nil {
			return Key{}, err
		}
		defer st.close()
		_, dead, err := d.observe(st)
		if errors.Is(err, errCrowd) {
			return Key{}, errors.Join(err, d.rotate(st))
		}
		if err != nil {
			return Key{}, err
		}
		if err := d.takeOver(st, dead); err != nil { // also if there are none
			return Key{}, err
		}
		if len(dead) > 0 {
			return Key{}, errAgain // there may be more
		}
		return Key{}, nil
	})
	if err != nil {
		return fmt.Errorf("clear %q: %w", d.path, err)
	}
	return nil
}

// at announces a step to tests, which may fail it.
func (d *dir) at(what string) error {
	if d.step == nil {
		return nil
	}
	return d.step(what)
}

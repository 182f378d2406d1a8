package directory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/clock"
)

// floorKey is the key that keeps the floor.
const floorKey = floor + "/key"

// floor reads the version that no swept key was above.
func (s *Store) floor(ctx context.Context) (int64, error) {
	f, err := s.lookAt(ctx, floorKey)
	if err != nil {
		return 0, err
	}
	defer f.close()
	return f.floor()
}

func (f *found) floor() (int64, error) {
	if f.empty() {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(f.value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the floor is damaged: %q", f.value)
	}
	return n, nil
}

// raise raises the floor to at least n.
func (s *Store) raise(ctx context.Context, n int64) error {
	for {
		f, err := s.lookAt(ctx, floorKey)
		if err != nil {
			return err
		}
		if f.dir == nil {
			if err := s.create(floorKey, driver.Key{}); err != nil {
				return err
			}
			continue
		}
		was, err := f.floor()
		if err != nil || was >= n {
			f.close()
			return err
		}
		next, err := s.followFloor(ctx, f, n)
		f.close()
		if err != nil || next != nil {
			return err
		}
	}
}

func (s *Store) followFloor(ctx context.Context, f *found, n int64) (*found, error) {
	return s.follow(ctx, f, driver.Write{Value: strconv.AppendInt(nil, n, 10)})
}

// Keys implements driver.Store.
func (s *Store) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	if int(space) >= len(spaces) {
		return nil, fmt.Errorf("directory: keys: unknown %s", space)
	}
	names, err := do(ctx, s, s.calls, func() ([]string, error) { return s.keys(ctx, space, after, n) })
	if err != nil {
		return nil, fmt.Errorf("directory: keys: %w", err)
	}
	return names, nil
}

func (s *Store) keys(ctx context.Context, space driver.Space, after string, n int) (names []string, err error) {
	dirs, _, err := s.spaceDir(spaces[space])
	if err != nil {
		return nil, err
	}
	at := make(map[string]string) // by name
	for _, dir := range dirs {
		name, known := s.names.get(dir)
		if !known {
			f, err := s.lookOnce(dir)
			if errors.Is(err, errMoved) {
				f, err = s.lookAt(ctx, dir)
			}
			if errors.Is(err, errDamaged) || err != nil && s.foreign(dir) {
				continue // nobody knows its name: see Diagnose
			}
			if err != nil {
				return nil, err
			}
			name = f.head.name()
			f.close()
			if name == "" {
				continue // it holds nothing
			}
			s.names.put(dir, name)
		}
		if name > after {
			at[name] = dir
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	all := make([]string, 0, len(at))
	for name := range at {
		all = append(all, name)
	}
	slices.Sort(all)
	for _, name := range all {
		if len(names) >= n {
			break
		}
		if m, err := s.listed(at[name]); err != nil || !m.free { // not known to hold nothing
			names = append(names, name)
		}
	}
	return names, nil
}

// spaceDir lists the directories of a space's keys, and the other files that are ours.
func (s *Store) spaceDir(space string) (keys, records []string, err error) {
	names, err := list(s.root, space)
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "record-"), strings.HasPrefix(name, look):
			records = append(records, path.Join(space, name))
		case isHash(name) || space == floor && name == path.Base(floorKey):
			keys = append(keys, path.Join(space, name))
		}
	}
	return keys, records, err
}

// foreign reports whether something that is no directory, a link perhaps, has the place
// of one of ours: then nobody can hold anything there.
func (s *Store) foreign(at string) bool {
	info, err := s.root.Lstat(at)
	return err == nil && !info.IsDir()
}

// listed is the newest version by the listing alone.
func (s *Store) listed(at string) (newest marker, err error) {
	dir, err := s.root.OpenRoot(at)
	if err != nil {
		return newest, err
	}
	defer dir.Close()
	names, err := list(dir, ".")
	for _, name := range names {
		if m, ok := parseMarker(name); ok && m.version >= newest.version {
			newest = m
		}
	}
	return newest, err
}

// A nameCache remembers the names of keys by their directories, which never
// change, up to a limit.
type nameCache struct {
	mu    sync.Mutex
	names map[string]string
}

func (c *nameCache) get(dir string) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, ok := c.names[dir]
	return name, ok
}

func (c *nameCache) put(dir, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.names) >= 100_000 || c.names == nil {
		c.names = make(map[string]string)
	}
	c.names[dir] = name
}

// Traits implements driver.Store.
func (s *Store) Traits() driver.Traits { return driver.Traits{} }

// Sweep implements driver.Store. It also removes what unfinished calls have
// left behind.
func (s *Store) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	removed, err = do(ctx, s, s.calls, func() (int, error) { return s.sweep(ctx, idle) })
	if err != nil {
		return removed, fmt.Errorf("directory: sweep: %w", err)
	}
	return removed, nil
}

// leftover is the age at which no call under way can still want something.
const leftover = time.Hour

func (s *Store) sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	began := clock.Steady()
	now, err := s.probe.now(s)
	if err != nil {
		return 0, err
	}
	age := s.clock.Ages(now, began)
	s.sweepScratch(age)
	s.sweepWakes()
	for _, space := range append(spaces[:], floor) {
		n, err := s.sweepSpace(ctx, space, idle, age)
		if removed += n; err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// sweepPart is how many keys are looked at before those that are idle go: a sweep
// that does not get to its end has then removed something.
const sweepPart = 100

func (s *Store) sweepSpace(ctx context.Context, space string, idle time.Duration, age func(int64) time.Duration) (removed int, err error) {
	dirs, records, err := s.spaceDir(space)
	if err != nil {
		return 0, err
	}
	rand.Shuffle(len(dirs), func(i, j int) { dirs[i], dirs[j] = dirs[j], dirs[i] })
	newest := make(map[string]bool) // records
	for part := range slices.Chunk(dirs, sweepPart) {
		var free []string
		var highest int64
		for _, at := range part {
			if err := ctx.Err(); err != nil {
				return removed, err
			}
			m, err := s.listed(at)
			if err != nil || m.nonce == "" {
				f, err := s.lookOnce(at) // which ends a sweep that was begun
				if err == nil {
					f.close()
				}
				continue
			}
			newest[m.nonce] = true
			if m.free && space != floor {
				free, highest = append(free, at), max(highest, m.version)
			}
		}
		n, err := s.sweepKeys(ctx, free, highest, idle, age)
		if removed += n; err != nil {
			return removed, err
		}
	}
	s.sweepRecords(ctx, records, newest, age)
	return removed, nil
}

// sweepKeys removes those keys that have held nothing for long enough, if their
// versions are still not above the highest that was seen.
func (s *Store) sweepKeys(ctx context.Context, keys []string, highest int64, idle time.Duration, age func(int64) time.Duration) (removed int, err error) {
	raised := false
	for _, at := range keys {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		f, err := s.lookOnce(at)
		if err != nil || f.dir == nil || !f.empty() || f.version > highest || age(f.written) < idle {
			if err == nil {
				f.close()
			}
			continue
		}
		if !raised {
			raised = true
			if err := s.raise(ctx, highest); err != nil {
				f.close()
				return removed, err
			}
		}
		if f.dir.Rename(f.marker.String(), f.swept()) == nil { // else it was written, or swept by another
			s.finishSweep(f, f.swept(), nil)
			removed++
		}
		f.close()
	}
	return removed, nil
}

// sweepRecords removes records that belong to no version, and no longer can.
func (s *Store) sweepRecords(ctx context.Context, records []string, newest map[string]bool, age func(int64) time.Duration) {
	for _, name := range records {
		nonce, isRecord := strings.CutPrefix(path.Base(name), "record-")
		if !isRecord { // of a process that was killed in refresh
			s.root.Remove(name)
			continue
		}
		if newest[nonce] {
			continue
		}
		if _, err := s.root.Lstat(path.Join(scratch, nonce)); !gone(err) {
			continue // see create
		}
		text, written, err := s.readFile(name)
		if err != nil || age(written) < leftover {
			continue
		}
		h, _, err := decodeRecord(text)
		if err == nil {
			at := path.Join(path.Dir(name), hashed(h.name()))
			if path.Dir(name) == floor {
				at = floorKey
			}
			f, err := s.lookAt(ctx, at) // which asks the file server, if this host sees nothing
			if err != nil {
				continue
			}
			f.close()
			if f.dir != nil && (f.recordOf(f.nonce) == name || f.version <= h.Follows) {
				continue
			}
		}
		s.root.Remove(name)
	}
}

// sweepScratch removes what was never finished.
func (s *Store) sweepScratch(age func(int64) time.Duration) {
	d, err := s.root.Open(scratch)
	if err != nil {
		return
	}
	defer d.Close()
	entries, _ := d.ReadDir(-1)
	for _, e := range entries {
		name := path.Join(scratch, e.Name())
		info, err := e.Info()
		if err != nil || age(info.ModTime().UnixMicro()) < leftover || name == s.probe.file() {
			continue
		}
		if info.IsDir() && !strings.HasSuffix(name, discarded) {
			s.discard(name)
		} else {
			s.root.RemoveAll(name)
		}
	}
}

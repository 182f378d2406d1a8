package state

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// CacheOptions are settings of a cache; nil and zero values are the defaults.
type CacheOptions struct {
	TTL      time.Duration // how long a blob is served, counted from when it was made; 0: an hour
	MaxBytes int64         // of all blobs together, without those being filled; 0: 1 GiB
	// Trace is called at the end of each Get, in the caller's goroutine. nil: none.
	Trace func(context.Context, CacheEvent)
}

// A CacheEvent describes a Get. Later versions may add fields.
type CacheEvent struct {
	Kind   string
	Hit    bool          // the blob was there, or came while Get waited
	Kept   bool          // the fill was kept as a blob
	Waited time.Duration // duration of Get without the fill
	Took   time.Duration // duration of the fill; 0: there was none
	Bytes  int64         // length of what was filled
	Err    error
}

// A Cache is a directory of blobs, each under the key of the state it was made
// from, so that none has to be changed or taken back: what is no longer true is
// no longer asked for. Any number of processes may use the same directory.
type Cache struct {
	dir  string
	ttl  time.Duration
	max  int64
	opts CacheOptions
	beat time.Duration // how often a process that fills a blob shows waiters that it is alive

	mu     sync.Mutex
	root   *os.Root            // nil if it was closed
	flight map[string]*flight  // by the name of the blob
	whole  map[string]fileInfo // files of blobs that were whole
}

// A flight is a fill, or the wait for one, that others in this process wait for.
type flight struct {
	done chan struct{}
	vain bool // it ended, and its caller had not given up
}

// OpenCache opens the cache in a directory, and makes it if it is missing. It refuses a
// directory that others can write to, or that has other files in it.
func OpenCache(dir string, opts *CacheOptions) (*Cache, error) {
	var o CacheOptions
	if opts != nil {
		o = *opts
	}
	if o.TTL < 0 || o.MaxBytes < 0 {
		return nil, fmt.Errorf("cache %q: a TTL of %v and %d bytes: neither can be negative", dir, o.TTL, o.MaxBytes)
	}
	c := &Cache{opts: o, ttl: o.TTL, max: o.MaxBytes, beat: 2 * time.Second, flight: make(map[string]*flight), whole: make(map[string]fileInfo)}
	if c.ttl == 0 {
		c.ttl = time.Hour
	}
	if c.max == 0 {
		c.max = 1 << 30
	}
	var err error
	if c.dir, err = filepath.Abs(dir); err == nil && dir == "" {
		err = errors.New("no directory is named")
	}
	if err == nil {
		c.root, err = openCacheDir(c.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("cache %q: %w", dir, err)
	}
	return c, nil
}

// Close lets go of the directory. What Get has returned can still be read.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.root == nil {
		return nil
	}
	err := c.root.Close()
	c.root = nil
	return err
}

// Get returns what fill writes, from the cache if it is there for the state as
// it is now. kind names content and format, such as "info/refs v1". The answer
// is never older than a write that had ended when Get was called.
//
// fill writes to a file; if fill fails or panics, or its writer failed, nothing of it is served.
// Among all processes one fill of a blob runs at a time, and the others wait for it as long as it
// is alive; after two fills that came to nothing a caller goes ahead. What is filled while someone
// writes to the state, or while the state changes, is returned to its caller and not kept.
//
// The caller closes what it gets. It is an io.WriterTo that leaves the copying to
// the kernel where possible.
func (c *Cache) Get(ctx context.Context, s *State, kind string, fill func(context.Context, io.Writer) error) (io.ReadCloser, error) {
	if c.opts.Trace == nil {
		return c.get(ctx, s, kind, fill, new(CacheEvent))
	}
	began, e := time.Now(), CacheEvent{Kind: kind}
	b, err := c.get(ctx, s, kind, fill, &e)
	e.Hit, e.Waited, e.Err = err == nil && e.Took == 0, time.Since(began)-e.Took, err
	c.opts.Trace(ctx, e)
	return b, err
}

func (c *Cache) get(ctx context.Context, s *State, kind string, fill func(context.Context, io.Writer) error, e *CacheEvent) (io.ReadCloser, error) {
	if c.directory() == nil {
		return nil, fmt.Errorf("cache %q: %w", c.dir, os.ErrClosed)
	}
	// A caller that has waited for two fills that came to nothing goes ahead, so that callers
	// do not wait one after the other for a command that fails slowly.
	for waited := 0; ; {
		key, err := s.Key(ctx) // each time: no blob is older than the writes that had ended when Get was called
		if err != nil {
			return nil, err
		}
		if key.Writing || key.ID == "" {
			return c.fill(ctx, s, "", kind, key, fill, e)
		}
		name := blobName(s.id(), kind, key)
		if b := c.open(name); b != nil {
			return b, nil
		}
		if waited == 2 {
			return c.fill(ctx, s, name, kind, key, fill, e)
		}
		f, first := c.join(name)
		if first {
			b, err := c.lead(ctx, s, f, name, kind, key, fill, e)
			if b != nil || err != nil {
				return b, err
			}
		} else {
			select {
			case <-f.done:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if first || f.vain {
			waited++
		}
	}
}

// blobName is the name of a blob's file: a hash of what tells the blob from others,
// each part with its length before it, so that no blob can pass for another.
func blobName(id, kind string, key Key) string {
	h := sha256.New()
	for _, part := range []string{format, id, kind, key.ID, key.stamp} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		io.WriteString(h, part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// join says whether the caller is the first in this process to miss a blob; it
// must then call lead. The others wait.
func (c *Cache) join(name string) (f *flight, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.flight[name]; ok {
		return f, false
	}
	f = &flight{done: make(chan struct{})}
	c.flight[name] = f
	return f, true
}

// lead fills a blob, or waits for another process that does: then there may be
// neither a blob nor an error.
func (c *Cache) lead(ctx context.Context, s *State, f *flight, name, kind string, key Key, fill func(context.Context, io.Writer) error, e *CacheEvent) (io.ReadCloser, error) {
	f.vain = true
	defer func() { // also when fill panics
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.flight, name)
		close(f.done)
	}()
	turn, waited, err := c.claim(ctx, name)
	if err != nil {
		f.vain = false
		return nil, err
	}
	defer turn.leave()
	if b := c.open(name); b != nil { // it came while we waited, or looked
		return b, nil
	}
	if waited {
		if now, err := s.Key(ctx); err != nil || now.Writing || !now.Equal(key) {
			return nil, err
		}
	}
	b, err := c.fill(ctx, s, name, kind, key, fill, e)
	f.vain = ctx.Err() == nil
	return b, err
}

// directory is nil once the cache is closed.
func (c *Cache) directory() *os.Root {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.root
}

// create makes or opens a file of the cache, in a new directory if somebody has
// removed the old one.
func (c *Cache) create(name string, flag int) (*os.Root, *os.File, error) {
	root := c.directory()
	if root == nil {
		return nil, nil, os.ErrClosed
	}
	file, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|plainly|flag, 0o600)
	if !errors.Is(err, os.ErrNotExist) {
		return root, file, err
	}
	c.mu.Lock()
	if c.root == root {
		if again, err := openCacheDir(c.dir); err == nil {
			c.root = again // the old one may be in use: it closes when it is not
		}
	}
	root = c.root
	c.mu.Unlock()
	if root == nil {
		return nil, nil, os.ErrClosed
	}
	file, err = root.OpenFile(name, os.O_RDWR|os.O_CREATE|plainly|flag, 0o600)
	return root, file, err
}

package state

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"
)

// fill runs fill into a file and returns the file. If the blob has a name, and nobody
// wrote to the state during the fill, it is kept.
func (c *Cache) fill(ctx context.Context, s *State, name, kind string, before Key, fill func(context.Context, io.Writer) error, e *CacheEvent) (io.ReadCloser, error) {
	began := time.Now()
	defer func() { e.Took = max(time.Since(began), 1) }()
	w := &sink{ctx: ctx, cache: c, sum: seed(name)}
	defer w.end() // also when fill panics
	if err := w.begin(name); err != nil {
		return nil, fmt.Errorf("fill %q: %w", kind, err)
	}
	err := fill(ctx, w)
	if err := w.finish(err); err != nil {
		return nil, fmt.Errorf("fill %q: %w", kind, err)
	}
	b, err := newBlob(w.file)
	if err != nil {
		return nil, fmt.Errorf("fill %q: %w", kind, err)
	}
	// If someone wrote, this may be half of that write: nobody else may get it.
	if w.temp != "" && !before.Writing {
		after, err := s.Key(ctx)
		if err == nil && !after.Writing && after.Equal(before) && c.reserve(ctx, w.root, w.size) &&
			w.root.Rename(w.temp, name) == nil {
			w.temp = "" // it is a blob now
			e.Kept = true
		}
	}
	e.Bytes = w.size - int64(headerLen)
	w.file = nil // the caller's
	return b, nil
}

// A sink is what a fill writes to: a file beside the blobs, or, where that fails,
// one elsewhere that has no name.
type sink struct {
	ctx   context.Context
	cache *Cache
	root  *os.Root
	temp  string // its name, if it may become a blob

	mu    sync.Mutex // a fill may write from several goroutines, and leave some behind
	file  *os.File
	buf   []byte
	size  int64 // of the file, with its header
	sum   uint32
	err   error // the first
	ended bool
	freed bool // the cache was emptied to make room
	away  bool // the file is not in the cache
}

func (w *sink) begin(name string) (err error) {
	w.buf = make([]byte, headerLen, 64<<10) // in place of the header
	temp := tempName(name)
	if w.root, w.file, err = w.cache.create(temp, os.O_EXCL); err != nil {
		return w.elsewhere(err)
	}
	w.temp = temp
	lock(w.file)    // a sweep sees that we live
	if name == "" { // it goes when we do
		w.drop()
	}
	return nil
}

// Write implements io.Writer.
func (w *sink) Write(p []byte) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return 0, errors.New("write to a cache after the fill has returned")
	}
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	for n < len(p) && w.err == nil {
		part := p[n:min(len(p), n+cap(w.buf)-len(w.buf))]
		w.buf = append(w.buf, part...)
		w.sum = crc32.Update(w.sum, castagnoli(), part)
		if n += len(part); len(w.buf) == cap(w.buf) {
			w.flush()
		}
	}
	return n, w.err
}

// flush writes what has gathered. Where that fails it makes room, and then goes
// elsewhere.
func (w *sink) flush() {
	for len(w.buf) > 0 && w.err == nil {
		n, err := w.file.Write(w.buf)
		w.size += int64(n)
		w.buf = w.buf[:copy(w.buf, w.buf[n:])]
		switch {
		case err == nil:
		case w.away:
			w.err = err
		case full(err) && !w.freed:
			w.freed = true
			w.cache.sweep(w.root, 0)
		default:
			w.err = w.elsewhere(err)
		}
	}
}

// elsewhere goes on in a file without a name, in the directory for temporary
// files: what the cache cannot keep it can still return.
func (w *sink) elsewhere(cause error) error {
	w.away = true
	to, err := os.CreateTemp("", "holdfast-*")
	if err == nil {
		os.Remove(to.Name())
		if w.file != nil {
			_, err = io.Copy(to, io.NewSectionReader(w.file, 0, w.size))
		}
	}
	if err != nil {
		if to != nil {
			to.Close()
		}
		return fmt.Errorf("%w; nor is there room for it elsewhere: %w: make some, or name another directory in TMPDIR", cause, err)
	}
	if w.file != nil {
		w.file.Close()
	}
	w.drop()
	w.file = to
	return nil
}

// drop takes away the name of the file.
func (w *sink) drop() {
	if w.temp != "" {
		w.root.Remove(w.temp)
		w.temp = ""
	}
}

// finish ends writing: the file is whole if there is no error.
func (w *sink) finish(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if err == nil {
		w.flush()
		err = w.err
	}
	if over := w.ctx.Err(); over != nil && err == nil {
		err = over
	} else if over != nil && !errors.Is(err, over) { // a command that was killed says only that
		err = fmt.Errorf("%w: %w", over, err)
	}
	if err == nil && w.temp != "" {
		if _, err := fmt.Fprintf(io.NewOffsetWriter(w.file, 0), header, w.size-int64(headerLen), w.sum); err != nil {
			w.drop()
		}
	}
	return err
}

// end closes the file, unless it was returned, and takes away its name.
func (w *sink) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.drop()
	if w.file != nil {
		w.file.Close()
	}
}

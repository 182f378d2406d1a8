package state

import (
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"
)

// format identifies the format of blobs and of their names.
const format = "holdfast blob 1"

// A blob's file begins with a line of fixed length: the format, how many bytes
// follow, and a checksum of the blob's name and those bytes. A process checks it when
// it opens a blob for the first time, and again if the file has changed since: damage
// by a power cut or a person is noticed before the first byte is served. So no fill
// waits for fsync, whose promise a disk may break, and a damaged blob is only one
// more miss.
const (
	header    = format + " %016x %08x\n"
	headerLen = len(format) + 1 + 16 + 1 + 8 + 1
)

// castagnoli is made when it is first used: that takes a quarter of a millisecond.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// seed is the checksum of a blob without any bytes.
func seed(name string) uint32 { return crc32.Checksum([]byte(name), castagnoli()) }

// A blob is a blob's open file, read from behind its header.
type blob struct{ file *os.File }

func (b *blob) Read(p []byte) (int, error)         { return b.file.Read(p) }
func (b *blob) WriteTo(w io.Writer) (int64, error) { return b.file.WriteTo(w) }
func (b *blob) Close() error                       { return b.file.Close() }
func newBlob(file *os.File) (b *blob, err error) {
	_, err = file.Seek(int64(headerLen), io.SeekStart)
	return &blob{file}, err
}

// open returns a blob that is whole and young enough, or nil. An open blob can be
// read to its end, whatever becomes of its name.
func (c *Cache) open(name string) io.ReadCloser {
	root := c.directory()
	if root == nil {
		return nil
	}
	file, err := root.OpenFile(name, os.O_RDONLY|plainly, 0)
	if err != nil {
		return nil
	}
	info, err := describe(file)
	// A blob from the future was written before the clock went back.
	if err == nil && info.regular && time.Since(time.Unix(0, info.mtime)).Abs() <= c.ttl {
		if c.checked(name, info) || whole(file, name, info.size) {
			if b, err := newBlob(file); err == nil {
				c.remember(name, info)
				return b
			}
		} else if hasName(root, name, file) {
			root.Remove(name)
		}
	}
	file.Close()
	return nil
}

// checked says whether a blob was whole when it was opened before, and its file
// is still the same.
func (c *Cache) checked(name string, info fileInfo) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, ok := c.whole[name]
	return ok && was == info
}

func (c *Cache) remember(name string, info fileInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.whole) >= 10000 {
		clear(c.whole) // most of them are never asked for again
	}
	c.whole[name] = info
}

// whole says whether a file is what was once written under that name.
func whole(file *os.File, name string, size int64) bool {
	buf := buffers.Get().(*[128 << 10]byte)
	defer buffers.Put(buf)
	n, err := io.ReadFull(file, buf[:min(size, int64(len(buf)))])
	if err != nil || n < headerLen {
		return false
	}
	var length int64
	var want uint32
	if _, err := fmt.Sscanf(string(buf[:headerLen]), header, &length, &want); err != nil || length != size-int64(headerLen) {
		return false
	}
	sum := crc32.Update(seed(name), castagnoli(), buf[headerLen:n])
	for left := size - int64(n); left > 0; left -= int64(n) {
		if n, err = io.ReadFull(file, buf[:min(left, int64(len(buf)))]); err != nil {
			return false
		}
		sum = crc32.Update(sum, castagnoli(), buf[:n])
	}
	return sum == want
}

var buffers = sync.Pool{New: func() any { return new([128 << 10]byte) }}

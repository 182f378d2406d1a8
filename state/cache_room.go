package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// The space that all blobs take is counted in a file. A process adds a blob to the
// count before the blob has its name: so it need not look at all other blobs, and
// if it dies it has counted too much, never too little. When there is no room, and
// once in each TTL, one process goes through all blobs. It removes what has expired,
// and the oldest until three quarters are left, so that the next time is a quarter of
// the cache away. This also restores a lost count.
const (
	countName = "size"
	count     = "%019d %019d\n" // bytes, and when all was counted
	countLen  = 19 + 1 + 19 + 1
	block     = 4096 // the least that a file takes
)

// reserve counts a blob and makes room for it. A blob that cannot be counted must
// not be kept.
func (c *Cache) reserve(ctx context.Context, root *os.Root, size int64) bool {
	size = blocks(size)
	if size > c.max {
		return false
	}
	file, err := root.OpenFile(countName, os.O_RDWR|os.O_CREATE|plainly, 0o600)
	if err != nil {
		return false
	}
	defer file.Close()
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if err := lock(file); err == nil || !busy(err) {
			break
		}
		if time.Since(began) > 5*c.beat || ctx.Err() != nil {
			return false // the process that has it is stuck
		}
		time.Sleep(pause)
	}
	used, swept, ok := readCount(file)
	now := time.Now()
	if !ok || used > c.max-size || now.Sub(time.Unix(swept, 0)).Abs() > c.ttl {
		if used, err = c.sweep(root, max(0, c.max/4*3-size)); err != nil {
			return false
		}
		swept = now.Unix()
	}
	used += size
	_, err = fmt.Fprintf(io.NewOffsetWriter(file, 0), count, used, swept)
	return err == nil && used <= c.max
}

func readCount(file *os.File) (used, swept int64, ok bool) {
	text := make([]byte, countLen)
	if n, _ := file.ReadAt(text, 0); n != countLen {
		return 0, 0, false
	}
	_, err := fmt.Sscanf(string(text), count, &used, &swept)
	return used, swept, err == nil && used >= 0
}

func blocks(size int64) int64 { return (size + block - 1) / block * block }

// sweep removes what has expired, what dead fills have left behind, and then the
// oldest blobs until the rest takes no more than limit. It returns the bytes left.
// Files that are not the cache's stay.
func (c *Cache) sweep(root *os.Root, limit int64) (left int64, err error) {
	dir, err := root.Open(".")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	type found struct { // small: there may be a quarter of a million
		id         [32]byte
		size, made int64
	}
	var blobs []found
	var other []string // what only the dead leave behind
	for err == nil {
		var names []string
		names, err = dir.Readdirnames(1000)
		for _, name := range names {
			id, suffix, _ := strings.Cut(name, ".")
			var b found
			if !isID(id, &b.id) {
				continue
			}
			if suffix != "" {
				other = append(other, name)
			} else if name == id {
				blobs = append(blobs, b)
			}
		}
	}
	if err != io.EOF {
		return 0, err
	}
	for _, name := range other {
		removeDead(root, name)
	}
	for i := range blobs {
		b := &blobs[i]
		info, err := root.Lstat(hex.EncodeToString(b.id[:]))
		if err != nil || !info.Mode().IsRegular() {
			continue // gone, or nothing that we have made
		}
		b.size, b.made = blocks(info.Size()), info.ModTime().UnixNano()
		if time.Since(info.ModTime()).Abs() > c.ttl && root.Remove(info.Name()) == nil {
			b.size = 0
		}
		left += b.size
	}
	if left <= limit {
		return left, nil
	}
	slices.SortFunc(blobs, func(a, b found) int { return cmp.Compare(a.made, b.made) })
	for _, b := range blobs {
		if left <= limit {
			break
		}
		if b.size > 0 && root.Remove(hex.EncodeToString(b.id[:])) == nil {
			left -= b.size
		}
	}
	return left, nil
}

func isID(s string, id *[32]byte) bool {
	if len(s) != 64 || strings.ToLower(s) != s {
		return false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return err == nil
}

// tempName names the file of a fill, after the blob that it is to become.
func tempName(name string) string {
	if name == "" {
		name = strings.Repeat("0", 64)
	}
	return name + "." + strings.ToLower(rand.Text()[:tempLen])
}

const tempLen = 20

// removeDead removes a file that a dead fill has left behind: a live fill has a lock
// on its file.
func removeDead(root *os.Root, name string) {
	_, suffix, _ := strings.Cut(name, ".")
	if "."+suffix != lockSuffix && (len(suffix) != tempLen || strings.Trim(suffix, "abcdefghijklmnopqrstuvwxyz234567") != "") {
		return
	}
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return
	}
	file, err := root.OpenFile(name, os.O_RDWR|plainly, 0)
	if err != nil {
		return
	}
	defer file.Close()
	if lock(file) == nil && hasName(root, name, file) {
		root.Remove(name)
	}
}

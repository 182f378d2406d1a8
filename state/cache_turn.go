package state

import (
	"context"
	"crypto/rand"
	"os"
	"time"
)

// A turn is a process's right to fill a blob: the kernel's lock on a file, which
// ends with the process. It only saves work: without it several processes would fill,
// each into a file of its own, and the last would win, with the same answer.
type turn struct {
	root *os.Root
	name string
	file *os.File
	stop chan struct{}
	done chan struct{}
}

// claim waits for the turn to fill a blob. It returns neither a turn nor an error if
// the blob has come, if the process that has the turn stands still, after two fills
// that came to nothing, and where there are no such locks.
func (c *Cache) claim(ctx context.Context, name string) (t *turn, waited bool, err error) {
	var seen string // what the file said that another process has locked
	since := time.Now()
	fills, gone := 1, 0 // fills that were waited for
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		root, file, err := c.create(name+lockSuffix, 0)
		if err != nil {
			return nil, waited, nil
		}
		err = lock(file)
		if err == nil && hasName(root, name+lockSuffix, file) {
			return c.take(root, name, file), waited, nil
		}
		says := make([]byte, 32)
		n, _ := file.ReadAt(says, 0)
		file.Close()
		if err == nil && gone < 100 {
			gone++
			continue // it was released and removed
		}
		if !busy(err) { // also if it never has its name, as behind a symbolic link
			return nil, waited, nil
		}
		now := string(says[:n])
		if min(len(now), len(seen)) >= nonceLen && now[:nonceLen] != seen[:nonceLen] {
			fills++ // of another process
		}
		if now != seen {
			seen, since = now, time.Now()
		}
		if fills > 2 || time.Since(since) > 5*c.beat {
			return nil, waited, nil
		}
		waited = true
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, waited, ctx.Err()
		}
		if b := c.open(name); b != nil {
			b.Close()
			return nil, waited, nil
		}
	}
}

const (
	lockSuffix = ".lock"
	nonceLen   = 16
)

// take shows waiters, again and again, that this process is at work.
func (c *Cache) take(root *os.Root, name string, file *os.File) *turn {
	t := &turn{root, name, file, make(chan struct{}), make(chan struct{})}
	if info, err := file.Stat(); err == nil && info.Size() > 0 {
		c.sweep(root, c.max) // the process that had it has died, and left a file behind
	}
	says := append([]byte(rand.Text()[:nonceLen]), 0)
	file.WriteAt(says, 0)
	go func() {
		defer close(t.done)
		tick := time.NewTicker(c.beat)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				says[nonceLen]++
				file.WriteAt(says[nonceLen:], nonceLen)
			case <-t.stop:
				return
			}
		}
	}()
	return t
}

// leave ends a turn.
func (t *turn) leave() {
	if t == nil {
		return
	}
	close(t.stop)
	<-t.done
	t.root.Remove(t.name + lockSuffix)
	t.file.Close()
}

// hasName says whether a file still has its name.
func hasName(root *os.Root, name string, file *os.File) bool {
	is, err := file.Stat()
	if err != nil {
		return false
	}
	has, err := root.Lstat(name)
	return err == nil && os.SameFile(is, has)
}

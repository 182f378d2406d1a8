//go:build unix

package notify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"golang.org/x/sys/unix"
)

// A listing is what the directory of pipes held.
type listing struct {
	dir   string    // "" before the first look
	mtime time.Time // of the directory; zero if the listing may be stale
	pipes []string
}

// directory is where the pipes are, beside the file that Path leads to.
func (b *Board) directory() (string, error) {
	path, err := filepath.EvalSymlinks(b.Path)
	return path + "-wake", err
}

// Watch is driver.Watcher's. A process that may not use the directory of pipes polls.
func (b *Board) Watch(ctx context.Context, changed func(driver.Notification)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &watcher{changed: changed}
	pipe, name, err := b.add(w)
	if err != nil {
		return fmt.Errorf("waiters poll, for they cannot be woken: %w", err)
	}
	defer b.remove(pipe, name)
	defer context.AfterFunc(ctx, func() { pipe.SetReadDeadline(time.Unix(1, 0)) })()

	w.call(driver.Notification{}) // what was written before is not told of
	buf := make([]byte, 64<<10)
	kept := 0
	for {
		n, err := pipe.Read(buf[kept:])
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("watch %s: %w", name, err)
		}
		notifications, rest := split(buf[:kept+n])
		if n > 2048 {
			// This much may have filled the pipe, and more may have been turned away.
			notifications = append(notifications, driver.Notification{})
		}
		w.call(notifications...)
		kept = copy(buf, rest)
	}
}

// add makes a pipe for a watcher. The pipe gets its name only when it can be
// read: whoever meets a pipe that nobody reads removes it.
func (b *Board) add(who *watcher) (pipe *os.File, name string, err error) {
	dir, err := b.directory()
	if err != nil {
		return nil, "", err
	}
	gid := b.group()
	if !b.NoMkdir {
		err := os.Mkdir(dir, 0o700)
		if err == nil && gid >= 0 {
			err = errors.Join(os.Chown(dir, -1, gid), os.Chmod(dir, fs.ModeSetgid|0o770))
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, "", err
		}
	}
	if info, err := os.Lstat(dir); err != nil {
		return nil, "", err
	} else if !info.IsDir() {
		return nil, "", fmt.Errorf("%s is not a directory", dir)
	}
	name = filepath.Join(dir, rand.Text())
	hidden := filepath.Join(dir, "."+filepath.Base(name))
	if err := unix.Mkfifo(hidden, 0o600); err != nil {
		return nil, "", &fs.PathError{Op: "mkfifo", Path: hidden, Err: err}
	}
	if gid >= 0 {
		os.Chown(hidden, -1, gid)
		os.Chmod(hidden, 0o660)
	}
	// Open for writing too, so that reads never meet its end.
	fd, err := unix.Open(hidden, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		os.Remove(hidden)
		return nil, "", &fs.PathError{Op: "open", Path: hidden, Err: err}
	}
	pipe = os.NewFile(uintptr(fd), name)
	if err := os.Rename(hidden, name); err != nil {
		pipe.Close()
		os.Remove(hidden)
		return nil, "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watchers == nil {
		b.watchers = make(map[string]*watcher)
	}
	b.watchers[name] = who
	return pipe, name, nil
}

// group is the file's group, if it may write there: then its members wake each other. Else -1.
func (b *Board) group() (gid int) {
	info, err := os.Stat(b.Path)
	if err != nil || info.Mode().Perm()&0o020 == 0 {
		return -1
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Gid)
	}
	return -1
}

func (b *Board) remove(pipe *os.File, name string) {
	b.mu.Lock()
	delete(b.watchers, name)
	b.mu.Unlock()
	os.Remove(name)
	pipe.Close()
}

// tellOthers writes the notifications to the pipes of other watchers.
func (b *Board) tellOthers(notifications []driver.Notification) {
	for _, name := range b.others() {
		send(name, notifications)
	}
}

// others are the pipes that do not belong to this Board.
func (b *Board) others() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.listed
	if l.dir == "" {
		dir, err := b.directory()
		if err != nil {
			return nil
		}
		l.dir = dir
	}
	info, err := os.Lstat(l.dir)
	if err != nil || !info.IsDir() {
		l.mtime, l.pipes = time.Time{}, nil
		return nil
	}
	if !l.mtime.Equal(info.ModTime()) || l.mtime.IsZero() {
		l.pipes = l.pipes[:0]
		entries, _ := os.ReadDir(l.dir)
		for _, e := range entries {
			switch path := filepath.Join(l.dir, e.Name()); {
			case e.Type() != fs.ModeNamedPipe:
			case !strings.HasPrefix(e.Name(), "."):
				l.pipes = append(l.pipes, path)
			default: // left by a process that died at this point
				if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Minute {
					os.Remove(path)
				}
			}
		}
		// A change within one tick of the kernel's clock does not show.
		l.mtime = time.Time{}
		if time.Since(info.ModTime()) > 50*time.Millisecond {
			l.mtime = info.ModTime()
		}
	}
	others := make([]string, 0, len(l.pipes))
	for _, name := range l.pipes {
		if b.watchers[name] == nil {
			others = append(others, name)
		}
	}
	return others
}

// send writes the notifications to a pipe. A pipe that nobody reads is removed; the
// reader of a full one is awake already.
func send(name string, notifications []driver.Notification) {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err == unix.ENXIO {
		os.Remove(name)
	}
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if unix.Fstat(fd, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return
	}
	for _, h := range notifications {
		if _, err := unix.Write(fd, message(h)); err != nil {
			return
		}
	}
}

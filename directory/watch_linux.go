package directory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"golang.org/x/sys/unix"
)

const watchable = true

// Watch implements driver.Watcher on the host whose disk the directory is on.
// On others it fails, and waiters poll.
func (s *Store) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	return s.watches.Run(ctx, func(ctx context.Context) error { return s.watch(ctx, who, changed) })
}

func (s *Store) watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.local {
		return fmt.Errorf("waiters poll: %s may be changed by other hosts, of which this kernel does not tell", s.path)
	}
	if who == nil {
		who = []string{all}
	} else {
		who = append([]string(nil), who...)
		for i := range who {
			who[i] = wakeName(who[i])
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("waiters poll: inotify: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.SetReadDeadline(time.Unix(1, 0)) })()

	var files []*wakeFile
	defer func() {
		for _, f := range files {
			s.root.Remove(f.name)
			f.file.Close()
		}
	}()
	for _, w := range who {
		f, err := s.newWake(w)
		if err != nil {
			return fmt.Errorf("waiters poll: %w", err)
		}
		files = append(files, f)
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(s.path, f.name), unix.IN_MODIFY|unix.IN_DELETE_SELF); err != nil {
			return fmt.Errorf("waiters poll: inotify: %w", err)
		}
	}

	changed(driver.Notification{}) // what was written before is not told of
	buf := make([]byte, 64*unix.SizeofInotifyEvent)
	for {
		// What the events say does not matter: each file is read to its end.
		_, err := events.Read(buf)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		for _, f := range files {
			if err := f.read(changed); err != nil {
				return fmt.Errorf("watch %s: %w", f.name, err)
			}
		}
	}
}

// A wakeFile is where the notifications for one watcher are.
type wakeFile struct {
	name string
	file *os.File
	rest []byte
	at   int64
}

// newWake makes a file, and locks it: an unlocked one belongs to nobody.
func (s *Store) newWake(who string) (*wakeFile, error) {
	id := rand.Text()
	hidden := path.Join(scratch, "wake-"+id)
	file, err := s.newFile(hidden, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	f := &wakeFile{name: path.Join(wakes, who+"."+id), file: file}
	if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = s.root.Rename(hidden, f.name)
	}
	if err != nil {
		s.root.Remove(hidden)
		file.Close()
		return nil, err
	}
	return f, nil
}

// read calls changed for all that was appended since the last read.
func (f *wakeFile) read(changed func(driver.Notification)) error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink == 0 {
		return errors.New("it was removed")
	}
	text := make([]byte, max(0, info.Size()-f.at))
	n, err := f.file.ReadAt(text, f.at)
	if err != nil && err != io.EOF {
		return err
	}
	f.at += int64(n)
	var notifications []driver.Notification
	notifications, f.rest = split(append(f.rest, text[:n]...))
	if f.at > longWake {
		// What is appended in between is lost; the last notification stands for it.
		if err := f.file.Truncate(0); err != nil {
			return err
		}
		f.at, f.rest = 0, nil
		notifications = append(notifications, driver.Notification{})
	}
	for _, h := range notifications {
		changed(h)
	}
	return nil
}

// sweepWakes removes the files of watchers that are gone.
func (s *Store) sweepWakes() {
	if !s.local {
		return
	}
	for _, name := range s.wakeFiles() {
		f, err := s.root.OpenFile(path.Join(wakes, name), os.O_RDONLY|nonblock, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			s.root.Remove(path.Join(wakes, name))
		}
		f.Close()
	}
}

//go:build linux

// Package life has processes leave a record of when they lived: the stamp of
// their begin and, each millisecond, that of the present. What a killed process
// wrote last is a moment at which it certainly lived, so two lives that overlap
// by their records have overlapped.
package life

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Now is CLOCK_BOOTTIME in nanoseconds, the same for all processes of a machine.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// A Life is being lived.
type Life struct {
	file *os.File
	span Span
	mark net.Listener
}

// A Span is what is known of a life.
type Span struct {
	Token       int64 // of the hold in which it was lived
	PID         int
	Begin, Last int64
	Beside      int64 // processes of other holds that lived when it began, by the kernel
}

// Begin begins a life under a token and leaves its record in dir. With a world
// it also carries a socket whose name the kernel forgets when the process has
// ended, and counts the sockets of other holds in that world.
func Begin(dir, world string, token int64) (*Life, error) {
	l := &Life{span: Span{Token: token, PID: os.Getpid(), Begin: Now()}}
	l.span.Last = l.span.Begin
	if world != "" {
		var err error
		world = fmt.Sprintf("%x", sha256.Sum256([]byte(world)))[:32] // such names are short
		own := fmt.Sprintf("@%s/%d/", world, token)
		if l.mark, err = net.Listen("unix", fmt.Sprintf("%s%d", own, os.Getpid())); err != nil {
			return nil, err
		}
		table, err := os.ReadFile("/proc/net/unix")
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(table) {
			if bytes.Contains(line, []byte("@"+world+"/")) && !bytes.Contains(line, []byte(own)) {
				l.span.Beside++
			}
		}
	}
	temporary := filepath.Join(dir, fmt.Sprintf(".%d-%d-%d", token, os.Getpid(), l.span.Begin))
	var err error
	if l.file, err = os.Create(temporary); err != nil {
		return nil, err
	}
	if err := l.write(); err != nil {
		return nil, err
	}
	return l, os.Rename(temporary, strings.Replace(temporary, "/.", "/", 1))
}

const form = "%020d %08d %020d %020d %04d\n"

func (l *Life) write() error {
	_, err := l.file.WriteAt(fmt.Appendf(nil, form, l.span.Token, l.span.PID, l.span.Begin, l.span.Last, l.span.Beside), 0)
	return err
}

// Tick writes the present.
func (l *Life) Tick() {
	l.span.Last = Now()
	if err := l.write(); err != nil {
		panic(err)
	}
}

// For ticks for that long.
func (l *Life) For(d time.Duration) {
	for end := l.span.Begin + int64(d); Now() < end; {
		doze(min(time.Millisecond, time.Duration(end-Now())))
		l.Tick()
	}
}

// While ticks until it is not so.
func (l *Life) While(so func() bool) {
	for so() {
		doze(time.Millisecond)
		l.Tick()
	}
}

// doze sleeps without telling the scheduler of Go, which would watch the thread meanwhile:
// dozens of lives a machine would be busy with nothing else.
func doze(d time.Duration) {
	t := unix.NsecToTimespec(max(int64(d), 0))
	syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// End is the last tick of a life that ends by itself.
func (l *Life) End() {
	l.Tick()
	l.file.Close()
	if l.mark != nil {
		l.mark.Close()
	}
}

// Read reads all records in dir, in the order of their begin.
func Read(dir string) ([]Span, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []Span
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		var s Span
		if _, err := fmt.Sscanf(string(text), form, &s.Token, &s.PID, &s.Begin, &s.Last, &s.Beside); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", e.Name(), text, err)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Span) int { return int(a.Begin - b.Begin) })
	return all, nil
}

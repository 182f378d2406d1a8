package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/holdfast-lock/holdfast/state"
)

// states asks for the key of a state that nobody writes to, and writes to it.
func states(b *bench) (rows []Row, err error) {
	if !b.has("dir") {
		return nil, nil
	}
	dir := b.path("repository")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	plain, err := state.Dir(dir, nil)
	if err != nil {
		return nil, err
	}
	l, err := openDirectory(b.ctx, &b.site, options{})
	if err != nil {
		return nil, err
	}
	client := l.(*client)
	defer func() { err = errors.Join(err, client.close()) }()
	named := state.On(client.Client, "repository")
	for _, s := range []*state.State{plain, named} { // what the first makes is there
		if err := s.Write(b.ctx, func(context.Context) error { return nil }); err != nil {
			return nil, err
		}
	}
	key, pending := filepath.Join(dir, "state", "key"), filepath.Join(dir, "state", "pending")
	read := func(s *state.State) func() error {
		return func() error {
			k, err := s.Key(b.ctx)
			if err == nil && (k.Writing || k.ID == "") {
				err = fmt.Errorf("the key is %+v, and nobody writes", k)
			}
			return err
		}
	}
	write := func(s *state.State) func() error {
		return func() error {
			w, err := s.Begin(b.ctx)
			if err != nil {
				return err
			}
			return w.End(b.ctx)
		}
	}
	links, err := openLinks(b.ctx, &b.site, options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, links.close()) }()

	const bare, floor = "list and read two files", "link, unlink"
	work := []struct {
		system, what, of string
		n                int
		do               func() error
	}{
		{bare, "key", bare, 200, func() error { return bareKey(pending, key) }},
		{"stat of one file", "key", bare, 200, func() error { _, err := os.Stat(key); return err }},
		{"state.Dir", "key", bare, 200, read(plain)},
		{"state.On a directory", "key", bare, 200, read(named)},
		{floor, "write", floor, 20, func() error { return pair(b.ctx, links, "repository") }},
		{"state.Dir", "write", floor, 20, write(plain)},
		{"state.On a directory", "write", floor, 20, write(named)},
	}
	var runs []run
	for _, w := range work {
		runs = append(runs, run{name: w.system, round: func() (series, error) {
			n := w.n
			if b.quick {
				n /= 10
			}
			return timed(n, w.do)
		}})
	}
	taken, err := b.take(b.rounds, true, runs)
	if err != nil {
		return nil, err
	}
	for i, w := range work {
		unit, scale := "µs", 1e6
		row := taken[i].row(Row{Store: "dir", System: w.system, Case: w.what}, unit, scale)
		if w.system != w.of {
			of := 0
			for work[of].system != w.of {
				of++
			}
			row.Ratio, row.Of = taken[i].ratio(taken[of]), w.of
		}
		if w.system == "state.Dir" && w.what == "key" {
			row = row.aims("≤ 2x", row.Ratio <= 2)
		}
		if w.what == "write" {
			row.Disk = bothWait
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// bareKey reads what has to be read for a key, and no more.
func bareKey(pending, key string) error {
	entries, err := os.ReadDir(pending)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return errors.New("somebody writes")
	}
	_, err = os.ReadFile(key)
	return err
}

// caches gets a blob of 1 MiB that is in the cache.
func caches(b *bench) (rows []Row, err error) {
	if !b.has("dir") {
		return nil, nil
	}
	dir := b.path("cached")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	blob := make([]byte, 1<<20)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, blob, 0o600); err != nil {
		return nil, err
	}
	s, err := state.Dir(dir, nil)
	if err != nil {
		return nil, err
	}
	c, err := state.OpenCache(b.path("cache"), nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	fills := 0
	get := func() (io.ReadCloser, error) {
		return c.Get(b.ctx, s, "bench", func(_ context.Context, w io.Writer) error {
			fills++
			_, err := w.Write(blob)
			return err
		})
	}
	plain := func() (io.ReadCloser, error) { return os.Open(file) }
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	pipe, shut, err := drain()
	if err != nil {
		return nil, err
	}
	defer shut()

	buffer := make([]byte, 128<<10) // as cat has
	read := func(open func() (io.ReadCloser, error)) func() error {
		return stream(open, func(r io.Reader) (int64, error) {
			return io.CopyBuffer(struct{ io.Writer }{null}, struct{ io.Reader }{r}, buffer)
		})
	}
	send := func(open func() (io.ReadCloser, error)) func() error {
		return stream(open, func(r io.Reader) (int64, error) { return io.Copy(pipe, r) })
	}
	type one struct {
		system, what string
		n            int
		do           func() error
	}
	work := []one{
		{"open, read", "read", 50, read(plain)},
		{"Cache.Get", "read", 50, read(get)},
		{"open, read", "into a pipe", 50, send(plain)},
		{"Cache.Get", "into a pipe", 50, send(get)},
	}
	holdfast, err := b.holdfast()
	if err != nil {
		return nil, err
	}
	if holdfast == "" {
		rows = append(rows, Row{Store: "dir", System: "holdfast cache"}.notes("skipped: the command does not build here"))
	} else {
		line := []string{holdfast, "cache", "--dir", b.path("cache-command"), "--state", dir, "--kind", "bench", "--", "cat", file}
		work = append(work,
			one{"cat", "whole command", 3, b.prints(len(blob), "cat", file)},
			one{"holdfast version", "whole command", 3, b.prints(-1, holdfast, "version")},
			one{"holdfast cache", "whole command", 3, b.prints(len(blob), line...)},
		)
	}
	var runs []run
	for _, w := range work {
		runs = append(runs, run{name: w.system, round: func() (series, error) { return timed(w.n, w.do) }})
	}
	taken, err := b.take(b.rounds, true, runs)
	if err != nil {
		return nil, err
	}
	if fills != 1 {
		return nil, fmt.Errorf("the blob was filled %d times, want once", fills)
	}
	of := 0
	for i, w := range work {
		if work[of].what != w.what {
			of = i
		}
		row := taken[i].row(Row{Store: "dir", System: w.system, Case: "1 MiB, " + w.what}, "ms", 1e3)
		if i != of {
			row.Ratio, row.Of = taken[i].ratio(taken[of]), work[of].system
		}
		if w.system == "Cache.Get" || w.system == "holdfast cache" {
			row = row.aims("≤ 3x", row.Ratio <= 3)
		}
		if w.system == "holdfast cache" {
			row = row.notes("%.1f ms more than cat", taken[i].over(taken[of])*1e3)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// stream opens something, has it copied, and closes it.
func stream(open func() (io.ReadCloser, error), copied func(io.Reader) (int64, error)) func() error {
	return func() error {
		r, err := open()
		if err != nil {
			return err
		}
		n, err := copied(r)
		if err == nil && n != 1<<20 {
			err = fmt.Errorf("%d bytes came", n)
		}
		return errors.Join(err, r.Close())
	}
}

// drain is a pipe whose other end is read.
func drain() (pipe *os.File, shut func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 128<<10)
		for err := error(nil); err == nil; {
			_, err = r.Read(buffer)
		}
	}()
	return w, func() { w.Close(); <-done; r.Close() }, nil
}

// prints runs a command whose output is read, so many bytes of it.
func (b *bench) prints(want int, line ...string) func() error {
	return func() error {
		cmd := exec.CommandContext(b.ctx, line[0], line[1:]...)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+b.dir)
		var n countingWriter
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = &n, &said
		err := cmd.Run()
		if err == nil && want >= 0 && int(n) != want {
			err = fmt.Errorf("%d bytes came", n)
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, said.String())
		}
		return nil
	}
}

type countingWriter int64

func (n *countingWriter) Write(p []byte) (int, error) {
	*n += countingWriter(len(p))
	return len(p), nil
}

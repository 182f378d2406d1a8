package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// costs counts what a lock costs a store and those who use it: statements, bytes of the log, syncs
// of the disk and processor time, of each thing that a client does. Nothing else is measured
// meanwhile.
func costs(b *bench) ([]Row, error) {
	return b.eachStore("latency", func(ss []*system) (rows []Row, err error) {
		if !ss[0].kind().costed {
			return nil, nil
		}
		for _, s := range ss {
			if s.name != s.of && s.name != "holdfast" {
				continue
			}
			some, err := b.costsOf(s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			rows = append(rows, some...)
		}
		return rows, nil
	})
}

func (b *bench) costsOf(s *system) (rows []Row, err error) {
	n := 2000
	if b.quick || s.store == "etcd" || s.store == "dir" {
		n = 300
	}
	var o options
	if s.store == "postgres" { // which counts late: with one connection all of it with the last statement
		o.Conns = 1
	}
	l, err := s.open(b.ctx, &b.site, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	add := func(what string, u *usage) {
		row := s.row(what)
		row.Uses = u
		row.Unit, row.Median = "ms of processors", u.Client+u.Server
		rows = append(rows, row)
	}
	fresh := 0
	for _, what := range []string{"a free lock", "a new name"} {
		used, err := b.cost(s, l, n, func() error {
			name := "nightly"
			if what == "a new name" {
				fresh++
				name = fmt.Sprintf("cost/%d", fresh)
			}
			return pair(b.ctx, l, name)
		})
		if err != nil {
			return nil, err
		}
		if s.store == "sqlite" || s.store == "dir" {
			if err := b.watchFiles(s, what, used); err != nil {
				return nil, err
			}
		}
		add(what, used)
	}
	if !s.ours() {
		return rows, nil
	}
	beat, err := b.beats(s)
	if err != nil {
		return nil, err
	}
	add("a heartbeat", beat)
	c, err := b.crowd(s, 2, options{})
	if err != nil {
		return nil, err
	}
	hand := &usage{}
	hand.add(c.used, float64(c.turns))
	if hand = hand.each(); hand != nil {
		add("a hand-off, 2 processes", hand)
	}
	return rows, nil
}

// cost is what n calls of f use. Servers count some of that a second late.
func (b *bench) cost(s *system, l locker, n int, f func() error) (*usage, error) {
	settle := func() error {
		err := f()
		if err == nil {
			err = b.sleep(1200 * time.Millisecond)
		}
		return errors.Join(err, f())
	}
	if err := settle(); err != nil {
		return nil, err
	}
	before, err := b.read(s, l)
	if err != nil {
		return nil, err
	}
	for range n {
		if err := f(); err != nil {
			return nil, err
		}
	}
	if err := settle(); err != nil {
		return nil, err
	}
	after, err := b.read(s, l)
	u := &usage{}
	u.add(after.since(before), float64(n+2))
	return u.each(), err
}

// beats is what a heartbeat uses of a session that holds one lock: of many sessions, with a short
// TTL that is theirs, so that the setting is not looked at.
func (b *bench) beats(s *system) (*usage, error) {
	o := options{TTL: 2 * time.Second, Count: 50}
	length := 8 * time.Second
	if b.quick {
		length = 3 * time.Second
	}
	ps, err := b.players(1, "many", s, o)
	if err != nil {
		return nil, err
	}
	defer dismiss(ps)
	b.round++
	if err := ps[0].order("hold beats/%d", b.round); err != nil {
		return nil, err
	}
	if _, err := ps[0].expect("held"); err != nil {
		return nil, err
	}
	if err := b.sleep(2 * time.Second); err != nil {
		return nil, err
	}
	before, err := b.look(s, ps[0])
	if err == nil {
		err = b.sleep(length)
	}
	if err != nil {
		return nil, err
	}
	after, err := b.look(s, ps[0])
	used := &usage{}
	used.add(after.since(before), after.beats-before.beats)
	return used.each(), err
}

// A manyCount is what many clients in a process have done.
type manyCount struct{ Requests, Beats float64 }

// watchFiles adds what a store in files writes and syncs, as the kernel is asked by a process of
// its own.
func (b *bench) watchFiles(s *system, what string, used *usage) error {
	strace, err := exec.LookPath("strace")
	if err != nil {
		b.say("SKIPPED: there is no strace, so what %s writes is not counted", s.store)
		return nil
	}
	n := 50
	b.round++
	out := b.path(fmt.Sprintf("calls%d", b.round))
	p, err := b.playerBehind([]string{strace, "-f", "-y", "-s", "16", "-o", out,
		"-e", "trace=fsync,fdatasync,write,pwrite64"}, "ops", s, options{Count: n, Fresh: what == "a new name"})
	if err != nil {
		return err
	}
	for _, word := range []string{"ready", "from", "done"} {
		if word == "from" {
			if err := p.order("go"); err != nil {
				return err
			}
		}
		if _, err := p.expect(word); err != nil {
			return err
		}
	}
	if err := p.end(); err != nil {
		return err
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	_, text2, ok := strings.Cut(string(text), `"from`)
	text2, _, ok2 := strings.Cut(text2, `"done`)
	if !ok || !ok2 {
		return errors.New("strace shows no begin or no end")
	}
	log, syncs := 0.0, 0.0
	for line := range strings.Lines(text2) {
		if m := synced.FindString(line); m != "" {
			syncs++
		}
		if m := wrote.FindStringSubmatch(line); m != nil && strings.HasPrefix(m[1], b.dir) {
			bytes, _ := strconv.ParseFloat(m[2], 64)
			log += bytes
		}
	}
	used.Log, used.Syncs = log/float64(n), syncs/float64(n)
	return nil
}

var (
	synced = regexp.MustCompile(`^\d+ +f(?:data)?sync\(`)
	wrote  = regexp.MustCompile(`^\d+ +p?write(?:64)?\(\d+<([^>]*)>, "(?:[^"\\]|\\.)*"(?:\.\.\.)?, (\d+)`)
)

// playPairs takes locks and gives them back, between two lines that it tells.
func playPairs(t *task, orders *bufio.Scanner) error {
	ctx := context.Background()
	l, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	name := func(int) string { return "watched" }
	if t.Options.Fresh {
		name = func(i int) string { return fmt.Sprintf("watched/%d/%d", os.Getpid(), i) }
	}
	for i := range 10 {
		if err := pair(ctx, l, name(-1-i)); err != nil {
			return err
		}
	}
	tell("ready")
	orders.Scan()
	tell("from")
	for i := range t.Options.Count {
		if err := pair(ctx, l, name(i)); err != nil {
			return err
		}
	}
	tell("done")
	orders.Scan()
	return orders.Err()
}

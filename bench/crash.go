package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A death is a way in which a holder goes.
type death struct {
	what      string
	elsewhere bool // as if holder and waiter were on two hosts
	frozen    bool // the server hears nothing of it, as when a host is gone
	note      string
}

var deaths = []death{
	{"kill -9", false, false, "same host"},
	{"kill -9, on another host", true, false, "the runtime directory is hidden"},
	{"its host is gone", true, true, "SIGSTOP: connections stay open, nothing comes"},
}

const crashTTL = 2 * time.Second

// crash takes away a holder while another process waits, and measures from then
// to the next hold.
func crash(b *bench) (rows []Row, err error) {
	return b.eachStore("crash", func(ss []*system) (rows []Row, err error) {
		for _, d := range deaths {
			var some []*system
			for _, s := range ss {
				oneHost := s.name == "flock(2)"
				if s.ours() || !oneHost && d.frozen || !d.elsewhere {
					some = append(some, s)
				}
			}
			more, err := die(b, some, d)
			if err != nil {
				return nil, err
			}
			rows = append(rows, more...)
		}
		return rows, nil
	})
}

func die(b *bench, ss []*system, d death) (rows []Row, err error) {
	late := 20 * time.Second // nobody comes
	if b.quick {
		late = 5 * time.Second
	}
	var runs []run
	for _, s := range ss {
		runs = append(runs, run{name: s.name, round: func() (series, error) {
			took, err := b.death(s, d, late)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", s.name, d.what, err)
			}
			return series{took.Seconds()}, nil
		}})
	}
	n := b.few()
	if b.quick {
		n = 1
	}
	taken, err := b.take(n, false, runs)
	if err != nil {
		return nil, err
	}
	for i, s := range ss {
		row := taken[i].row(s.row(d.what), "s", 1)
		worst := 0.0
		for _, r := range taken[i] {
			worst = max(worst, r[0])
		}
		row = row.notes("%s; TTL %v; worst of %d: %s s", d.note, crashTTL, n, figure(worst))
		switch {
		case row.Median >= late.Seconds():
			row.Unit = ""
			row = row.notes("nobody within %v; %s", late, d.note)
		case s.ours() && d.elsewhere:
			row = row.aims("≤ 1 TTL + 1 s poll", row.Median <= crashTTL.Seconds()+1)
		case s.ours():
			row = row.aims("≤ 0.1 s", row.Median <= 0.1)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// death kills one holder, and returns when the next one holds, or late.
func (b *bench) death(s *system, d death, late time.Duration) (time.Duration, error) {
	o := options{TTL: crashTTL, Keep: true, Elsewhere: d.elsewhere}
	ps, err := b.players(2, "crash", s, o)
	if err != nil {
		return 0, err
	}
	holder, next := ps[0], ps[1]
	defer dismiss(ps)
	defer holder.kill()
	b.round++
	if err := holder.order("take crash/%d", b.round); err != nil {
		return 0, err
	}
	if _, err := holder.expect("has"); err != nil {
		return 0, err
	}
	if err := next.order("take crash/%d", b.round); err != nil {
		return 0, err
	}
	// At any moment between two heartbeats.
	if err := b.sleep(500*time.Millisecond + rand.N(crashTTL/3)); err != nil {
		return 0, err
	}
	end := holder.kill
	if d.frozen {
		end = holder.freeze
	}
	at, err := end()
	if err != nil {
		return 0, err
	}
	type answer struct {
		at  int64
		err error
	}
	has := make(chan answer, 1)
	go func() {
		at, err := next.stamp("has")
		has <- answer{at, err}
	}()
	select {
	case a := <-has:
		return time.Duration(a.at - at), a.err
	case <-time.After(late):
		next.kill()
		<-has
		return late, nil
	}
}

// playCrash takes locks, and keeps them.
func playCrash(t *task, orders *bufio.Scanner) error {
	ctx := context.Background()
	l, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	tell("ready")
	for orders.Scan() {
		name, ok := strings.CutPrefix(orders.Text(), "take ")
		if !ok {
			return errors.New("no such order")
		}
		h, err := l.lock(ctx, name)
		if err != nil {
			return err
		}
		tell("has %d", monotonic())
		defer h.unlock()
	}
	return orders.Err()
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// processes passes one lock between two processes. Whoever is next waits
// already when the other lets go. The time is from just before the one calls
// Release to just after the other's Acquire has returned, by the clock that the
// kernel shows to both.
func processes(b *bench) ([]Row, error) {
	systems := []system{{name: "flock(2)"}, {name: "holdfast"}}
	for i, role := range []string{"flock", "lock"} {
		pair := make([]*player, 2)
		for j := range pair {
			p, err := b.player(role)
			if err != nil {
				return nil, err
			}
			defer p.end()
			if _, err := p.expect("ready"); err != nil {
				return nil, err
			}
			pair[j] = p
		}
		if err := pair[0].order("acquire"); err != nil {
			return nil, err
		}
		if _, err := pair[0].expect("granted"); err != nil {
			return nil, err
		}
		systems[i].round = func() (s series, err error) {
			n := 30
			if b.quick {
				n = 4
			}
			for range n {
				took, err := handOff(pair[0], pair[1])
				if err != nil {
					return nil, err
				}
				s = append(s, took)
				pair[0], pair[1] = pair[1], pair[0]
			}
			return s, nil
		}
	}
	taken, err := b.take(systems)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for i, s := range systems {
		row := taken[i].row(s.name, "ms", 1e3)
		row.Ratio = taken[i].ratio(taken[0])
		if s.name == "holdfast" {
			row = row.aims("median ≤ 2 ms", row.Median <= 2).notes("on SQLite; a grant is on disk before it is believed")
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// handOff lets one release to the other, and returns how many seconds it took.
func handOff(holder, next *player) (float64, error) {
	if err := next.order("acquire"); err != nil {
		return 0, err
	}
	if _, err := next.expect("waiting"); err != nil {
		return 0, err
	}
	time.Sleep(2*time.Millisecond + rand.N(3*time.Millisecond)) // both at rest
	if err := holder.order("release"); err != nil {
		return 0, err
	}
	released, err := holder.stamp("released")
	if err != nil {
		return 0, err
	}
	granted, err := next.stamp("granted")
	return time.Duration(granted - released).Seconds(), err
}

// stamp is the time at which something happened that a player tells of.
func (p *player) stamp(word string) (int64, error) {
	rest, err := p.expect(word)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(rest, 10, 64)
}

// tell writes a line at once.
func tell(format string, args ...any) { os.Stdout.WriteString(fmt.Sprintf(format+"\n", args...)) }

// playLock takes and gives back a lock as ordered.
func playLock(dir string, orders *bufio.Scanner) error {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "processes.db"), &sqlite.Options{Create: true})
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := holdfast.New(store, &holdfast.Options{
		RuntimeDir: dir,
		Trace:      &holdfast.Trace{Waiting: func(string) { tell("waiting") }},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	tell("ready")
	var l *holdfast.Lock
	for orders.Scan() {
		switch orders.Text() {
		case "acquire":
			if l, err = client.Acquire(ctx, "nightly"); err != nil {
				return err
			}
			tell("granted %d", monotonic())
		case "release":
			start := monotonic()
			if err := l.Release(ctx); err != nil {
				return err
			}
			tell("released %d", start)
		default:
			return errors.New("no such order")
		}
	}
	return orders.Err()
}

// playFlock does the same with flock(2).
func playFlock(dir string, orders *bufio.Scanner) error {
	f, err := os.OpenFile(filepath.Join(dir, "flock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	tell("ready")
	for orders.Scan() {
		switch orders.Text() {
		case "acquire":
			tell("waiting")
			if err := flock(f); err != nil {
				return err
			}
			tell("granted %d", monotonic())
		case "release":
			start := monotonic()
			if err := unflock(f); err != nil {
				return err
			}
			tell("released %d", start)
		default:
			return errors.New("no such order")
		}
	}
	return orders.Err()
}

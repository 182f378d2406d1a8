//go:build linux

package story

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A crowd is many sessions that come to the same names at about the same time, to
// two at a step, and ask a few times each: for one or for both of them, exclusive,
// shared, or for slots.
type crowd struct {
	steps, tries, sessions int
	dir                    string // where the sessions see each other come
	tag                    string // of the names
}

func (c *crowd) flags(f *flag.FlagSet) {
	f.IntVar(&c.steps, "steps", 0, "")
	f.IntVar(&c.tries, "tries", 2, "")
	f.IntVar(&c.sessions, "sessions", 0, "that come to each step")
	f.StringVar(&c.dir, "meet", "", "")
	f.StringVar(&c.tag, "tag", "c", "")
}

// Pair are the names of a step of a crowd.
func Pair(tag string, step int) []string {
	return []string{fmt.Sprintf("%s%da", tag, step), fmt.Sprintf("%s%db", tag, step)}
}

// visit goes through every so many steps.
func (w *work) visit(ctx context.Context, rng *rand.Rand, first, each int) {
	patience := 500 * time.Millisecond
	for step := first; step < w.crowd.steps && !w.over(); step += each {
		if !w.crowd.meet(step, patience) {
			patience = max(patience/2, 10*time.Millisecond) // someone has gone, or is frozen
		}
		for range w.crowd.tries {
			w.try(ctx, rng, Pair(w.crowd.tag, step))
		}
	}
}

// meet waits for the others.
func (c *crowd) meet(step int, patience time.Duration) bool {
	file, err := os.OpenFile(filepath.Join(c.dir, fmt.Sprint(step)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := file.Write([]byte{'.'}); err != nil {
		panic(err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if info, err := file.Stat(); err == nil && info.Size() >= int64(c.sessions) {
			return true
		}
	}
	return false
}

// try asks for one of two names, or both, writes and reads, and gives them back.
func (w *work) try(ctx context.Context, rng *rand.Rand, pair []string) {
	names := pair
	if n := rng.IntN(4); n > 0 {
		names = []string{pair[rng.IntN(2)]}
	}
	slots, opts := 1, []holdfast.Option(nil)
	switch rng.IntN(4) {
	case 0:
		slots, opts = 0, []holdfast.Option{holdfast.Shared()}
	case 1:
		slots, opts = 2, []holdfast.Option{holdfast.Slots(2)}
	}
	all := make([]Event, len(names))
	for i, name := range names {
		all[i] = Event{ID: int(w.attempt.Add(1)), Name: name, Slots: slots}
		if rng.IntN(3) == 0 {
			w.read(name)
		}
	}
	for _, e := range all {
		w.tell(e.now(Asks))
	}
	locks := make([]*holdfast.Lock, 1)
	var release func(context.Context) error
	var err error
	if len(names) == 1 {
		if locks[0], err = w.client.Acquire(ctx, names[0], opts...); err == nil {
			release = locks[0].Release
		}
	} else if set, e := w.client.AcquireAll(ctx, names, opts...); e != nil {
		err = e
	} else {
		locks, release = set.Locks(), set.Release
	}
	if err != nil {
		for _, e := range all {
			e.Text = err.Error()
			w.tell(e.now(Refused))
		}
		w.pause(time.Duration(20+rng.IntN(80)) * time.Millisecond)
		return
	}
	heard := make([]func(found bool), len(locks))
	for i, lock := range locks {
		all[i].Token = lock.Token()
		w.tell(w.ends(all[i].now(Granted), lock))
		heard[i] = w.hear(lock, all[i])
	}
	for i, lock := range locks {
		if rng.IntN(3) > 0 {
			w.put(lock, all[i], rng.IntN(2) == 0)
		}
	}
	switch p := rng.Float64(); {
	case p < w.long:
		w.pause(w.ttl + time.Duration(rng.Int64N(int64(w.ttl)*6/10)))
	case p < 0.5:
		w.pause(time.Duration(rng.IntN(5000)) * time.Microsecond)
	}
	for i, lock := range locks {
		if rng.IntN(4) == 0 {
			w.read(names[i])
			w.put(lock, all[i], rng.IntN(2) == 0)
		}
	}
	for i, lock := range locks {
		heard[i](w.stopBelieving(lock, all[i]))
	}
	bound, cancel := context.WithTimeout(ctx, w.ttl)
	defer cancel()
	text := ""
	if err := release(bound); err != nil {
		text = err.Error()
	}
	for _, e := range all {
		e.Text = text
		w.tell(e.now(Released))
	}
	if rng.IntN(3) == 0 {
		w.read(names[rng.IntN(len(names))])
	}
}

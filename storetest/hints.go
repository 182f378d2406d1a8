package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// Watch implements driver.Watcher, with hints that are lost, doubled and late
// as Faults says. It fails when the store crashes.
func (p *Process) Watch(ctx context.Context, who []string, changed func(driver.Hint)) error {
	inner, ok := driver.Find[driver.Watcher](p.bus.inner)
	if !ok {
		return fmt.Errorf("storetest: watch of a store that has none")
	}
	p.bus.mu.Lock()
	crash := p.bus.crash
	p.bus.mu.Unlock()

	within, cancel := context.WithCancel(ctx)
	hints, ended := make(chan driver.Hint), make(chan error, 1)
	go func() {
		ended <- inner.Watch(within, who, func(h driver.Hint) {
			select {
			case hints <- h:
			case <-within.Done():
			}
		})
	}()
	over := func(err error) error {
		cancel()
		<-ended
		return err
	}

	// Hints that are late wait here, the next one first.
	var late []lateHint
	for {
		var due <-chan time.Time
		if len(late) > 0 {
			due = time.After(time.Until(late[0].due))
		}
		select {
		case <-ctx.Done():
			return over(ctx.Err())
		case <-crash:
			return over(errCrash)
		case <-p.bus.closed:
			return over(errClosed)
		case err := <-ended:
			cancel()
			return err
		case h := <-hints:
			late = p.hint(late, h)
		case <-due:
		}
		for len(late) > 0 && !late[0].due.After(time.Now()) {
			h := late[0].hint
			late = late[1:]
			if p.listens() {
				changed(h)
			}
		}
	}
}

type lateHint struct {
	hint driver.Hint
	due  time.Time
}

// hint adds to the hints that wait what becomes of h.
func (p *Process) hint(late []lateHint, h driver.Hint) []lateHint {
	p.bus.mu.Lock()
	f := p.bus.faults
	p.bus.mu.Unlock()
	p.mu.Lock()
	kind := "hint " + h.Space.String() + " " + h.Name
	p.count[kind]++
	random := draw(p.bus.seed, p.name, kind, p.count[kind])
	p.mu.Unlock()

	lost, doubled := random.Float64() < f.LoseHint, random.Float64() < f.DoubleHint
	for _, told := range []bool{!lost, !lost && doubled} {
		due := time.Now().Add(upTo(random, f.DelayHint))
		if !told {
			continue
		}
		at := len(late)
		for at > 0 && late[at-1].due.After(due) {
			at--
		}
		late = append(late, lateHint{})
		copy(late[at+1:], late[at:])
		late[at] = lateHint{h, due}
	}
	return late
}

// listens says whether a hint reaches the process now.
func (p *Process) listens() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.crashed && !p.cut && !p.paused
}

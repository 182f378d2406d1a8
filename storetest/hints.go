package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// Watch implements holdfast.Watcher, with hints that are lost, doubled and late
// as Faults says. It fails when the store crashes.
func (p *Process) Watch(ctx context.Context, changed func(holdfast.Key)) error {
	inner, ok := p.bus.inner.(holdfast.Watcher)
	if !ok {
		return fmt.Errorf("storetest: watch of a store that has none")
	}
	p.bus.mu.Lock()
	crash := p.bus.crash
	p.bus.mu.Unlock()

	within, cancel := context.WithCancel(ctx)
	hints, ended := make(chan holdfast.Key), make(chan error, 1)
	go func() {
		ended <- inner.Watch(within, func(k holdfast.Key) {
			select {
			case hints <- k:
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
		case k := <-hints:
			late = p.hint(late, k)
		case <-due:
		}
		for len(late) > 0 && !late[0].due.After(time.Now()) {
			k := late[0].key
			late = late[1:]
			if p.listens() {
				changed(k)
			}
		}
	}
}

type lateHint struct {
	key holdfast.Key
	due time.Time
}

// hint adds to the hints that wait what becomes of one for k.
func (p *Process) hint(late []lateHint, k holdfast.Key) []lateHint {
	p.bus.mu.Lock()
	f := p.bus.faults
	p.bus.mu.Unlock()
	p.mu.Lock()
	kind := "hint " + k.Space.String() + " " + k.Name
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
		late[at] = lateHint{k, due}
	}
	return late
}

// listens says whether a hint reaches the process now.
func (p *Process) listens() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.crashed && !p.cut && !p.paused
}

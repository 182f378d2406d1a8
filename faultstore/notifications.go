package faultstore

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// Watch implements driver.Watcher, with notifications that are lost, doubled and late
// as Faults says. It fails when the store crashes.
func (p *Process) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	inner, ok := driver.Find[driver.Watcher](p.bus.inner)
	if !ok {
		return fmt.Errorf("faultstore: watch of a store that has none")
	}
	p.bus.mu.Lock()
	crash := p.bus.crash
	p.bus.mu.Unlock()

	within, cancel := context.WithCancel(ctx)
	notifications, ended := make(chan driver.Notification), make(chan error, 1)
	go func() {
		ended <- inner.Watch(within, who, func(h driver.Notification) {
			select {
			case notifications <- h:
			case <-within.Done():
			}
		})
	}()
	over := func(err error) error {
		cancel()
		<-ended
		return err
	}

	// Notifications that are late wait here, the next one first.
	var late []lateNotification
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
		case h := <-notifications:
			late = p.notification(late, h)
		case <-due:
		}
		for len(late) > 0 && !late[0].due.After(time.Now()) {
			h := late[0].notification
			late = late[1:]
			if p.listens() {
				changed(h)
			}
		}
	}
}

type lateNotification struct {
	notification driver.Notification
	due          time.Time
}

// notification adds what becomes of h to the notifications that wait.
func (p *Process) notification(late []lateNotification, h driver.Notification) []lateNotification {
	p.bus.mu.Lock()
	f := p.bus.faults
	p.bus.mu.Unlock()
	p.mu.Lock()
	// The name of this random stream must stay, so that a seed that was noted can be replayed.
	kind := "hint " + h.Space.String() + " " + h.Name
	p.count[kind]++
	random := draw(p.bus.seed, p.name, kind, p.count[kind])
	p.mu.Unlock()

	lost, doubled := random.Float64() < f.LoseNotification, random.Float64() < f.DoubleNotification
	for _, told := range []bool{!lost, !lost && doubled} {
		due := time.Now().Add(upTo(random, f.DelayNotification))
		if !told {
			continue
		}
		at := len(late)
		for at > 0 && late[at-1].due.After(due) {
			at--
		}
		late = append(late, lateNotification{})
		copy(late[at+1:], late[at:])
		late[at] = lateNotification{h, due}
	}
	return late
}

// listens says whether a notification reaches the process now.
func (p *Process) listens() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.crashed && !p.cut && !p.paused
}

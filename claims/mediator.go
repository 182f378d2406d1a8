package claims

import (
	"context"
	"slices"
	"sync"
)

// A mediator decides between the transactions of this process, first come,
// first served. A transaction has the local lock until it gives it back: work that
// takes longer than Expire does not let a second goroutine in.
type mediator struct {
	mu   sync.Mutex
	rows map[string]*queue
}

// A queue is the owner of a row and those who wait for it, guarded by mediator.mu.
type queue struct {
	owner *Tx
	wait  []*ticket
}

type ticket struct {
	tx   *Tx
	turn chan bool // closed when it is its turn
}

var mediators = struct {
	sync.Mutex
	of map[string]*mediator
}{of: make(map[string]*mediator)}

func mediatorOf(group string) *mediator {
	if group == "" {
		return &mediator{rows: make(map[string]*queue)}
	}
	mediators.Lock()
	defer mediators.Unlock()
	m := mediators.of[group]
	if m == nil {
		m = &mediator{rows: make(map[string]*queue)}
		mediators.of[group] = m
	}
	return m
}

// lock waits for the row until ctx is done. It refuses to wait in a cycle.
func (m *mediator) lock(ctx context.Context, row string, t *Tx) error {
	m.mu.Lock()
	q := m.rows[row]
	if q == nil {
		m.rows[row] = &queue{owner: t}
		m.mu.Unlock()
		return nil
	}
	for at := q; at != nil; at = at.owner.waits {
		if at.owner == t {
			m.mu.Unlock()
			return errDeadlock
		}
	}
	mine := &ticket{t, make(chan bool)}
	q.wait = append(q.wait, mine)
	t.waits = q
	m.mu.Unlock()

	select {
	case <-mine.turn:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t.waits = nil
	if i := slices.Index(q.wait, mine); i >= 0 {
		q.wait = slices.Delete(q.wait, i, i+1)
	} else {
		m.pass(row)
	}
	return ctx.Err()
}

// unlock gives the row to the next waiter. A second call does nothing.
func (m *mediator) unlock(row string, t *Tx) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.rows[row]; q != nil && q.owner == t {
		m.pass(row)
	}
}

// pass gives the row to the next waiter, if there is one; m.mu is held.
func (m *mediator) pass(row string) {
	q := m.rows[row]
	if len(q.wait) == 0 {
		delete(m.rows, row)
		return
	}
	next := q.wait[0]
	q.wait = q.wait[1:]
	q.owner = next.tx
	next.tx.waits = nil
	close(next.turn)
}

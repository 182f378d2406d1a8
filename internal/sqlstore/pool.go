package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// Conns opens the connections of a Pool, closes them, and knows which still work.
type Conns[C any] interface {
	Open(context.Context) (C, error)
	// Works reports whether a connection that was unused for this long still works.
	// After an error it stays in the pool, and the call fails.
	Works(ctx context.Context, c C, unused time.Duration) (bool, error)
	// Sound reports whether a connection can be used again after a call that returned
	// err, which may be nil.
	Sound(c C, err error) bool
	Close(C) error
}

// A Pool lends a store's own connections, each to one call at a time, and opens them
// when they are needed.
type Pool[C any] struct {
	conns Conns[C]
	turns chan struct{} // has an element for each that is lent
	keep  int           // how many stay open, used or not

	// At first the pool borrows connections that the lender does not use, so a program
	// that soon ends opens none that are only needed now and then.
	lender *Pool[C]

	mu     sync.Mutex
	loans  int // how many are left
	idle   []pooled[C]
	timer  *time.Timer
	closed bool
}

type pooled[C any] struct {
	conn C
	used time.Time
}

// NewPool returns a pool of at most n connections. All but keep of them are closed when
// they have been unused for half a minute.
func NewPool[C any](conns Conns[C], n, keep int) *Pool[C] {
	return &Pool[C]{conns: conns, turns: make(chan struct{}, n), keep: keep}
}

// NoneFree is the error of a call that got no connection from the user's pool. If all are in use it
// says so, and names the setting for more.
func NoneFree(err error, used, most int, more string) error {
	if most <= 0 || used < most || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("all %d connections of the pool are in use: raise %s, or give Holdfast a pool of its own: %w", most, more, err)
}

// Borrow lets UseIdle borrow from a lender, this many times at most.
func (p *Pool[C]) Borrow(lender *Pool[C], loans int) { p.lender, p.loans = lender, loans }

// Size is how many connections there can be, and Lent how many are in use.
func (p *Pool[C]) Size() int { return cap(p.turns) }
func (p *Pool[C]) Lent() int { return len(p.turns) }

// maxUnused is how long an unused connection is kept. One that is used is kept for as
// long as it works: the database may have no other to give.
const maxUnused = 30 * time.Second

// Use calls f with a connection.
func (p *Pool[C]) Use(ctx context.Context, f func(C) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case p.turns <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.turns }()
	c, found, err := p.take(ctx)
	if !found && err == nil {
		c, err = p.conns.Open(ctx)
	}
	if err != nil {
		return err
	}
	return p.with(c, f)
}

// UseIdle is Use, but as long as the pool has needed no connection of its own, it
// borrows one that the lender has open and idle.
func (p *Pool[C]) UseIdle(ctx context.Context, f func(C) error) error {
	if ctx.Err() == nil && p.mayBorrow() {
		select {
		case p.lender.turns <- struct{}{}:
			if c, found, _ := p.lender.take(ctx); found {
				defer func() { <-p.lender.turns }()
				p.mu.Lock()
				p.loans--
				p.mu.Unlock()
				return p.lender.with(c, f)
			}
			<-p.lender.turns
		default:
		}
	}
	return p.Use(ctx, f)
}

func (p *Pool[C]) mayBorrow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loans > 0 && len(p.idle) == 0 && len(p.turns) == 0 && !p.closed
}

// take returns the connection that was used last, if there is one that works.
func (p *Pool[C]) take(ctx context.Context) (c C, found bool, err error) {
	for {
		p.mu.Lock()
		n := len(p.idle) - 1
		if n < 0 || p.closed {
			defer p.mu.Unlock()
			if p.closed {
				err = driver.ErrClosed
			}
			return c, false, err
		}
		last := p.idle[n]
		p.idle = p.idle[:n]
		p.mu.Unlock()
		works, err := p.conns.Works(ctx, last.conn, time.Since(last.used))
		switch {
		case err != nil:
			p.put(last)
			return c, false, err
		case works:
			return last.conn, true, nil
		}
		p.conns.Close(last.conn)
	}
}

// with calls f and then takes the connection back or closes it, even if f panics, so
// that the next call meets nothing that f left open.
func (p *Pool[C]) with(c C, f func(C) error) (err error) {
	sound := false
	defer func() {
		if !sound {
			p.conns.Close(c)
			return
		}
		p.put(pooled[C]{c, time.Now()})
	}()
	err = f(c)
	sound = p.conns.Sound(c, err)
	return err
}

func (p *Pool[C]) put(i pooled[C]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, i)
	p.schedule()
}

// schedule arranges for unused connections to be closed. The caller holds the mutex.
func (p *Pool[C]) schedule() {
	if p.timer == nil && len(p.idle) > p.keep && !p.closed {
		p.timer = time.AfterFunc(maxUnused-time.Since(p.idle[0].used), func() { p.Trim(maxUnused) })
	}
}

// Trim closes the connections that have been unused for this long, except those to be kept.
func (p *Pool[C]) Trim(unused time.Duration) {
	p.mu.Lock()
	n := 0
	for n < len(p.idle)-p.keep && time.Since(p.idle[n].used) >= unused {
		n++
	}
	old := p.idle[:n:n]
	p.idle, p.timer = p.idle[n:], nil
	p.schedule()
	p.mu.Unlock()
	for _, i := range old {
		p.conns.Close(i.conn)
	}
}

// Close waits for the calls under way, and closes the connections.
func (p *Pool[C]) Close() (err error) {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	if was {
		return nil
	}
	for range cap(p.turns) {
		p.turns <- struct{}{}
	}
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, i := range idle {
		err = errors.Join(err, p.conns.Close(i.conn))
	}
	for range cap(p.turns) {
		<-p.turns
	}
	return err
}

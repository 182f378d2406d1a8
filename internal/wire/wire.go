// Package wire is the connection of one process to its store, as tests want it: it can be cut, and
// what passes over it can be intercepted, changed, counted and held back.
package wire

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Cut is a store whose loads and writes fail while it is Off.
type Cut struct {
	driver.Store
	Off atomic.Bool
}

var errOff = errors.New("no route to host")

// Load implements driver.Store.
func (c *Cut) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if c.Off.Load() {
		return nil, errOff
	}
	return c.Store.Load(ctx, keys, how)
}

// CompareAndSwap implements driver.Store.
func (c *Cut) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	if c.Off.Load() {
		return nil, errOff
	}
	return c.Store.CompareAndSwap(ctx, w)
}

// A Wire is a Cut whose calls go on whatever becomes of their contexts.
type Wire struct {
	Cut

	mu     sync.Mutex // guards all below
	aged   func(age time.Duration) time.Duration
	looked func(driver.Key)
	meet   Meet
}

// A Send passes writes on to the store; a Meet does what it likes with them.
type (
	Send func() ([]driver.Outcome, error)
	Meet func(writes []driver.Write, send Send) ([]driver.Outcome, error)
)

// New returns a Wire to a store.
func New(s driver.Store) *Wire { return &Wire{Cut: Cut{Store: s}} }

// SetMeet makes f take the place of each write; nil: no function does.
func (w *Wire) SetMeet(f Meet) { w.mu.Lock(); w.meet = f; w.mu.Unlock() }

// SetAged makes f change the ages of records; nil: they stay as they are.
func (w *Wire) SetAged(f func(time.Duration) time.Duration) { w.mu.Lock(); w.aged = f; w.mu.Unlock() }

// SetLooked makes each Load call f with its first key when it has returned.
func (w *Wire) SetLooked(f func(driver.Key)) { w.mu.Lock(); w.looked = f; w.mu.Unlock() }

// Load implements driver.Store.
func (w *Wire) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	recs, err := w.Cut.Load(context.WithoutCancel(ctx), keys, how)
	w.mu.Lock()
	aged, looked := w.aged, w.looked
	w.mu.Unlock()
	for i := range recs {
		if aged != nil {
			recs[i].Age = aged(recs[i].Age)
		}
	}
	if looked != nil {
		looked(keys[0])
	}
	return recs, err
}

// CompareAndSwap implements driver.Store.
func (w *Wire) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	send := func() ([]driver.Outcome, error) {
		return w.Cut.CompareAndSwap(context.WithoutCancel(ctx), writes)
	}
	w.mu.Lock()
	meet := w.meet
	w.mu.Unlock()
	if meet == nil {
		return send()
	}
	return meet(writes, send)
}

// IsClaim reports whether a write is of a lock's record.
func IsClaim(w driver.Write) bool { return w.Key.Space == driver.Names }

// IsTombstone reports whether a write declares a session dead.
func IsTombstone(w driver.Write) bool { return strings.Contains(string(w.Value), `"dead":`) }

// IsBeat reports whether a write is a session's heartbeat.
func IsBeat(w driver.Write) bool { return w.Key.Space == driver.Sessions && !IsTombstone(w) }

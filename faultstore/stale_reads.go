package faultstore

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Bus remembers what keys held before, for stale reads that are out of date.

// A pastRecord is what a key held until it was followed.
type pastRecord struct {
	driver.Record
	until time.Time
}

// maxPast bounds what is remembered of a key.
const maxPast = 16

// staleKind names a stale read among the calls of a process. Randomness is drawn from it: with
// another word each seed would play differently.
const staleKind = "glance"

// StaleLoad is a stale read of the process: one of the inner store, and out of date by
// Faults.Stale at most. The result of an ambiguous write shows only when the key is
// loaded or written again, as where a reader has to complete what a dead writer began.
func (p *Process) StaleLoad(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
	c := p.begin(ctx, staleKind, all(keys))
	var records []driver.Record
	err := c.run(func() (err error) {
		b := p.bus
		b.catchUp()
		if records, err = b.inner.Load(ctx, keys, driver.Stale); err != nil {
			return err
		}
		now := time.Now()
		for i, k := range keys {
			records[i] = b.staleRead(c, k, records[i], now)
			b.tell(&records[i], now)
		}
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	return records, nil
}

// staleRead draws what a stale read shows of a key: half of them are up to date.
func (b *Bus) staleRead(c *call, k driver.Key, newest driver.Record, now time.Time) driver.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	past := b.past[k]
	first := len(past) // that a stale read may show
	for first > 0 && now.Sub(past[first-1].until) < c.faults.Stale {
		first--
	}
	old := c.chance(0.5)
	at := first + c.random.IntN(len(past)-first+1)
	switch {
	case b.untold[k] && len(past) > 0:
		at = min(at, len(past)-1)
	case !old || at == len(past):
		return newest
	}
	shown := past[at].Record
	if shown.Version > 0 && shown.Age >= 0 {
		shown.Age += now.Sub(past[at].until)
	}
	shown.Value = slices.Clone(shown.Value)
	return shown
}

// remember keeps what a key held when a write follows it; b.mu is held.
func (b *Bus) remember(k driver.Key, before driver.Record) {
	past := append(b.past[k], pastRecord{before, time.Now()})
	b.past[k] = past[max(len(past)-maxPast, 0):]
}

// told makes stale reads show the newest records of keys again, or not until those
// are loaded or written.
func (b *Bus) told(keys []driver.Key, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if yes {
			delete(b.untold, k)
		} else {
			b.untold[k] = true
		}
	}
}

// keysOf are the keys of writes.
func keysOf(writes []driver.Write) []driver.Key {
	keys := make([]driver.Key, len(writes))
	for i, w := range writes {
		keys[i] = w.Key
	}
	return keys
}

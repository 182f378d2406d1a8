package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A counter is a store that counts the calls to another.
type counter struct {
	driver.Store
	loads, loaded  atomic.Int64 // calls of Load, and keys in them
	swaps, written atomic.Int64 // calls of CompareAndSwap, and writes in them
}

func (c *counter) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	c.loads.Add(1)
	c.loaded.Add(int64(len(keys)))
	return c.Store.Load(ctx, keys, how)
}

func (c *counter) Await(ctx context.Context, key driver.Key, version int64, every, limit time.Duration) (driver.Record, error) {
	c.loads.Add(1)
	c.loaded.Add(1)
	return c.Store.(driver.Awaiter).Await(ctx, key, version, every, limit)
}

func (c *counter) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	c.swaps.Add(1)
	c.written.Add(int64(len(writes)))
	return c.Store.CompareAndSwap(ctx, writes)
}

// Unwrap has the client find what else the store can do.
func (c *counter) Unwrap() driver.Store { return c.Store }

// A count is what a counter has counted.
type count struct{ loads, loaded, swaps, written float64 }

func (c *counter) count() count {
	return count{float64(c.loads.Load()), float64(c.loaded.Load()), float64(c.swaps.Load()), float64(c.written.Load())}
}

func (c count) since(o count) count {
	return count{c.loads - o.loads, c.loaded - o.loaded, c.swaps - o.swaps, c.written - o.written}
}

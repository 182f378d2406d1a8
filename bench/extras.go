package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/postgres"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// extras takes and gives back a free lock with what a user may turn on or off: the history,
// labels, and a time for which the name stays shut.
func extras(b *bench) (rows []Row, err error) {
	for _, store := range []string{"sqlite", "postgres"} {
		if !b.has(store) {
			continue
		}
		b.say("  %s", store)
		some, err := b.extrasOn(store)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", store, err)
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

func (b *bench) extrasOn(store string) (rows []Row, err error) {
	// Heartbeats, behind which the history is written, come often, so that all of it is counted.
	const ttl = 2 * time.Second
	labels := holdfast.Labels(map[string]string{"pod": "web-7f9c", "release": "2026-11-25"})
	variants := []struct {
		name    string
		history int
		opts    []holdfast.Option
		fresh   bool // a name is taken once
	}{
		{name: "no history"},
		{name: "history of 32 holds", history: 32},
		{name: "history of 128 holds", history: 128},
		{name: "no history, labels", opts: []holdfast.Option{labels}},
		{name: "no history, a new name each time", fresh: true},
		{name: "no history, MinHold of a second, a new name each time", fresh: true, opts: []holdfast.Option{holdfast.MinHold(time.Second)}},
	}
	n, names := 100, 0
	if b.quick {
		n = 10
	}
	var runs []run
	for i, v := range variants {
		c, err := b.apart(store, i, options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		if err := c.SetStoreHistory(b.ctx, v.history); err != nil {
			return nil, err
		}
		runs = append(runs, run{name: v.name, round: func() (series, error) {
			return timed(n, func() error {
				name := "nightly"
				if v.fresh {
					names++
					name = fmt.Sprintf("job/%d", names)
				}
				l, err := c.Acquire(b.ctx, name, v.opts...)
				if err != nil {
					return err
				}
				return l.Release(b.ctx)
			})
		}})
	}
	if err := b.sleep(ttl); err != nil { // the clients follow the setting
		return nil, err
	}
	taken, err := b.take(b.rounds, true, runs)
	if err != nil {
		return nil, err
	}
	system := findSystem(store, "holdfast")
	for i, v := range variants {
		floor := 0
		if v.fresh {
			floor = 4
		}
		row := taken[i].row(system.row(v.name), "ms", 1e3)
		row.Ratio = taken[i].ratio(taken[floor])
		if row.Of = variants[floor].name; v.history > 0 {
			row = row.aims("≤ 1.03x", row.Ratio <= 1.03)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// apart is a client of a store that no other variant has.
func (b *bench) apart(store string, n int, o options) (*client, error) {
	if store == "sqlite" {
		at := b.site
		at.Dir = b.path(fmt.Sprintf("extras%d", n))
		if err := os.MkdirAll(at.Dir, 0o700); err != nil {
			return nil, err
		}
		s, err := sqlite.Open(b.ctx, at.Dir+"/holdfast.db", &sqlite.Options{Create: true})
		if err != nil {
			return nil, err
		}
		return newClient(&at, s, o, s.Close)
	}
	pool, err := postgresPool(b.ctx, &b.site, direct, 0)
	if err != nil {
		return nil, err
	}
	opts := &postgres.Options{Prefix: fmt.Sprintf("extras%d_", n)}
	if err = postgres.Migrate(b.ctx, pool, opts); err != nil {
		pool.Close()
		return nil, err
	}
	s, err := postgres.New(b.ctx, pool, opts)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return newClient(&b.site, s, o, func() error { pool.Close(); return nil }, s.Close)
}

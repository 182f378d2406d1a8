package sqlstore

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/clock"
)

// A Store is a driver.Store on a Dialect.
type Store struct {
	Names Dialect
	Beats Dialect // for heartbeats, so that they do not queue behind locks
	// Fences use these: the store's tables, and the package's store that embeds this one.
	Tables Tables
	Self   any
	clock  clock.Remote
}

var (
	_ driver.Store = (*Store)(nil)
)

// Load implements driver.Store.
func (s *Store) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	ids := make([][]byte, len(keys))
	for i, k := range keys {
		if err := k.Check(); err != nil {
			return nil, err
		}
		ids[i] = ID(k)
	}
	if len(keys) == 0 {
		return nil, ctx.Err()
	}
	return s.load(ctx, s.Names, ids)
}

// maxLoad is how many keys are asked for in one statement.
const maxLoad = 1024

func (s *Store) load(ctx context.Context, db Dialect, ids [][]byte) ([]driver.Record, error) {
	records := make([]driver.Record, len(ids))
	if len(ids) == 1 {
		return records, s.loadSorted(ctx, db, ids, func(r driver.Record, _ []byte) { records[0] = r })
	}
	order := make([]int, len(ids)) // of ids in all
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(ids[a], ids[b]) })
	all := make([][]byte, len(ids))
	for i, o := range order {
		all[i] = ids[o]
	}
	sorted := slices.CompactFunc(slices.Clone(all), bytes.Equal)
	for part := range slices.Chunk(sorted, maxLoad) {
		err := s.loadSorted(ctx, db, part, func(r driver.Record, id []byte) {
			i, _ := slices.BinarySearchFunc(all, id, bytes.Compare)
			for ; i < len(all) && bytes.Equal(all[i], id); i++ {
				records[order[i]] = r
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return records, nil
}

func (s *Store) loadSorted(ctx context.Context, db Dialect, ids [][]byte, each func(driver.Record, []byte)) error {
	var rows []Row
	var wall int64
	began := clock.Steady()
	err := s.again(ctx, db, func() (err error) {
		rows, wall, err = db.Load(ctx, ids)
		return err
	})
	if err != nil {
		return err
	}
	age := s.clock.Ages(wall, began)
	for _, r := range rows {
		each(driver.Record{Version: r.Version, Value: some(r.Value), Age: age(r.Version)}, r.ID)
	}
	return nil
}

// Await implements driver.Awaiter for a store whose connections know the statement "await". It is
// no method, since other stores do not have that capability.
func Await(ctx context.Context, s *Store, key driver.Key, version int64, every, limit time.Duration) (r driver.Record, err error) {
	if err := key.Check(); err != nil {
		return r, err
	}
	var rows []Row
	var wall int64
	err = s.again(ctx, s.Names, func() (err error) {
		rows, wall, err = s.Names.(awaits).Await(ctx, ID(key), version, every, limit)
		return err
	})
	for _, row := range rows {
		r = driver.Record{Version: row.Version, Value: some(row.Value), Age: s.clock.Age(wall, row.Version)}
	}
	return r, err
}

// awaits is a Dialect with the statement "await".
type awaits interface {
	Await(ctx context.Context, id []byte, version int64, every, limit time.Duration) (rows []Row, clock int64, err error)
}

// some returns nil if there are no bytes.
func some(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// CompareAndSwap implements driver.Store. A single write is one statement.
func (s *Store) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	c, err := s.plan(writes)
	if err != nil {
		return nil, err
	}
	if len(writes) == 0 {
		return nil, ctx.Err()
	}
	alone, hurry := len(c.ws) == 1, false // writes that meet locked rows wait for a second in all, not each
	if len(c.ws) > 1 {
		if alone, hurry, err = c.together(ctx); err != nil {
			return nil, err
		}
	}
	if alone {
		if err := c.oneByOne(ctx, hurry); err != nil {
			return nil, err
		}
	}
	if err := c.loadLosers(ctx); err != nil {
		return nil, err
	}
	return c.outcomes, nil
}

// A call is a call of CompareAndSwap.
type call struct {
	s        *Store
	db       Dialect
	writes   []driver.Write
	outcomes []driver.Outcome
	ws       []Write // those that can win
}

// plan says what is sent, and on which connections.
func (s *Store) plan(writes []driver.Write) (call, error) {
	c := call{s, s.Names, writes, make([]driver.Outcome, len(writes)), make([]Write, 0, len(writes))}
	beats := true
	for i, w := range writes {
		if err := w.Check(); err != nil {
			return c, err
		}
		beats = beats && w.Key.Space == driver.Sessions
		value := w.Value
		if value == nil {
			value = []byte{}
		}
		if w.Old == driver.IfEmpty || w.Old > 0 { // else it cannot win
			c.ws = append(c.ws, Write{ID: ID(w.Key), Old: w.Old, Value: value, Notify: w.Notify, Lazy: w.Lazy, at: i})
		}
	}
	if beats {
		c.db = s.Beats
	}
	return c, nil
}

func (c *call) won(i int, version int64) {
	c.outcomes[i] = driver.Outcome{Won: true, Record: driver.Record{Version: version, Value: some(c.writes[i].Value)}}
}

// together attempts all writes in one statement or transaction. If that was rolled back, each has
// to be written alone, so that one row that stays locked, or deadlocks again and again, does not
// hold up the others. hurry is set if the batch has waited for a locked row.
func (c *call) together(ctx context.Context) (alone, hurry bool, err error) {
	db, sorted := c.db, slices.Clone(c.ws)
	slices.SortFunc(sorted, func(a, b Write) int { return bytes.Compare(a.ID, b.ID) })
	var versions []int64
	sent := time.Now()
	err = c.s.again(ctx, db, func() (err error) {
		versions, err = db.Swaps(ctx, sorted)
		return err
	})
	switch {
	case err != nil && db.Means(err) != Ambiguous:
		hurry = db.Means(err) == Locked && time.Since(sent) > lockedBatch
		return true, hurry, nil
	case err != nil:
		return false, false, err
	}
	for i, v := range versions {
		if v != 0 {
			c.won(sorted[i].at, v)
		}
	}
	return false, false, nil
}

// oneByOne attempts each write in a statement of its own.
func (c *call) oneByOne(ctx context.Context, hurry bool) error {
	s := c.s
	for i, w := range c.ws {
		began := clock.Steady()
		w.Hurry = hurry
		version, lost, locked, err := s.swap(ctx, c.db, w)
		hurry = hurry || locked
		switch {
		case err != nil:
			return err
		case version != 0:
			c.won(w.at, version)
		case lost != nil:
			r := driver.Record{Version: lost.Version, Value: some(lost.Value)}
			if r.Version != 0 {
				r.Age = s.clock.Ages(lost.Clock, began)(r.Version)
			}
			c.outcomes[w.at].Record = r
			c.ws[i].told = true
		}
	}
	return nil
}

// loadLosers reads what writes have lost to, where their statements did not tell.
func (c *call) loadLosers(ctx context.Context) error {
	ws, writes := c.ws, c.writes
	var ids [][]byte
	var losers []int
	for i, o := range c.outcomes {
		told := false
		if len(ws) > 0 && ws[0].at == i {
			told, ws = ws[0].told, ws[1:]
		}
		if !o.Won && !told {
			ids = append(ids, ID(writes[i].Key))
			losers = append(losers, i)
		}
	}
	if len(losers) == 0 {
		return nil
	}
	records, err := c.s.load(ctx, c.db, ids)
	for i, r := range records {
		c.outcomes[losers[i]].Record = r
	}
	return err
}

// swap attempts one write, which also loses if the row stays locked.
func (s *Store) swap(ctx context.Context, db Dialect, w Write) (version int64, lost *Row, locked bool, err error) {
	err = s.again(ctx, db, func() (err error) {
		version, lost, err = db.Swap(ctx, w)
		return err
	})
	if err != nil && db.Means(err) == Locked {
		return 0, nil, true, nil
	}
	return version, lost, false, err
}

// lockedBatch is the wait of a batch for a locked row that leaves its writes no time to
// wait themselves.
const lockedBatch = 500 * time.Millisecond

// attempts is the maximum number of tries of a statement that is rolled back.
const attempts = 10

// again calls f until it ends in anything but a rollback brought about by chance, such
// as a deadlock. Its waits are short and random.
func (s *Store) again(ctx context.Context, db Dialect, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || try == attempts || db.Means(err) != Again {
			return err
		}
		t := time.NewTimer(time.Duration(rand.Int64N(int64(time.Millisecond) << min(try, 5))))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// Keys implements driver.Store.
func (s *Store) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	if n <= 0 {
		return nil, ctx.Err()
	}
	var ids [][]byte
	err := s.again(ctx, s.Names, func() (err error) {
		ids, err = s.Names.Keys(ctx, append([]byte{byte(space)}, after...), []byte{byte(space) + 1}, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = string(id[1:])
	}
	return names, nil
}

// SweepBatch is the most rows that one transaction removes: others may wait for it.
const SweepBatch = 500

// Traits implements driver.Store.
func (s *Store) Traits() driver.Traits { return driver.Traits{} }

// Sweep implements driver.Store. It looks for rows without locking any, and
// removes those that have not changed since.
func (s *Store) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	after := []byte{}
	for {
		var found []Row
		err := s.again(ctx, s.Names, func() (err error) {
			found, err = s.Names.Idle(ctx, after, idle, SweepBatch)
			return err
		})
		if err != nil || len(found) == 0 {
			return removed, err
		}
		after = found[len(found)-1].ID
		gone := 0
		err = s.again(ctx, s.Names, func() (err error) {
			gone, err = s.Names.Remove(ctx, found)
			return err
		})
		if err != nil && s.Names.Means(err) != Locked { // the next sweep gets them
			return removed, err
		}
		if removed += gone; len(found) < SweepBatch {
			return removed, nil
		}
	}
}

package cassandra

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
)

// staleLoad reads at QUORUM: it sees every write that was decided and reported, but
// not one that was decided and that its coordinator did not live to complete.
// One statement reads up to maxStale keys of a space.
func (s *Store) staleLoad(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
	bySpace := make(map[driver.Space][][]byte)
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return nil, fmt.Errorf("cassandra: %w", err)
		}
		bySpace[k.Space] = append(bySpace[k.Space], []byte(k.Name))
	}
	type question struct {
		space driver.Space
		names [][]byte
	}
	var questions []question
	for space, names := range bySpace {
		for part := range slices.Chunk(names, maxStale) {
			questions = append(questions, question{space, part})
		}
	}
	var mu sync.Mutex
	found := make(map[driver.Key]driver.Record, len(keys))
	for _, err := range s.calls.lane(keys).each(ctx, len(questions), func(i int) error {
		q := questions[i]
		var row []byte
		if len(q.names) == 1 { // its coordinator has the row in memory
			row = rowOf(driver.Key{Space: q.space, Name: string(q.names[0])})
		}
		_, err := s.calls.send(ctx, row, s.text.stale, []any{int8(q.space), q.names}, func(ctx context.Context, cql *gocql.Query) error {
			var space int8
			var name, value []byte
			var version int64
			iter := cql.IterContext(ctx)
			for iter.Scan(&space, &name, &version, &value) {
				mu.Lock()
				found[driver.Key{Space: driver.Space(space), Name: string(name)}] = record(version, slices.Clone(value))
				mu.Unlock()
			}
			return iter.Close()
		})
		return err
	}) {
		if err != nil {
			return nil, fmt.Errorf("cassandra: read: %w", err)
		}
	}
	recs := make([]driver.Record, len(keys))
	for i, k := range keys {
		rec, ok := found[k]
		if !ok {
			rec = record(0, nil)
		}
		recs[i] = rec
	}
	return recs, nil
}

// maxStale is how many rows one statement asks for.
const maxStale = 100

// listings keep what readings of all rows have found and Keys has not returned yet: rows are in no
// order, so the first page of a list takes a reading of all.
type listings struct {
	mu   sync.Mutex
	rest map[place][]listing // several lists may have come to one place
}

// A place is how far a list has got.
type place struct {
	space driver.Space
	after string
}

// A listing is what is left of a reading: names in order.
type listing struct {
	names []string
	read  time.Time
	gone  *time.Timer // forgets it, if nobody goes on with the list
}

// listingLasts is how long the pages after the first come from one reading.
const listingLasts = time.Minute

// Keys reads all rows for the first page; the next pages, asked for one after
// the other, come from the same reading. Its cost grows with the number of rows.
func (s *Store) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	page, ok := s.lists.take(place{space, after})
	if !ok {
		page.read = time.Now()
		err := s.each(ctx, func(sp driver.Space, name string, version int64, value []byte, _ time.Time) {
			if sp == space && version > 0 && len(value) > 0 && name > after {
				page.names = append(page.names, name)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("cassandra: list: %w", err)
		}
		slices.SortFunc(page.names, strings.Compare)
	}
	n = min(max(n, 0), len(page.names))
	names := page.names[:n:n]
	if n > 0 {
		s.lists.keep(place{space, names[n-1]}, page.names[n:], page.read)
	}
	return names, nil
}

// take takes what is left of a reading that has come to a place.
func (l *listings) take(at place) (page listing, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	there := l.rest[at]
	if len(there) == 0 || time.Since(there[0].read) > listingLasts {
		return page, false
	}
	there[0].gone.Stop()
	page = there[0]
	l.put(at, there[1:])
	return page, true
}

// keep keeps what is left of a reading until it is taken, or no longer of use.
func (l *listings) keep(at place, names []string, read time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rest == nil {
		l.rest = make(map[place][]listing)
	}
	gone := time.AfterFunc(time.Until(read.Add(listingLasts)), func() { l.drop(at, read) })
	l.rest[at] = append(l.rest[at], listing{names, read, gone})
}

// drop forgets what is left of a reading at a place.
func (l *listings) drop(at place, read time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(at, slices.DeleteFunc(l.rest[at], func(page listing) bool { return page.read.Equal(read) }))
}

// put sets what there is at a place; l.mu is held.
func (l *listings) put(at place, there []listing) {
	if len(there) == 0 {
		delete(l.rest, at)
	} else {
		l.rest[at] = there
	}
}

// each reads all rows. written is when a row was written, by its coordinator's clock.
func (s *Store) each(ctx context.Context, f func(space driver.Space, name string, version int64, value []byte, written time.Time)) error {
	var page []byte
	for {
		type found struct {
			space          int8
			name, value    []byte
			version, clock int64
		}
		var rows []found
		var next []byte
		_, err := s.calls.send(ctx, nil, s.text.list, nil, func(ctx context.Context, q *gocql.Query) error {
			rows = rows[:0]
			iter := q.PageSize(1000).PageState(page).IterContext(ctx)
			var r found
			for range iter.NumRows() {
				if !iter.Scan(&r.space, &r.name, &r.version, &r.value, &r.clock) {
					break
				}
				rows = append(rows, found{r.space, slices.Clone(r.name), slices.Clone(r.value), r.version, r.clock})
			}
			next = slices.Clone(iter.PageState())
			return iter.Close()
		})
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.space >= 0 {
				f(driver.Space(r.space), string(r.name), r.version, r.value, time.UnixMicro(r.clock))
			}
		}
		if page = next; len(page) == 0 {
			return nil
		}
	}
}

package cassandra

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
)

// A key that was once written keeps its row, which has
//
//	version   of the record; negative in a placeholder, which holds nothing yet
//	value     what the key holds; empty: nothing
//	attempt   16 random bytes of the write that made it so
//	follows   the version that this write followed; -1 if it took an empty key
//
// Every write is a lightweight transaction whose condition names the version that
// it follows, so it is harmless to send it again, and it is done at most once. A
// writer without an answer sends it again, and learns from attempt and follows what
// became of the first one.
//
// A row that was swept may come back only above the floor, the version of a row
// of its own. So a key that has no row is written in three steps: a placeholder
// is inserted, then the floor is read, then the placeholder is filled. A sweep
// raises the floor first and then removes rows; whichever row it removed, the
// floor that is read after a placeholder was inserted in its stead is above it.
// A fill that comes late finds another placeholder, or none.
const floorSpace = -1

var floorName = []byte{0}

// statements are the texts for one table.
type statements struct {
	follow, take, create string
	load, stale, list    string
	floor, raise, drop   string
}

func newStatements(t tables) statements {
	// The conditions beyond the first make Cassandra show a loser the row. Each holds
	// whenever the first does: nobody else has our attempt, or writes it as a value.
	const told = ` and attempt != ? and follows != ? and value != ?`
	const set = `update {records} set version = ?, value = ?, attempt = ?, follows = ? where space = ? and name = ? `
	const row = ` from {records} where space = ? and name = ?`
	return statements{
		follow: t.expand(set + `if version = ?` + told),
		take:   t.expand(set + `if value = 0x and version > 0 and version < ? and attempt != ? and follows != ?`),
		create: t.expand(`insert into {records} (space, name, version, value, attempt, follows) values (?, ?, ?, 0x, 0x, 0) if not exists`),
		load:   t.expand(`select version, value` + row),
		stale:  t.expand(`select space, name, version, value from {records} where space = ? and name in ?`),
		list:   t.expand(`select space, name, version, value, writetime(version) from {records}`),
		floor:  t.expand(`select version` + row),
		raise:  t.expand(`update {records} set version = ? where space = ? and name = ? if version = ?`),
		drop:   t.expand(`delete from {records} where space = ? and name = ? if version = ?`),
	}
}

// nowhere is a version that no record follows.
const nowhere = math.MinInt64

// Traits implements driver.Store: a fresh read is a round of consensus.
func (s *Store) Traits() driver.Traits {
	return driver.Traits{StaleReads: true, CostlyWrites: true, SingleWrites: maxCalls}
}

// Load reads each record by a round of consensus, or at QUORUM for a stale read.
func (s *Store) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if how == driver.Stale {
		return s.staleLoad(ctx, keys)
	}
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return nil, fmt.Errorf("cassandra: %w", err)
		}
	}
	recs := make([]driver.Record, len(keys))
	began := time.Now()
	for _, err := range s.calls.lane(keys).each(ctx, len(keys), func(i int) (err error) {
		recs[i], err = s.loadOne(ctx, keys[i])
		return err
	}) {
		if err != nil {
			return nil, fmt.Errorf("cassandra: read: %w", s.calls.crowded(err, began))
		}
	}
	return recs, nil
}

// lane is the one for heartbeats if all keys are sessions.
func (c *calls) lane(keys []driver.Key) lane {
	for _, k := range keys {
		if k.Space != driver.Sessions {
			return c.names
		}
	}
	return c.beats
}

func (s *Store) loadOne(ctx context.Context, k driver.Key) (driver.Record, error) {
	var version int64
	var value []byte
	_, err := s.calls.send(ctx, rowOf(k), s.text.load, []any{int8(k.Space), []byte(k.Name)}, func(ctx context.Context, q *gocql.Query) error {
		version, value = 0, nil
		err := q.Consistency(s.calls.serial).ScanContext(ctx, &version, &value)
		if errors.Is(err, gocql.ErrNotFound) {
			err = nil
		}
		return err
	})
	return record(version, value), err
}

// record is the record in a row; a placeholder has none.
func record(version int64, value []byte) driver.Record {
	if version <= 0 {
		return driver.Record{Age: -1}
	}
	if len(value) == 0 {
		value = nil
	}
	return driver.Record{Version: version, Value: value, Age: -1}
}

// rowOf is the key by which the coordinator of a row is chosen.
func rowOf(k driver.Key) []byte { return append([]byte{byte(k.Space)}, k.Name...) }

// CompareAndSwap carries out each write by a lightweight transaction of its own.
func (s *Store) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	keys := make([]driver.Key, len(writes))
	for i, w := range writes {
		if err := w.Check(); err != nil {
			return nil, fmt.Errorf("cassandra: %w", err)
		}
		keys[i] = w.Key
	}
	outs := make([]driver.Outcome, len(writes))
	failed := 0
	for i, err := range s.calls.lane(keys).each(ctx, len(writes), func(i int) (err error) {
		outs[i], err = s.write(ctx, writes[i])
		return err
	}) {
		if err != nil {
			outs[i] = driver.Outcome{Err: fmt.Errorf("cassandra: write of %s %q: %w", keys[i].Space, keys[i].Name, err)}
			failed++
		}
	}
	if failed > 0 && failed == len(outs) {
		return nil, outs[0].Err
	}
	return outs, nil
}

// A row is what a write has met.
type row struct {
	there            bool
	version, follows int64
	value, attempt   []byte
}

func (r row) record() driver.Record { return record(r.version, r.value) }

// errUnknown says that a write may have been carried out, or may be yet.
var errUnknown = errors.New("its outcome is not known")

// An attempt is one write on its way to an answer.
type attempt struct {
	s       *Store
	w       driver.Write
	id      []byte
	unknown bool // a statement of it may have been carried out without our knowing
}

func (s *Store) write(ctx context.Context, w driver.Write) (driver.Outcome, error) {
	a := &attempt{s: s, w: w, id: random()}
	switch {
	case w.Old == driver.IfEmpty:
		return a.take(ctx)
	case w.Old <= 0 || w.Old == math.MaxInt64: // nothing has, or is followed by, such a version
		rec, err := s.loadOne(ctx, w.Key)
		return driver.Outcome{Record: rec}, err
	}
	out, _, err := a.follow(ctx, w.Old, max(w.Old+1, time.Now().UnixMicro()))
	return out, err
}

func random() []byte {
	b := make([]byte, 16)
	rand.Read(b)
	return b
}

// follow writes the value as a version that follows old. A loser gets the row
// that it met.
func (a *attempt) follow(ctx context.Context, old, version int64) (driver.Outcome, row, error) {
	met, applied, err := a.transact(ctx, a.s.text.follow, version, old, old, a.id, int64(nowhere), a.id)
	if err != nil {
		return driver.Outcome{}, met, err
	}
	return a.settle(met, applied, old, version)
}

// settle tells what became of a write that met a row.
func (a *attempt) settle(met row, applied bool, old, version int64) (driver.Outcome, row, error) {
	switch {
	case applied:
		return a.won(version), met, nil
	case met.there && bytes.Equal(met.attempt, a.id):
		return a.won(met.version), met, nil // an earlier statement of ours won
	case !a.unknown, met.there && old != 0 && met.follows == old:
		return driver.Outcome{Record: met.record()}, met, nil // another has followed it
	}
	return driver.Outcome{}, met, &driver.BusyError{Err: errUnknown} // ours may have won, and been followed since
}

func (a *attempt) won(version int64) driver.Outcome {
	return driver.Outcome{Won: true, Record: record(version, a.w.Value)}
}

// transact sends a conditional update until it is answered. follows is the new
// value of that column, and conditions are the arguments of its condition.
func (a *attempt) transact(ctx context.Context, text string, version, follows int64, conditions ...any) (met row, applied bool, err error) {
	value := a.w.Value
	if value == nil {
		value = []byte{}
	}
	args := append([]any{version, value, a.id, follows, int8(a.w.Key.Space), []byte(a.w.Key.Name)}, conditions...)
	return a.conditional(ctx, text, args)
}

// conditional sends any statement with a condition until it is answered.
func (a *attempt) conditional(ctx context.Context, text string, args []any) (met row, applied bool, err error) {
	began := time.Now()
	unknown, err := a.s.calls.send(ctx, rowOf(a.w.Key), text, args, func(ctx context.Context, q *gocql.Query) (err error) {
		met, applied, err = scan(ctx, q)
		return err
	})
	switch {
	case err == nil:
		a.unknown = a.unknown || unknown
		if a.w.Key.Space != driver.Sessions && (applied || met.there) {
			a.s.rows.add(a.w.Key)
		}
		return met, applied, nil
	case !a.unknown && !unknown && (refused(err) || err == driver.ErrClosed):
		return met, false, err
	}
	a.unknown = true
	return met, false, fmt.Errorf("%w: %w", errUnknown, a.s.calls.crowded(err, began))
}

// scan reads the answer to a conditional statement.
func scan(ctx context.Context, q *gocql.Query) (met row, applied bool, err error) {
	columns := make(map[string]any, 6)
	if applied, err = q.MapScanCASContext(ctx, columns); err != nil || applied {
		return met, applied, err
	}
	met.version, met.there = columns["version"].(int64)
	met.follows, _ = columns["follows"].(int64)
	met.value, _ = columns["value"].([]byte)
	met.attempt, _ = columns["attempt"].([]byte)
	return met, false, nil
}

// take writes the value if the key holds nothing, whatever its version. It begins by
// creating the row where there is probably none: sessions have none before their
// first record, and where one unknown name was new, so may be the next.
func (a *attempt) take(ctx context.Context) (out driver.Outcome, err error) {
	now := time.Now().UnixMicro()
	var met row
	var applied bool
	session, seen := a.w.Key.Space == driver.Sessions, a.s.rows.has(a.w.Key)
	if !session && (seen || !a.s.rows.lastNew.Load()) {
		met, applied, err = a.transact(ctx, a.s.text.take, now, -1, now, a.id, int64(nowhere))
	}
	for try := 0; ; try++ {
		switch {
		case err != nil:
			return driver.Outcome{}, err
		case applied, a.unknown, len(met.value) > 0:
			out, _, err = a.settle(met, applied, 0, now)
			return out, err
		case !met.there:
			version := placeholder()
			met, applied, err = a.conditional(ctx, a.s.text.create, []any{int8(a.w.Key.Space), []byte(a.w.Key.Name), version})
			if err != nil {
				continue
			}
			if applied {
				met = row{there: true, version: version}
			}
			if !session && !seen {
				a.s.rows.lastNew.Store(met.version < 0) // another's placeholder is as new as ours
			}
			applied, a.unknown = false, false // whoever created it, it holds nothing
		default:
			version := max(met.version+1, now)
			if met.version < 0 {
				var floor int64
				if floor, err = a.s.floor(ctx); err != nil {
					continue
				}
				version = max(floor+1, now)
			}
			if out, met, err = a.follow(ctx, met.version, version); err != nil || out.Won || len(met.value) > 0 {
				return out, err
			}
		}
		if try > 50 {
			return driver.Outcome{}, &driver.BusyError{Err: errors.New("no end of writes by others")}
		}
	}
}

// placeholder is a version that no other placeholder has.
func placeholder() int64 { return -2 - int64(binary.BigEndian.Uint64(random())>>2) }

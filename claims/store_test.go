package claims

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var errStore = errors.New("the store timed out")

// A table is Columns in memory: the later write timestamp stays, deletions win
// ties and leave tombstones. What fate says becomes of each call.
type table struct {
	mu         sync.Mutex
	rows       map[string]map[string]cell
	calls      map[string]int // of lock rows, by what was called
	fate       func(call string, who string) fate
	tombstones int // a read that meets more of them fails; 0: it does not
}

type cell struct {
	stamp int64
	value []byte
	dead  bool
}

// A fate is what becomes of a call.
type fate struct {
	takes time.Duration // until it is applied
	reply time.Duration // from then on
	err   error         // what the caller gets at the time of the reply
	late  time.Duration // with an error: it is applied so much later; < 0: never
}

func newTable() *table {
	return &table{rows: make(map[string]map[string]cell), calls: make(map[string]int)}
}

// as is the table as a process sees it.
func (x *table) as(who string) Columns { return view{x, who} }

type view struct {
	*table
	who string
}

func (v view) Add(ctx context.Context, key []byte, add Column, remove [][]byte, stamp int64) error {
	return v.change(ctx, "add", key, &add, remove, stamp)
}

func (v view) Delete(ctx context.Context, key []byte, columns [][]byte, stamp int64) error {
	return v.change(ctx, "delete", key, nil, columns, stamp)
}

func (v view) change(ctx context.Context, call string, key []byte, add *Column, remove [][]byte, stamp int64) error {
	f := v.decide(call, key)
	apply := func() { v.apply(string(key), add, remove, stamp) }
	if f.err != nil {
		if f.late >= 0 {
			time.AfterFunc(f.takes+f.late, apply)
		}
	} else if f.takes == 0 {
		apply()
	} else {
		time.AfterFunc(f.takes, apply)
	}
	if err := sleep(ctx, f.takes+f.reply); err != nil {
		return err
	}
	return f.err
}

func (x *table) apply(key string, add *Column, remove [][]byte, stamp int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	row := x.rows[key]
	if row == nil {
		row = make(map[string]cell)
		x.rows[key] = row
	}
	put := func(name string, c cell) {
		old, ok := row[name]
		if !ok || c.stamp > old.stamp || c.stamp == old.stamp && c.dead {
			row[name] = c
		}
	}
	if add != nil {
		put(string(add.Name), cell{stamp, slices.Clone(add.Value), false})
	}
	for _, name := range remove {
		put(string(name), cell{stamp, nil, true})
	}
}

func (v view) Slice(ctx context.Context, key, from []byte) ([]Column, error) {
	f := v.decide("slice", key)
	if err := sleep(ctx, f.takes); err != nil {
		return nil, err
	}
	columns, dead := v.live(string(key), string(from))
	if v.tombstones > 0 && dead > v.tombstones {
		return nil, errors.New("too many tombstones")
	}
	if err := sleep(ctx, f.reply); err != nil {
		return nil, err
	}
	if f.err != nil {
		return nil, f.err
	}
	return columns, nil
}

func (v view) decide(call string, key []byte) fate {
	v.mu.Lock()
	defer v.mu.Unlock()
	if string(key) == string(settingsKey) {
		call = "settings " + call
	}
	v.calls[call]++
	if v.fate == nil {
		return fate{}
	}
	return v.fate(call, v.who)
}

func (x *table) live(key, from string) (columns []Column, dead int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, c := range x.rows[key] {
		switch {
		case name < from:
		case c.dead:
			dead++
		default:
			columns = append(columns, Column{[]byte(name), slices.Clone(c.value)})
		}
	}
	slices.SortFunc(columns, func(a, b Column) int { return cmp.Compare(string(a.Name), string(b.Name)) })
	return columns, dead
}

// claims are the live columns of the row that the tests lock.
func (x *table) claims() (names []string) {
	columns, _ := x.live(string(testRow), "")
	for _, c := range columns {
		names = append(names, string(c.Name))
	}
	return names
}

// leftovers are the live columns of all rows of locks.
func (x *table) leftovers() (names []string) {
	x.mu.Lock()
	keys := slices.Sorted(maps.Keys(x.rows))
	x.mu.Unlock()
	for _, key := range keys {
		columns, _ := x.live(key, "")
		for _, c := range columns {
			if key != string(settingsKey) {
				names = append(names, string(c.Name))
			}
		}
	}
	return names
}

func (x *table) count(call string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.calls[call]
}

// doom decides the fate of calls from now on.
func (x *table) doom(fate func(call, who string) fate) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fate = fate
}

// cut has every call of one process fail from now on, without effect.
func (x *table) cut(who string) {
	x.doom(func(call, w string) fate {
		if w == who {
			return fate{err: errStore, late: -1}
		}
		return fate{}
	})
}

// once decides the fate of the n-th such call of a process.
func once(n int, call, who string, f fate) func(string, string) fate {
	return func(c, w string) fate {
		if c == call && w == who {
			if n--; n == 0 {
				return f
			}
		}
		return fate{}
	}
}

var (
	testKey = []byte("k1")
	testCol = []byte("c1")
	testRow = rowKey(testKey, testCol)
)

// A wall is the clock of a host, off by so much.
type wall struct {
	mu  sync.Mutex
	off time.Duration
}

func (w *wall) step(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off += d
}

func (w *wall) set(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = d
}

func (w *wall) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.off)
}

// small are settings with which things happen soon.
var small = Options{Expire: 10 * time.Second}

// locker makes a Locker of a process with a clock of its own.
func locker(t testing.TB, x *table, name string, w *wall, opts Options) *Locker {
	t.Helper()
	if w == nil {
		w = &wall{}
	}
	base := time.Now()
	opts.Name = name
	opts.clocks = &clocks{w.now, func() time.Duration { return time.Since(base) + time.Hour }}
	l, err := New(x.as(name), &opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func acquire(t testing.TB, l *Locker) *Lock {
	t.Helper()
	lock, err := l.Acquire(t.Context(), testKey, testCol)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// An original is JanusGraph's ConsistentKeyLocker, as far as it matters here:
// one process that claims, checks once and deletes.
type original struct {
	columns      Columns
	rid          string
	wall         *wall
	wait, expire time.Duration
	at           int64 // the claim's timestamp, µs
}

func (x *table) original(rid string, w *wall, opts Options) *original {
	if w == nil {
		w = &wall{}
	}
	return &original{columns: x.as(rid), rid: rid, wall: w, wait: 100 * time.Millisecond, expire: opts.Expire}
}

func (o *original) write(ctx context.Context) error {
	for range 3 {
		before := o.at
		began := o.wall.now()
		o.at = began.UnixMicro()
		var remove [][]byte
		if before != 0 {
			remove = [][]byte{claimName(before, o.rid)}
		}
		err := o.columns.Add(ctx, testRow, Column{claimName(o.at, o.rid), claimValue()}, remove, o.at|1)
		if err == nil && o.wall.now().Sub(began) <= o.wait {
			return nil
		}
	}
	o.delete(ctx)
	return errors.New("lock write retry count exceeded")
}

func (o *original) check(ctx context.Context) error {
	for ready := time.UnixMicro(o.at).Add(o.wait); !o.wall.now().After(ready); {
		if err := sleep(ctx, ready.Sub(o.wall.now())+1); err != nil {
			return err
		}
	}
	columns, err := o.columns.Slice(ctx, testRow, nil)
	if err != nil {
		return err
	}
	cutoff := o.wall.now().Add(-o.expire).UnixMicro()
	for _, c := range columns {
		switch ts, rid := timestampOf(c.Name), ridOf(c.Name); {
		case ts < cutoff && rid == o.rid && ts == o.at:
			return errors.New("expired lock")
		case ts < cutoff:
		case rid != o.rid:
			return errors.New("already held by " + strings.ToValidUTF8(rid, "?"))
		case ts == o.at:
			return nil
		}
	}
	return errors.New("no lock columns found")
}

func (o *original) delete(ctx context.Context) {
	for range 3 {
		if o.columns.Delete(ctx, testRow, [][]byte{claimName(o.at, o.rid)}, (o.wall.now().UnixMicro()&^1)) == nil {
			break
		}
	}
	o.at = 0
}

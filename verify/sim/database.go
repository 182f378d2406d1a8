package sim

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// An isolation is how the database under a simulated store keeps transactions apart.
type isolation string

const (
	// atomic: a call is done at one instant.
	atomic isolation = ""

	// readCommitted: a statement sees what was committed when it began, waits for
	// whoever has a row locked that it wants to write, and then evaluates its
	// condition again on what that one has left, as PostgreSQL does. What was written
	// shows when it commits.
	readCommitted isolation = "read committed"

	// snapshot: a transaction sees what was committed when it began, and commits if
	// nobody has written its rows since; or else it is done again.
	snapshot isolation = "snapshot"

	// lightweight: each write is a transaction of its own, by Paxos. One whose answer
	// is missing may have been applied, or be in the hands of some replicas, and then
	// whoever looks next completes it, as in Cassandra; or nobody ever does.
	lightweight isolation = "lightweight"
)

// A flaw is what a database gets wrong, to see that it is found.
type flaw string

const (
	noRecheck   flaw = "a statement that has waited for a row writes what it meant to"
	noConflicts flaw = "a snapshot commits over what came after it"
	noLock      flaw = "a fence reads the record without locking it"
	resurrected flaw = "a write that nobody has completed is completed after another one"
)

// A database stands between the Bus and the recorder, and takes time: calls run
// side by side, each in steps. It has no crash that takes back writes.
type database struct {
	*records
	isolation
	flaw
	pace  time.Duration // the most that a step takes
	limbo float64       // lightweight writes that are not answered

	under  sync.WaitGroup     // transactions
	fenced map[driver.Key]int // by transactions of users; guarded by recorder.mu

	mu     sync.Mutex // guards all below
	random *rand.Rand
	locked map[driver.Key]chan struct{}
	begun  map[driver.Key]proposal // by a lightweight transaction whose coordinator gave up
}

// records is the recorder without what only it can do.
type records struct{ *recorder }

// Restore hides that of the recorder.
func (records) Restore() {}

// A proposal is a write in the hands of some replicas.
type proposal struct {
	driver.Write
	at time.Time
}

var errNoAnswer = errors.New("sim: the coordinator gave up")

func newDatabase(r *recorder, seed uint64, p plan) *database {
	return &database{
		records: &records{r}, isolation: p.isolation, pace: p.pace, limbo: p.limbo,
		random: rand.New(rand.NewPCG(seed, 5)), fenced: map[driver.Key]int{},
		locked: map[driver.Key]chan struct{}{}, begun: map[driver.Key]proposal{},
	}
}

// heal has every write answered from now on.
func (d *database) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limbo = 0
}

// step is the time between two steps of a transaction.
func (d *database) step() {
	d.mu.Lock()
	took := time.Duration(d.random.Int64N(int64(d.pace) + 1))
	d.mu.Unlock()
	time.Sleep(took)
}

func (d *database) chance(p float64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.Float64() < p
}

// lock waits until nobody else has a row locked.
func (d *database) lock(k driver.Key) {
	for {
		d.mu.Lock()
		other := d.locked[k]
		if other == nil {
			d.locked[k] = make(chan struct{})
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		<-other
	}
}

func (d *database) unlock(k driver.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.locked[k])
	delete(d.locked, k)
}

// done runs a transaction, which goes on though its client may no longer wait.
func done[T any](ctx context.Context, d *database, transact func() (T, error)) (T, error) {
	type answer struct {
		got T
		err error
	}
	answered := make(chan answer, 1)
	d.under.Go(func() {
		got, err := transact()
		answered <- answer{got, err}
	})
	select {
	case a := <-answered:
		return a.got, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// Load implements driver.Store.
func (d *database) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	return done(ctx, d, func() ([]driver.Record, error) {
		d.step()
		if d.isolation == lightweight { // key by key
			recs := make([]driver.Record, len(keys))
			for i, k := range keys {
				d.lock(k)
				d.complete(k)
				recs[i] = d.look(k)
				d.unlock(k)
			}
			return recs, nil
		}
		recs, err := d.recorder.Load(context.Background(), keys, how)
		d.step()
		return recs, err
	})
}

// CompareAndSwap implements driver.Store.
func (d *database) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	writes = slices.Clone(writes)
	for i := range writes {
		writes[i].Value = slices.Clone(writes[i].Value)
	}
	return done(ctx, d, func() ([]driver.Outcome, error) {
		switch d.isolation {
		case readCommitted:
			return d.statement(writes), nil
		case snapshot:
			return d.optimistic(writes), nil
		}
		return d.paxos(writes)
	})
}

func (d *database) look(k driver.Key) driver.Record {
	d.recorder.mu.Lock()
	defer d.recorder.mu.Unlock()
	return d.record(k)
}

// matches says whether a write may follow a record.
func matches(w driver.Write, r driver.Record) bool {
	if w.Old == driver.IfEmpty {
		return len(r.Value) == 0
	}
	return w.Old > 0 && w.Old == r.Version
}

// statement is one UPDATE or INSERT of all rows, in the order of their keys.
func (d *database) statement(writes []driver.Write) []driver.Outcome {
	d.step()
	outs := make([]driver.Outcome, len(writes))
	for i, w := range writes {
		outs[i].Record = d.look(w.Key) // the statement's snapshot
	}
	order := make([]int, len(writes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := writes[a].Key, writes[b].Key
		return cmp.Or(cmp.Compare(x.Space, y.Space), strings.Compare(x.Name, y.Name))
	})
	var win []int
	var at []time.Time
	for _, i := range order {
		w := writes[i]
		// An INSERT … ON CONFLICT looks at what is there, seen or not.
		if insert := w.Old == driver.IfEmpty; !insert && !matches(w, outs[i].Record) {
			continue
		}
		d.lock(w.Key)
		if now := d.look(w.Key); d.flaw != noRecheck && !matches(w, now) {
			outs[i].Record = now
			d.unlock(w.Key)
			continue
		}
		win, at = append(win, i), append(at, time.Now())
	}
	d.step()
	d.commit(writes, outs, win, at)
	for _, i := range win {
		d.unlock(writes[i].Key)
	}
	for i := range outs {
		if !outs[i].Won && d.chance(0.5) { // what it has lost to is looked at in another statement
			outs[i].Record = d.look(writes[i].Key)
		}
	}
	return outs
}

// optimistic is one transaction that reads all rows and then writes them.
func (d *database) optimistic(writes []driver.Write) []driver.Outcome {
	for {
		outs := make([]driver.Outcome, len(writes))
		d.recorder.mu.Lock()
		for i, w := range writes {
			outs[i].Record = d.record(w.Key)
		}
		d.recorder.mu.Unlock()
		d.step()
		var win []int
		var at []time.Time
		for i, w := range writes {
			if matches(w, outs[i].Record) {
				win, at = append(win, i), append(at, time.Now())
			}
		}
		d.step()
		if d.commit(writes, outs, win, at) {
			return outs
		}
	}
}

// commit writes rows at one instant, unless another has written one of them since
// it was seen. It tells what became of them.
func (d *database) commit(writes []driver.Write, outs []driver.Outcome, win []int, at []time.Time) bool {
	d.recorder.mu.Lock()
	defer d.recorder.mu.Unlock()
	if d.isolation == snapshot && d.flaw != noConflicts {
		for _, i := range win {
			if d.rows[writes[i].Key].version != outs[i].Record.Version {
				return false
			}
		}
	}
	for n, i := range win {
		d.write(writes[i], at[n])
		outs[i] = driver.Outcome{Won: true, Record: d.record(writes[i].Key)}
	}
	return true
}

// paxos does writes one by one.
func (d *database) paxos(writes []driver.Write) ([]driver.Outcome, error) {
	outs := make([]driver.Outcome, len(writes))
	for i, w := range writes {
		outs[i] = d.lightweight(w)
	}
	if len(outs) == 1 && outs[0].Err != nil {
		return nil, outs[0].Err
	}
	return outs, nil
}

func (d *database) lightweight(w driver.Write) driver.Outcome {
	d.step()
	d.lock(w.Key)
	defer d.unlock(w.Key)
	if d.flaw != resurrected {
		d.complete(w.Key)
	}
	if rec := d.look(w.Key); !matches(w, rec) {
		return driver.Outcome{Record: rec}
	}
	at := time.Now()
	d.step()
	d.mu.Lock()
	unanswered, fate := d.random.Float64() < d.limbo, d.random.IntN(3)
	if unanswered && fate == 0 {
		d.begun[w.Key] = proposal{w, at}
	}
	d.mu.Unlock()
	out := driver.Outcome{Won: true}
	if !unanswered || fate == 1 {
		d.recorder.mu.Lock()
		d.write(w, at)
		out.Record = d.record(w.Key)
		d.recorder.mu.Unlock()
	}
	if unanswered {
		return driver.Outcome{Err: errNoAnswer}
	}
	return out
}

// complete ends what a coordinator has begun with a key; its lock is held.
func (d *database) complete(k driver.Key) {
	d.mu.Lock()
	p, ok := d.begun[k]
	delete(d.begun, k)
	d.mu.Unlock()
	if ok {
		d.recorder.mu.Lock()
		d.write(p.Write, p.at)
		d.recorder.mu.Unlock()
	}
}

// Sweep implements driver.Store: it leaves rows alone that somebody has locked.
func (d *database) Sweep(ctx context.Context, idle time.Duration) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sweep(ctx, idle, func(k driver.Key) bool { return d.locked[k] != nil || d.begun[k].Key == k })
}

// fence is a transaction of a user that reads the record of a lock, and writes
// something of its own if that allows it.
func (d *database) fence(k driver.Key, allowed func(driver.Record) bool, write func()) {
	if d.isolation == lightweight { // it is one statement there
		d.lock(k)
		defer d.unlock(k)
		d.complete(k)
		if allowed(d.look(k)) {
			write()
		}
		return
	}
	if d.isolation == readCommitted {
		if d.flaw != noLock {
			d.lock(k)
			defer d.unlock(k)
		}
		ok := allowed(d.look(k))
		d.step()
		if d.flaw == noLock { // a transaction that takes its time, in which others go on
			for range 20 {
				d.step()
			}
		}
		if ok {
			write()
		}
		return
	}
	for {
		d.recorder.mu.Lock()
		rec, fenced := d.record(k), d.fenced[k]
		d.recorder.mu.Unlock()
		ok := allowed(rec)
		d.step()
		d.recorder.mu.Lock()
		unchanged := rec.Version == d.rows[k].version && fenced == d.fenced[k]
		if unchanged && ok {
			d.fenced[k]++
			write()
		}
		d.recorder.mu.Unlock()
		if unchanged {
			return
		}
	}
}

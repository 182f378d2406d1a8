// Package faultstore stands between a store and processes, and does to them
// what networks and crashes do: calls are delayed, lost, split, answered late or
// not at all. A Bus connects all processes to the store, a Process is one of them.
package faultstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// Faults says what goes wrong between processes and a store. The zero value is
// a store that does what it is asked, at once. A probability is from 0 to 1. A
// call whose context ends while it is on its way fails, and its writes may be
// late.
type Faults struct {
	Delay     time.Duration // the most that a call takes to reach the store
	SlowReply time.Duration // the most that an answer takes back; it is that old on arrival

	Lose      float64       // calls that never arrive, and fail
	LoseReply float64       // calls that are done, and fail
	Late      float64       // calls that fail, and whose writes are applied later
	LateBy    time.Duration // the most that these are late; 0: a minute
	Double    float64       // of the writes whose answer is lost: those that are done once more, as late
	Hang      float64       // of the calls that fail: those that do so only when their context is done

	Split   float64 // calls whose keys are written or read one by one, in any order, at moments of their own
	Partial float64 // batches that fail with some writes applied, some late and some lost
	Singly  float64 // of those batches: answered, with an error for each write that is late or lost
	Busy    float64 // of the writes that fail, and do not hang: those that do so with a driver.BusyError

	Stale time.Duration // the most by which a stale read is out of date

	LoseNotification   float64       // notifications that do not arrive
	DoubleNotification float64       // notifications that arrive twice
	DelayNotification  time.Duration // the most that a notification is late

	NoClock bool          // every Age is negative
	Rate    float64       // of the store's clock, relative to true time; 0: 1
	LazyFor time.Duration // after this a lazy write is durable; 0: one second
}

// ErrFault is what a call fails with when a Bus made it fail.
var ErrFault = errors.New("faultstore: injected fault")

// A Bus stands between one store and the processes that use it, and lets calls
// be lost, late, slow or half done, as the contract allows and networks do. It
// has no goroutines of its own and waits by time.Sleep's clock, so it can be
// used inside a testing/synctest bubble, where waiting takes no time.
//
// What happens to a call depends on the seed, the name of its process and how
// many calls of its kind the process has made, and on nothing else.
//
// Writes that are late wait in the Bus, and are applied by whatever call comes
// through it next after their time.
type Bus struct {
	inner driver.Store
	seed  uint64

	applying sync.Mutex // held while writes go to the inner store, if lazy ones are logged

	mu     sync.Mutex // guards all below; taken after applying
	faults Faults
	late   []lateWrite // by due
	undo   map[driver.Key][]undoneWrite
	past   map[driver.Key][]pastRecord
	untold map[driver.Key]bool // newest records that no stale read shows
	jumps  []jump
	crash  chan struct{} // closed, and made anew, when the store crashes
	closed chan struct{} // closed when nothing works any more
}

type lateWrite struct {
	driver.Write
	due time.Time
}

// An undoneWrite is what a key held before a lazy write.
type undoneWrite struct {
	before  driver.Record
	written time.Time
}

// A jump is a step of the store's clock.
type jump struct {
	at time.Time
	by time.Duration
}

// A Restorer is a store that can take back a write; memory.Store is one.
type Restorer interface {
	Restore(driver.Key, driver.Record)
}

// NewBus returns a Bus to the inner store, which nobody else writes. It has to
// be closed when calls may still hang in it.
func NewBus(inner driver.Store, seed uint64, f Faults) *Bus {
	return &Bus{
		inner:  inner,
		seed:   seed,
		faults: f,
		undo:   map[driver.Key][]undoneWrite{},
		past:   map[driver.Key][]pastRecord{},
		untold: map[driver.Key]bool{},
		crash:  make(chan struct{}),
		closed: make(chan struct{}),
	}
}

// SetFaults changes what goes wrong from now on.
func (b *Bus) SetFaults(f Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = f
}

// Close makes every call fail that waits or is still to come. Late writes that
// are still waiting never happen.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.closed:
	default:
		close(b.closed)
	}
	b.late = nil
}

// Settle applies all late writes now. After that, calls that have returned no
// longer change the store.
func (b *Bus) Settle() {
	b.mu.Lock()
	due := b.late
	b.late = nil
	b.mu.Unlock()
	b.applyLate(due)
}

// Jump steps the store's clock, as far as ages show it: every record becomes
// older by d, or younger.
func (b *Bus) Jump(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jumps = append(b.jumps, jump{time.Now(), d})
}

// CrashStore ends every call that is on its way with an error, and every Watch,
// and takes back the newest lazy writes: of each key any number, drawn from the
// seed, of those that came after the last durable write. It returns how many. Late
// writes are still late. Only a Restorer can take writes back.
func (b *Bus) CrashStore() (lost int) {
	b.applying.Lock()
	defer b.applying.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.crash)
	b.crash = make(chan struct{})

	r, ok := b.inner.(Restorer)
	if !ok {
		return 0
	}
	now := time.Now()
	for k, undo := range b.undo {
		undo = undo[b.durable(undo, now):]
		if len(undo) == 0 {
			continue
		}
		last := undo[len(undo)-1].written
		n := draw(b.seed, k.Space.String(), k.Name, uint64(last.UnixNano())).IntN(len(undo) + 1)
		if n == 0 {
			continue
		}
		back := undo[len(undo)-n]
		back.before.Age += now.Sub(back.written)
		r.Restore(k, back.before)
		lost += n
	}
	clear(b.undo)
	return lost
}

// durable says how many of a key's lazy writes have reached the disk.
func (b *Bus) durable(undo []undoneWrite, now time.Time) int {
	keep := b.faults.LazyFor
	if keep == 0 {
		keep = time.Second
	}
	for i, u := range undo {
		if now.Sub(u.written) < keep {
			return i
		}
	}
	return len(undo)
}

// apply makes the inner store do writes, after the late ones that are due.
func (b *Bus) apply(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	b.catchUp()
	return b.applyNow(ctx, writes)
}

func (b *Bus) applyNow(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if _, ok := b.inner.(Restorer); !ok {
		return b.inner.CompareAndSwap(ctx, writes)
	}

	b.applying.Lock()
	defer b.applying.Unlock()
	keys := keysOf(writes)
	before, err := b.inner.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return nil, err
	}
	outcomes, err := b.inner.CompareAndSwap(ctx, writes)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	durable := false
	for i, w := range writes {
		if outcomes[i].Won {
			b.remember(w.Key, before[i])
		}
		switch {
		case !outcomes[i].Won:
		case w.Lazy:
			undo := b.undo[w.Key]
			undo = slices.Delete(undo, 0, b.durable(undo, now))
			b.undo[w.Key] = append(undo, undoneWrite{before[i], now})
		default:
			durable = true
		}
	}
	if durable {
		clear(b.undo) // it carries everything before it along
	}
	return outcomes, nil
}

// catchUp applies the late writes that are due.
func (b *Bus) catchUp() {
	b.mu.Lock()
	now := time.Now()
	n := 0
	for n < len(b.late) && !b.late[n].due.After(now) {
		n++
	}
	due := slices.Clone(b.late[:n])
	b.late = slices.Delete(b.late, 0, n)
	b.mu.Unlock()
	b.applyLate(due)
}

func (b *Bus) applyLate(due []lateWrite) {
	for _, w := range due {
		outcomes, err := b.applyNow(context.Background(), []driver.Write{w.Write})
		if err == nil && outcomes[0].Won { // and nobody waits for the answer
			b.told([]driver.Key{w.Key}, false)
		}
	}
}

// delay keeps writes that will be applied after d.
func (b *Bus) delay(d time.Duration, writes ...driver.Write) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.closed:
		return
	default:
	}
	due := time.Now().Add(d)
	at := len(b.late)
	for at > 0 && b.late[at-1].due.After(due) {
		at--
	}
	for i, w := range writes {
		w.Value = slices.Clone(w.Value)
		b.late = slices.Insert(b.late, at+i, lateWrite{w, due})
	}
}

// tell changes the age of a record that is on its way to a process, as Faults and Jump say.
func (b *Bus) tell(r *driver.Record, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.faults.NoClock {
		r.Age = -1
	}
	if r.Age < 0 || r.Version == 0 {
		return
	}
	written := now.Add(-r.Age)
	if b.faults.Rate > 0 {
		r.Age = time.Duration(float64(r.Age) * b.faults.Rate)
	}
	for _, j := range b.jumps {
		if j.at.After(written) {
			r.Age += j.by
		}
	}
	r.Age = max(0, r.Age)
}

// draw returns the source of randomness for one thing that happens.
func draw(seed uint64, who, kind string, n uint64) *rand.Rand {
	h := mix(seed)
	for _, s := range []string{who, kind} {
		for i := range len(s) {
			h = mix(h ^ uint64(s[i]))
		}
		h = mix(h ^ 0x100)
	}
	h = mix(h ^ n)
	return rand.New(rand.NewPCG(h, mix(h)))
}

// mix is the step of SplitMix64: seeds that lie close together lead far apart.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// upTo draws a duration from 0 to most.
func upTo(r *rand.Rand, most time.Duration) time.Duration {
	n := r.Float64() // drawn in any case, so that later draws stay what they are
	return time.Duration(n * float64(most))
}

func fault(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFault, fmt.Sprintf(format, args...))
}

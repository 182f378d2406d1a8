//go:build linux

package story

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/stores"
	"golang.org/x/sys/unix"
)

// An Event is what a worker tells of itself, as a line of JSON.
type Event struct {
	At   int64  `json:"at"` // life.Now
	What string `json:"what"`
	ID   int    `json:"id,omitempty"` // of the attempt
	Name string `json:"name,omitempty"`
	// Slots and Token are those of the lock; of a write the version is Token.
	Slots int   `json:"slots,omitempty"`
	Token int64 `json:"token,omitempty"`
	// Value is what was put into the register of a name, or read from it.
	Value int64 `json:"value,omitempty"`
	// Client tells the sessions of one process apart.
	Client int `json:"client,omitempty"`
	// Sent is when what was answered at At was sent.
	Sent int64 `json:"sent,omitempty"`
	// Until is the end of the window, by who tells of no heartbeats.
	Until  int64  `json:"until,omitempty"`
	Lazy   bool   `json:"lazy,omitempty"`
	Strict bool   `json:"strict,omitempty"` // the fence goes by tokens alone
	Text   string `json:"text,omitempty"`
}

// What a worker tells.
const (
	Ready     = "ready"
	Asks      = "asks"      // before Acquire
	Granted   = "granted"   // after it
	Refused   = "refused"   // or this
	Beats     = "beats"     // a heartbeat of session Name has won
	Trusts    = "trusts"    // or the library has said so: the window ends at Until
	Lost      = "lost"      // its context has just ended: it no longer holds
	Ends      = "ends"      // it believed until now, and releases
	Finds     = "finds"     // it asked, and heard that it no longer holds
	Released  = "released"  // what Release returned
	Commits   = "commits"   // before COMMIT of a fenced write; Text is its key
	Committed = "committed" // after it
	Puts      = "puts"      // before a fenced write of Value to the register of Name
	Put       = "put"       // after it: Text is taken, refused, unsent or ambiguous
	Reads     = "reads"     // what it has read of a register, asking at Sent
	Wrote     = "wrote"     // a write to the store has won; Name is its key
	Counted   = "counted"   // it has put Token into the counter of Name
	Closed    = "closed"    // what Close returned
)

// A work is the life of a worker.
type work struct {
	id      string
	ttl     time.Duration
	names   []string
	long    float64 // part of the holds that are longer than a TTL
	think   time.Duration
	writes  bool   // tells of all writes that won
	frozen  string // stops itself at that point, once
	broken  string // what is wrong with it, to see that it is noticed
	fences  bool
	counter string // directory of counters that the locks guard
	crowd   crowd
	number  int  // of the session
	native  bool // the library has the store itself, so nothing is seen of heartbeats
	rng     func() *rand.Rand
	store   *stores.Store
	client  *holdfast.Client
	stop    chan struct{} // closed when standard input has ended
	attempt atomic.Int64

	mu     sync.Mutex
	nonces map[string]int64 // when each heartbeat was sent
}

var out sync.Mutex // guards standard output

func (w *work) tell(e Event) {
	if e.At == 0 {
		e.At = life.Now()
	}
	e.Client = w.number
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// Work is the role of a process that asks for locks until its standard input
// ends, believes in them, and writes under their fences.
func Work(args []string) error {
	w := work{stop: make(chan struct{})}
	f := flag.NewFlagSet("worker", flag.ContinueOnError)
	target := f.String("store", "", "")
	seed := f.Uint64("seed", 0, "")
	names := f.String("names", "", "each name/kind: x exclusive, s shared now and then, 2 slots")
	lanes := f.Int("lanes", 2, "goroutines")
	clients := f.Int("clients", 1, "sessions")
	f.StringVar(&w.id, "id", "", "")
	f.DurationVar(&w.ttl, "ttl", 0, "")
	f.Float64Var(&w.long, "long", 0.02, "")
	f.DurationVar(&w.think, "think", 0, "at most, between two attempts")
	f.BoolVar(&w.writes, "writes", false, "")
	f.BoolVar(&w.fences, "fences", true, "")
	f.BoolVar(&w.native, "native", false, "")
	f.StringVar(&w.counter, "counter", "", "")
	f.StringVar(&w.frozen, "freeze", "", "")
	f.StringVar(&w.broken, "broken", "", "")
	w.crowd.flags(f)
	if err := f.Parse(args); err != nil {
		return err
	}
	w.names = strings.Split(*names, ",")
	var lane atomic.Uint64
	w.rng = func() *rand.Rand { return rand.New(rand.NewPCG(*seed, lane.Add(1))) }
	ctx := context.Background()
	var err error
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) { // there may be faults already
		if w.store, err = stores.Open(ctx, *target); err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	all := make([]*work, *clients)
	for i := range all {
		w := w.session(i)
		store, opts := w.store.Store, &holdfast.Options{TTL: w.ttl}
		if w.native {
			opts.Trace = &holdfast.Trace{Heartbeat: w.trusts}
		} else {
			store = stores.Behind(told{store, w}, store)
		}
		if w.client, err = holdfast.New(store, opts); err != nil {
			return err
		}
		all[i] = w
	}
	go func() { io.Copy(io.Discard, os.Stdin); close(w.stop) }()
	var wg sync.WaitGroup
	for _, w := range all {
		w.tell(Event{What: Ready})
		wg.Go(func() { w.live(ctx, *lanes) })
	}
	wg.Wait()
	return w.store.Close()
}

// session is one of the sessions of a process, which have the rest in common.
func (w *work) session(n int) *work {
	return &work{id: w.id, ttl: w.ttl, names: w.names, long: w.long, think: w.think, writes: w.writes, frozen: w.frozen,
		broken: w.broken, fences: w.fences, counter: w.counter, crowd: w.crowd, number: n, native: w.native, rng: w.rng,
		store: w.store, stop: w.stop, nonces: make(map[string]int64)}
}

// live is the life of a session.
func (w *work) live(ctx context.Context, lanes int) {
	var wg sync.WaitGroup
	for n := range lanes {
		rng := w.rng()
		wg.Go(func() {
			if w.crowd.steps > 0 {
				w.visit(ctx, rng, n, lanes)
				return
			}
			for !w.over() {
				w.once(ctx, rng)
				w.pause(time.Duration(rng.Int64N(int64(w.think) + 1)))
			}
		})
	}
	wg.Wait()
	err := w.client.Close()
	w.tell(Event{What: Closed, Text: fmt.Sprint(err)})
}

func (w *work) over() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

func (w *work) pause(d time.Duration) {
	if d > 0 {
		select {
		case <-time.After(d):
		case <-w.stop:
		}
	}
}

// once asks for a lock, holds it, and gives it back.
func (w *work) once(ctx context.Context, rng *rand.Rand) {
	name, kind, _ := strings.Cut(w.names[rng.IntN(len(w.names))], "/")
	id := int(w.attempt.Add(1))
	slots := 1
	var opts []holdfast.Option
	switch {
	case kind == "2":
		slots, opts = 2, []holdfast.Option{holdfast.Slots(2)}
	case kind == "s" && rng.IntN(3) > 0:
		slots, opts = 0, []holdfast.Option{holdfast.Shared()}
	}
	e := Event{ID: id, Name: name, Slots: slots}
	if w.fences && rng.IntN(4) == 0 {
		w.read(name)
	}
	w.tell(e.now(Asks))
	lock, err := w.client.Acquire(ctx, name, opts...)
	if err != nil {
		e.Text = err.Error()
		w.tell(e.now(Refused))
		w.pause(time.Duration(20+rng.IntN(80)) * time.Millisecond)
		return
	}
	e.Token = lock.Token()
	w.tell(w.ends(e.now(Granted), lock))
	heard := w.hear(lock, e)
	hold := time.Duration(1+rng.IntN(25)) * time.Millisecond
	switch p := rng.Float64(); {
	case w.broken == "believes":
		hold = 3 * w.ttl
	case p < w.long:
		hold = w.ttl + time.Duration(rng.Int64N(int64(w.ttl)*6/10))
	case p < 0.1:
		hold = time.Duration(100+rng.IntN(200)) * time.Millisecond
	}
	until := time.Now().Add(hold)
	if w.fences && rng.IntN(2) == 0 {
		w.put(lock, e, rng.IntN(2) == 0)
	}
	if w.counter != "" && slots == 1 {
		w.count(lock, e)
	}
	done := lock.Context().Done()
	if w.broken == "believes" {
		done = nil
	}
	select {
	case <-time.After(time.Until(until)):
	case <-w.stop:
	case <-done:
	}
	if w.fences && rng.IntN(4) == 0 {
		w.read(name)
		w.put(lock, e, rng.IntN(2) == 0)
	}
	heard(w.stopBelieving(lock, e))
	bound, cancel := context.WithTimeout(ctx, w.ttl)
	defer cancel()
	if err := lock.Release(bound); err != nil {
		e.Text = err.Error()
	}
	w.tell(e.now(Released))
	if w.fences && rng.IntN(4) == 0 {
		w.read(name)
	}
}

// now is the event, of this moment.
func (e Event) now(what string) Event {
	e.At, e.What = life.Now(), what
	return e
}

// ends adds the end of a lock's window where the heartbeats do not tell it.
func (w *work) ends(e Event, lock *holdfast.Lock) Event {
	if w.native {
		e.Until = life.Now() + int64(time.Until(lock.Deadline()))
	}
	return e
}

// trusts tells what the library says of a heartbeat.
func (w *work) trusts(_ context.Context, h holdfast.Event) {
	if h.Err == nil {
		e := Event{}.now(Trusts)
		e.Until = e.At + int64(time.Until(h.Until))
		w.tell(e)
	}
}

// hear has a worker tell of the loss of a lock when its context ends. stop ends that. A worker that
// has found the loss by asking may be ahead of the context, which then has a moment to say so.
func (w *work) hear(lock *holdfast.Lock, e Event) (stop func(found bool)) {
	lost := func() {
		if cause := context.Cause(lock.Context()); errors.Is(cause, holdfast.ErrLost) {
			e := e.now(Lost)
			e.Text = cause.Error()
			w.tell(e)
		}
	}
	unheard := context.AfterFunc(lock.Context(), lost)
	return func(found bool) {
		if !unheard() || !found {
			return
		}
		select {
		case <-lock.Context().Done():
			lost()
		case <-time.After(w.ttl):
		}
	}
}

// stopBelieving tells until when a worker believed, and reports whether it has found a loss.
func (w *work) stopBelieving(lock *holdfast.Lock, e Event) (found bool) {
	end := w.ends(e.now(Ends), lock)
	if err := lock.Err(); err != nil && w.broken != "believes" {
		e.Text = err.Error()
		w.tell(e.now(Finds))
		return true
	}
	w.tell(end)
	return false
}

// put writes to the register of a name. Only the fence stands between a stale
// holder and that. Where there are transactions it also adds a row to the
// application's table.
func (w *work) put(lock *holdfast.Lock, e Event, plain bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*w.ttl)
	defer cancel()
	e.Value, e.Strict = 1+rand.Int64N(1<<62), w.store.Registers.Strict(lock)
	w.tell(e.now(Puts))
	var verdict stores.Verdict
	if w.store.DB == nil {
		verdict, _ = w.store.Registers.Put(ctx, lock, e.Value)
	} else {
		verdict, _ = w.store.PutSQL(ctx, lock, e.Value, w.inTransaction(e, plain))
	}
	e.Text = verdict.String()
	w.tell(e.now(Put))
}

// inTransaction is what a worker does in the transaction of a fenced write.
func (w *work) inTransaction(e Event, plain bool) stores.Hook {
	e.Text = fmt.Sprintf("%s-%d-%d-%d", w.id, w.number, e.ID, life.Now())
	return stores.Hook{
		Begun: func(ctx context.Context, exec func(string, ...any) error) error {
			return exec(`insert into effects (id, name, token) values (?, ?, ?)`, e.Text, e.Name, e.Token)
		},
		Fence: func(fence func(plain bool) error) error {
			if w.broken != "no fence" {
				if err := fence(plain); err != nil {
					return err
				}
			}
			if w.frozen == "transaction" {
				w.frozen = ""
				freeze()
			}
			return nil
		},
		Committing: func() { w.tell(e.now(Commits)) },
		Committed: func(err error) {
			if err != nil {
				e.Text += " " + err.Error()
			}
			w.tell(e.now(Committed))
		},
	}
}

// read reads the register of a name.
func (w *work) read(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), w.ttl)
	defer cancel()
	e := Event{Name: name, Sent: life.Now()}
	var err error
	if e.Value, err = w.store.Registers.Get(ctx, name); err == nil {
		w.tell(e.now(Reads))
	}
}

// count increments a counter in a file that nothing but the lock guards.
func (w *work) count(lock *holdfast.Lock, e Event) {
	file, err := os.OpenFile(filepath.Join(w.counter, e.Name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	const form = "%020d\n"
	var n int64
	fmt.Fscanf(file, form, &n)
	time.Sleep(time.Millisecond)
	if lock.Err() != nil {
		return
	}
	if _, err := file.WriteAt(fmt.Appendf(nil, form, n+1), 0); err != nil {
		panic(err)
	}
	e.At, e.What, e.Token = life.Now(), Counted, n+1
	w.tell(e)
}

// freeze stops this process before it returns.
func freeze() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unix.Tgkill(os.Getpid(), unix.Gettid(), syscall.SIGSTOP)
}

// told is the store, whose writes are told of before the library knows of them.
type told struct {
	driver.Store
	w *work
}

func (s told) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	return s.w.swap(ctx, s.Store, writes)
}

func (w *work) swap(ctx context.Context, s driver.Store, writes []driver.Write) ([]driver.Outcome, error) {
	sent := life.Now()
	for _, wr := range writes {
		if wr.Key.Space == driver.Sessions && len(wr.Value) > 0 {
			// Not the marks and tombstones of others.
			if rec, err := check.ReadSession(string(wr.Value)); err == nil && rec.Suspected == nil && rec.Revoked == nil && rec.Dead == 0 {
				w.mu.Lock()
				w.nonces[rec.Nonce] = sent
				w.mu.Unlock()
			}
		}
	}
	outs, err := s.CompareAndSwap(ctx, writes)
	if err != nil {
		return outs, err
	}
	at := life.Now()
	for i, wr := range writes {
		if w.writes && outs[i].Won {
			w.tell(Event{At: at, What: Wrote, Name: fmt.Sprintf("%d %s", wr.Key.Space, wr.Key.Name),
				Token: outs[i].Record.Version, Sent: sent, Lazy: wr.Lazy, Text: string(wr.Value)})
		}
		if wr.Key.Space != driver.Sessions {
			continue
		}
		value := wr.Value
		if !outs[i].Won {
			value = outs[i].Record.Value // perhaps an earlier attempt of ours
		}
		rec, err := check.ReadSession(string(value))
		if err != nil || rec.Dead != 0 || len(value) == 0 {
			continue
		}
		w.mu.Lock()
		began, mine := w.nonces[rec.Nonce]
		w.mu.Unlock()
		if mine {
			w.tell(Event{At: at, What: Beats, Name: wr.Key.Name, Sent: began})
		}
	}
	return outs, nil
}

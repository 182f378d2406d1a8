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
	// Sent is when what was answered at At was sent.
	Sent int64  `json:"sent,omitempty"`
	Lazy bool   `json:"lazy,omitempty"`
	Text string `json:"text,omitempty"`
}

// What a worker tells.
const (
	Ready     = "ready"
	Asks      = "asks"      // before Acquire
	Granted   = "granted"   // after it
	Refused   = "refused"   // or this
	Beats     = "beats"     // a heartbeat of session Name has won
	Lost      = "lost"      // its context has just ended: it no longer holds
	Ends      = "ends"      // it believed until now, and releases
	Finds     = "finds"     // it asked, and heard that it no longer holds
	Released  = "released"  // what Release returned
	Commits   = "commits"   // before COMMIT of a fenced write; Text is its key
	Committed = "committed" // after it
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
	rng     func() *rand.Rand
	store   *stores.Store
	client  *holdfast.Client
	stop    chan struct{} // closed when standard input has ended
	attempt atomic.Int64

	mu     sync.Mutex
	nonces map[string]int64 // when each heartbeat was sent
}

func (w *work) tell(e Event) {
	if e.At == 0 {
		e.At = life.Now()
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// Work is the role of a process that asks for locks until its standard input
// ends, believes in them, and writes under their fences.
func Work(args []string) error {
	w := &work{stop: make(chan struct{}), nonces: make(map[string]int64)}
	f := flag.NewFlagSet("worker", flag.ContinueOnError)
	target := f.String("store", "", "")
	seed := f.Uint64("seed", 0, "")
	names := f.String("names", "", "each name/kind: x exclusive, s shared now and then, 2 slots")
	lanes := f.Int("lanes", 2, "goroutines")
	f.StringVar(&w.id, "id", "", "")
	f.DurationVar(&w.ttl, "ttl", 0, "")
	f.Float64Var(&w.long, "long", 0.02, "")
	f.DurationVar(&w.think, "think", 0, "at most, between two attempts")
	f.BoolVar(&w.writes, "writes", false, "")
	f.BoolVar(&w.fences, "fences", true, "")
	f.StringVar(&w.counter, "counter", "", "")
	f.StringVar(&w.frozen, "freeze", "", "")
	f.StringVar(&w.broken, "broken", "", "")
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
	if w.client, err = holdfast.New(stores.Behind(told{w.store.Store, w}, w.store.Store), &holdfast.Options{TTL: w.ttl}); err != nil {
		return err
	}
	go func() { io.Copy(io.Discard, os.Stdin); close(w.stop) }()
	w.tell(Event{What: Ready})
	var wg sync.WaitGroup
	for range *lanes {
		rng := w.rng()
		wg.Go(func() {
			for !w.over() {
				w.once(ctx, rng)
				w.pause(time.Duration(rng.Int64N(int64(w.think) + 1)))
			}
		})
	}
	wg.Wait()
	err = w.client.Close()
	w.tell(Event{What: Closed, Text: fmt.Sprint(err)})
	return w.store.Close()
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
	say := func(what string) Event { e.At, e.What = life.Now(), what; return e }
	w.tell(say(Asks))
	lock, err := w.client.Acquire(ctx, name, opts...)
	if err != nil {
		e.Text = err.Error()
		w.tell(say(Refused))
		w.pause(time.Duration(20+rng.IntN(80)) * time.Millisecond)
		return
	}
	e.Token = lock.Token()
	w.tell(say(Granted))

	heard := context.AfterFunc(lock.Context(), func() {
		if cause := context.Cause(lock.Context()); errors.Is(cause, holdfast.ErrLost) {
			e := e
			e.At, e.What, e.Text = life.Now(), Lost, cause.Error()
			w.tell(e)
		}
	})
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
		w.fenced(lock, e, rng.IntN(2) == 0)
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
		w.fenced(lock, e, rng.IntN(2) == 0)
	}
	end := say(Ends)
	if err := lock.Err(); err != nil && w.broken != "believes" {
		e.Text = err.Error()
		w.tell(say(Finds))
	} else {
		w.tell(end)
	}
	heard()
	bound, cancel := context.WithTimeout(ctx, w.ttl)
	defer cancel()
	if err := lock.Release(bound); err != nil {
		e.Text = err.Error()
	}
	w.tell(say(Released))
}

// fenced writes to the application's table in a transaction that depends on the
// lock. Only the fence stands between a stale holder and the table.
func (w *work) fenced(lock *holdfast.Lock, e Event, plain bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*w.ttl)
	defer cancel()
	e.Text = fmt.Sprintf("%s-%d-%d", w.id, e.ID, life.Now())
	tx, err := w.store.DB.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, w.store.SQL(`insert into effects (id, name, token) values (?, ?, ?)`), e.Text, e.Name, e.Token); err != nil {
		return
	}
	if w.broken != "no fence" {
		if err := w.store.Fence(ctx, tx, lock, plain); err != nil {
			return
		}
	}
	if w.frozen == "transaction" {
		w.frozen = ""
		freeze()
	}
	e.At, e.What = life.Now(), Commits
	w.tell(e)
	if err := tx.Commit(); err != nil {
		e.Text += " " + err.Error()
	}
	e.At, e.What = life.Now(), Committed
	w.tell(e)
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
	holdfast.Store
	w *work
}

func (s told) CompareAndSwap(ctx context.Context, writes []holdfast.Write) ([]holdfast.Outcome, error) {
	return s.w.swap(ctx, s.Store, writes)
}

func (w *work) swap(ctx context.Context, s holdfast.Store, writes []holdfast.Write) ([]holdfast.Outcome, error) {
	sent := life.Now()
	for _, wr := range writes {
		if wr.Key.Space == holdfast.Sessions && len(wr.Value) > 0 {
			// Not the marks and burials of others.
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
		if wr.Key.Space != holdfast.Sessions {
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

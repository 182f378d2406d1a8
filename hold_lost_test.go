package holdfast_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
)

// An owner of holds asks two clients by turns, the next one whenever a request is not answered.
type owner struct {
	t       *testing.T
	clients []*holdfast.Client
	turn    int
}

// insist asks until it is answered.
func (o *owner) insist(what string, ask func(c *holdfast.Client) error) {
	o.t.Helper()
	for try := 0; ; try++ {
		err := ask(o.clients[o.turn%len(o.clients)])
		switch {
		case err == nil:
			return
		case errors.Is(err, holdfast.ErrLost), errors.Is(err, holdfast.ErrHeld), errors.Is(err, holdfast.ErrOtherHold), try > 100:
			o.t.Fatalf("%s: %v", what, err)
		}
		o.turn++
	}
}

func (o *owner) enter(r holdfast.HoldRequest) (h holdfast.Hold) {
	o.t.Helper()
	o.insist("enter "+r.ID[31:], func(c *holdfast.Client) (err error) {
		h, err = c.Enter(o.t.Context(), r)
		return err
	})
	return h
}

func (o *owner) beat(ids ...string) (holds []holdfast.Hold) {
	o.t.Helper()
	o.insist("beat", func(c *holdfast.Client) error {
		results, err := c.Beat(o.t.Context(), "", ids...)
		holds = nil
		for _, r := range results {
			holds = append(holds, r.Hold)
			err = errors.Join(err, r.Err)
		}
		return err
	})
	return holds
}

func (o *owner) leave(id string) {
	o.t.Helper()
	o.insist("leave "+id[31:], func(c *holdfast.Client) error { return c.Leave(o.t.Context(), "", id) })
}

// hold has a hold of two names entered, a second one wait for one of them and get it, both renewed,
// and both left. Whatever is lost on the way: each has one claim of each name, under one token, they
// never hold at one time, and nothing is left of them.
func (o *owner) hold(look *holdfast.Client, settle func()) {
	t := o.t
	t.Helper()
	first := holdfast.HoldRequest{ID: strings.Repeat("0", 31) + "1", Names: []string{"a", "b"}}
	second := holdfast.HoldRequest{ID: strings.Repeat("0", 31) + "2", Names: []string{"a"}, Wait: true}
	stands := func(what, name string, holders, waiters int) {
		t.Helper()
		info, err := look.Show(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		living := func(list []holdfast.Claim) (n int) {
			for _, c := range list {
				if !c.Dead {
					n++
				}
			}
			return n
		}
		if got, waits := living(info.Holders), living(info.Waiters); got != holders || waits != waiters {
			t.Fatalf("%s: %q has %d holders and %d waiters, want %d and %d: %+v", what, name, got, waits, holders, waiters, info)
		}
	}
	one := o.enter(first)
	if !one.Held || len(one.Claims) != 2 {
		t.Fatalf("the first is %+v", one)
	}
	stands("entered", "b", 1, 0)
	if again := o.enter(first); !again.Held || again.Claims[0].Token != one.Claims[0].Token || again.Claims[1].Token != one.Claims[1].Token {
		t.Fatalf("entered again it is %+v, and was %+v", again, one)
	}
	if two := o.enter(second); two.Held || two.Position != 1 {
		t.Fatalf("the second is %+v", two)
	}
	stands("both entered", "a", 1, 1)
	if both := o.beat(first.ID, second.ID); !both[0].Held || both[0].Claims[0].Token != one.Claims[0].Token || both[1].Held || both[1].Position != 1 {
		t.Fatalf("renewed they are %+v", both)
	}
	o.leave(first.ID)
	o.leave(first.ID)
	stands("the first has left", "a", 1, 0)
	stands("the first has left", "b", 0, 0)
	two := o.enter(second)
	if !two.Held || two.Claims[0].Token <= one.Claims[0].Token {
		t.Fatalf("the second is %+v, after %+v", two, one)
	}
	if again := o.beat(second.ID)[0]; !again.Held || again.Claims[0].Token != two.Claims[0].Token {
		t.Fatalf("renewed the second is %+v, and was %+v", again, two)
	}
	for _, c := range o.clients { // what comes late finds the tombstone
		_, err := c.Enter(t.Context(), first)
		var over *holdfast.OverError
		if errors.As(err, &over) && over.Why != holdfast.HoldReleased || err == nil {
			t.Fatalf("entered after it has left: %v", err)
		}
	}
	stands("the second holds", "a", 1, 0)
	o.leave(second.ID)
	settle()
	for _, name := range []string{"a", "b"} {
		stands("both have left", name, 0, 0)
		l, err := look.TryAcquire(t.Context(), name)
		if err != nil {
			t.Fatalf("%q is not free: %v", name, err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// holdsOver has an owner's holds served by two clients over a store that bends; bent is the store of the
// first.
func holdsOver(t *testing.T, seed uint64, f faultstore.Faults, bend func(bent *faultstore.Process)) (calls int) {
	store := memory.New()
	bus := faultstore.NewBus(store, seed, f)
	defer bus.Close()
	look := newClient(t, store, nil)
	defer look.Close()
	o := &owner{t: t}
	var first *faultstore.Process
	for i := range 2 {
		p := bus.Process(fmt.Sprint(i))
		if i == 0 {
			first = p
			bend(p)
		}
		c := newClient(t, driver.Store(p), nil)
		defer c.Close()
		o.clients = append(o.clients, c)
	}
	o.hold(look, bus.Settle)
	return len(first.Calls())
}

// Of all calls that serve holds each is lost in turn, or its answer, and that of two in a row.
func TestHoldsWhoseAnswersAreLost(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		calls = holdsOver(t, 1, faultstore.Faults{}, func(*faultstore.Process) {})
	})
	if calls < 8 {
		t.Fatalf("holds are served by %d calls", calls)
	}
	for n := 1; n <= calls; n++ {
		for _, points := range [][]faultstore.Point{
			{faultstore.BeforeApply}, {faultstore.AfterApply}, {faultstore.AfterApply, faultstore.AfterApply},
			{faultstore.AfterApply, faultstore.BeforeApply}, {faultstore.BeforeApply, faultstore.AfterApply},
		} {
			t.Run(fmt.Sprint(n, points), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					holdsOver(t, 1, faultstore.Faults{}, func(p *faultstore.Process) {
						for i, point := range points {
							p.FailAt(n+i, point)
						}
					})
				})
			})
		}
	}
}

// Many calls are lost, answered in vain, applied late and twice, and in parts.
func TestHoldsOnABadNetwork(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				holdsOver(t, uint64(seed), faultstore.Faults{
					Delay: 20 * time.Millisecond, SlowReply: 20 * time.Millisecond,
					Lose: .05, LoseReply: .15, Late: .1, LateBy: 3 * time.Second, Double: .5,
					Split: .2, Partial: .1, Singly: .5, Busy: .1,
				}, func(*faultstore.Process) {})
			})
		})
	}
}

// A torn store makes, of the first write of a hold, only what is in the names. Then it makes
// nothing until it is mended.
type torn struct {
	driver.Store
	mended atomic.Bool
	once   sync.Once
}

func (s *torn) CompareAndSwap(ctx context.Context, writes []driver.Write) (outs []driver.Outcome, err error) {
	if s.mended.Load() {
		return s.Store.CompareAndSwap(ctx, writes)
	}
	rest := slices.DeleteFunc(slices.Clone(writes), func(w driver.Write) bool { return w.Key.Space == driver.Sessions })
	if len(rest) > 0 {
		s.once.Do(func() { _, err = s.Store.CompareAndSwap(ctx, rest) })
	}
	return nil, cmp.Or(err, errors.New("made in part, or not"))
}

// A hold whose session was looked for before it could be seen is over: its owner enters anew, at
// the end of the queue. It is not told that its id is that of somebody else's program.
func TestHoldThatIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		half := &torn{Store: store}
		front, other := newClient(t, half, nil), newClient(t, store, nil)
		defer front.Close()
		defer other.Close()
		r := holdfast.HoldRequest{ID: strings.Repeat("0", 31) + "1", Names: []string{"a"}, Wait: true, TTL: 10 * time.Second}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if h, err := front.Enter(ctx, r); err == nil {
			t.Fatalf("entered, as %+v", h)
		}
		got := make(chan error, 1)
		go func() {
			l, err := other.Acquire(t.Context(), "a")
			if err == nil {
				err = l.Release(t.Context())
			}
			got <- err
		}()
		for {
			recs, err := store.Load(t.Context(), []driver.Key{driver.Sessions.Key(r.ID)}, driver.Fresh)
			if err != nil {
				t.Fatal(err)
			}
			if len(recs[0].Value) > 0 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		half.mended.Store(true)
		_, err := front.Enter(t.Context(), r)
		var over *holdfast.OverError
		if !errors.As(err, &over) || over.Why != holdfast.HoldDied || !strings.Contains(over.Reason, "declared missing by ") {
			t.Errorf("entered again: %v", err)
		}
		if err := front.Leave(t.Context(), "", r.ID); err != nil && !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("left: %v", err)
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
		r.ID = strings.Repeat("0", 31) + "2"
		if h, err := front.Enter(t.Context(), r); err != nil || !h.Held {
			t.Errorf("entered anew: %+v, %v", h, err)
		}
	})
}

// A lossyReply keeps back the answer of one call, the next that has changed a lock record.
type lossyReply struct {
	driver.Store
	armed atomic.Bool
}

func (s *lossyReply) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	outs, err := s.Store.CompareAndSwap(ctx, writes)
	at := slices.IndexFunc(writes, func(w driver.Write) bool { return w.Key == lockA && w.Old > 0 })
	if at >= 0 && err == nil && outs[at].Won && s.armed.CompareAndSwap(true, false) {
		return nil, errFails
	}
	return outs, err
}

// What a call for a hold has removed is in the history of the name, once, also where its answer was
// lost: the lock of a dead one before it, and its own.
func TestHoldHistoryAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &lossyReply{Store: memory.New()}
		cut := &wire.Cut{Store: s.Store}
		dead := newClient(t, cut, program("dead", 6*time.Second))
		front := newClient(t, s, program("front", 6*time.Second))
		defer front.Close()
		acquire(t, dead, "a")
		cut.Off.Store(true)
		s.armed.Store(true)
		r := holdfast.HoldRequest{ID: strings.Repeat("0", 31) + "1", Names: []string{"a"}}
		for held := false; !held; time.Sleep(time.Second) {
			h, err := front.Enter(t.Context(), r)
			if held = h.Held; err != nil && !errors.Is(err, holdfast.ErrHeld) {
				t.Fatal(err)
			}
		}
		if s.armed.Swap(true) {
			t.Fatal("no answer of the entrance was lost")
		}
		time.Sleep(2 * time.Second)
		if err := front.Leave(t.Context(), "", r.ID); err != nil || s.armed.Load() {
			t.Fatalf("left: %v", err)
		}
		time.Sleep(6 * time.Second)
		want := regexp.MustCompile(`^ released [2-4]s/0s; dead taken over \d+s/0s by front: silent for .* \+0$`)
		if got := pastOf(t, front, "a"); !want.MatchString(got) {
			t.Errorf("what has ended: %q", got)
		}
		dead.Close()
	})
}

// A request for a hold arrives twice, at two clients. The first to write the claim is not the one
// that made the hold, and the hold is broken before it knows: it leaves the claim alone, since the
// other client has told the owner that it holds.
func TestHoldBrokenWhileEnteredTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		first, second := wire.New(store), wire.New(store)
		made, claimed, broken := make(chan bool), make(chan bool), make(chan bool)
		first.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			if len(writes) != 2 {
				return send()
			}
			outs, err := store.CompareAndSwap(t.Context(), writes[:1])
			close(made)
			<-claimed
			more, err2 := store.CompareAndSwap(t.Context(), writes[1:])
			return append(outs, more...), errors.Join(err, err2)
		})
		calls := 0
		second.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			switch calls++; calls {
			case 1:
				<-made
			case 2:
				close(claimed)
				<-broken
			}
			return send()
		})
		a, b, other := newClient(t, first, nil), newClient(t, second, nil), newClient(t, store, nil)
		defer a.Close()
		defer b.Close()
		defer other.Close()

		r := holdfast.HoldRequest{ID: strings.Repeat("0", 31) + "1", Names: []string{"a"}, TTL: 10 * time.Second}
		refused := make(chan error)
		go func() {
			_, err := b.Enter(t.Context(), r)
			refused <- err
		}()
		h, err := a.Enter(t.Context(), r)
		if err != nil || !h.Held {
			t.Fatalf("%+v, %v", h, err)
		}
		first.SetMeet(nil)
		done := make(chan error)
		go func() { done <- other.Break(t.Context(), "a", h.Claims[0].Token, "stuck") }()
		synctest.Wait()
		close(broken)
		var over *holdfast.OverError
		if err := <-refused; !errors.As(err, &over) || over.Why != holdfast.HoldBroken {
			t.Errorf("entered at the other client: %v", err)
		}
		if _, err := other.TryAcquire(t.Context(), "a"); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("while the owner of the broken hold may still work: %v", err)
		}
		if err := a.Leave(t.Context(), "", r.ID); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if l, err := other.TryAcquire(t.Context(), "a"); err != nil {
			t.Errorf("when it has left: %v", err)
		} else {
			l.Release(t.Context())
		}
	})
}

// A hold that waits is left by way of one client while it is followed by way of another, which puts
// its claim in line once more before it knows: nothing is left of it.
func TestHoldLeftWhileFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b, other := newClient(t, store, nil), newClient(t, store, nil), newClient(t, store, nil)
		defer a.Close()
		defer b.Close()
		defer other.Close()
		l, err := other.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		r := holdfast.HoldRequest{ID: strings.Repeat("0", 31) + "1", Names: []string{"a"}, TTL: 10 * time.Second, Wait: true}
		if h, err := a.Enter(t.Context(), r); err != nil || h.Position != 1 {
			t.Fatalf("%+v, %v", h, err)
		}
		over := make(chan error)
		go func() {
			for _, err := range a.Follow(t.Context(), "", r.ID) {
				if err != nil {
					over <- err
				}
			}
		}()
		synctest.Wait()
		if err := b.Leave(t.Context(), "", r.ID); err != nil {
			t.Fatal(err)
		}
		if err := <-over; !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}
		info, err := other.Show(t.Context(), "a")
		if err != nil || len(info.Waiters) > 0 {
			t.Errorf("%+v, %v", info.Waiters, err)
		}
		l.Release(t.Context())
	})
}

// A request for a set arrives twice. One call is refused by what it has read, when the other has
// collected the set: it reads the names again, and also says that the hold has its locks.
func TestHoldWholeWhileEnteredTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		late := wire.New(store)
		refused, whole := make(chan bool), make(chan bool)
		a, b, other := newClient(t, late, nil), newClient(t, store, nil), newClient(t, store, nil)
		defer a.Close()
		defer b.Close()
		defer other.Close()
		var l *holdfast.Lock
		calls := 0
		late.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			switch calls++; calls {
			case 1:
				var err error
				if l, err = other.Acquire(t.Context(), "b"); err != nil {
					t.Error(err)
				}
			case 2:
				close(refused)
				<-whole
			}
			return send()
		})
		r := holdfast.HoldRequest{ID: strings.Repeat("0", 31) + "1", Names: []string{"a", "b"}, TTL: 10 * time.Second}
		type answer struct {
			holdfast.Hold
			err error
		}
		answers := make(chan answer)
		go func() {
			h, err := a.Enter(t.Context(), r)
			answers <- answer{h, err}
		}()
		<-refused
		l.Release(t.Context())
		h, err := b.Enter(t.Context(), r)
		if err != nil || !h.Held {
			t.Fatalf("%+v, %v", h, err)
		}
		close(whole)
		if again := <-answers; again.err != nil || !again.Held || !slices.EqualFunc(h.Claims, again.Claims, func(x, y holdfast.Claim) bool { return x.Token == y.Token }) {
			t.Errorf("the call that came first: %+v", again)
		}
		if beat, err := b.Beat(t.Context(), "", r.ID); err != nil || beat[0].Err != nil || !beat[0].Hold.Held {
			t.Errorf("renewed: %+v, %v", beat, err)
		}
	})
}

// A hold is asked for under the id of a session that everybody sees in a list: that of a running
// program is refused, and the claims of another hold are left alone.
func TestHoldUnderTheIDOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		program, other := newClient(t, store, nil), newClient(t, store, nil)
		defer program.Close()
		defer other.Close()
		l, err := program.Acquire(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release(t.Context())
		info, err := other.Show(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		writes := 0
		watched := wire.New(store)
		watched.SetMeet(func(w []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			writes += len(w)
			return send()
		})
		late := newClient(t, watched, nil)
		defer late.Close()
		bad := holdfast.HoldRequest{ID: info.Holders[0].Owner.Session, Names: []string{"a"}, TTL: 10 * time.Second, Client: "eve"}
		if _, err := late.Enter(t.Context(), bad); !errors.Is(err, holdfast.ErrOtherHold) || writes > 0 {
			t.Errorf("as the program's: %v, and %d writes", err, writes)
		}

		// A hold that waits for the first of its names: the second is free.
		good := holdfast.HoldRequest{ID: strings.Repeat("0", 31) + "1", Names: []string{"x", "y"}, TTL: 10 * time.Second, Wait: true, Client: "ana"}
		if h, err := other.Enter(t.Context(), good); err != nil || h.Position != 1 {
			t.Fatalf("%+v, %v", h, err)
		}
		bad = holdfast.HoldRequest{ID: good.ID, Names: good.Names, Shared: true, TTL: 10 * time.Second, Client: "eve"}
		if _, err := late.Enter(t.Context(), bad); !errors.Is(err, holdfast.ErrOtherHold) || writes > 0 {
			t.Errorf("as the set: %v, and %d writes", err, writes)
		}
		bad.Names = []string{"y"}
		if _, err := late.Enter(t.Context(), bad); !errors.Is(err, holdfast.ErrOtherHold) {
			t.Errorf("as one of its names: %v", err)
		}
		if info, err := other.Show(t.Context(), "y"); err != nil || len(info.Holders) > 0 {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

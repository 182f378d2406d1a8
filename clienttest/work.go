package clienttest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
)

var errWork = errors.New("the work failed")

// workCases are about Do.
var workCases = []clientCase{
	{
		name: "do",
		rule: "Do runs fn under the lock, releases it after fn has returned, and returns fn's error",
		run: func(h *clients) {
			c := h.client(longTTL)
			var work context.Context
			err := c.Do(h.ctx, "a", func(ctx context.Context, l *holdfast.Lock) error {
				work = ctx
				if i := h.show("a"); len(i.Holders) != 1 || i.Holders[0].Token != l.Token() || l.Err() != nil {
					h.Errorf("inside fn: %+v, %v", i, l.Err())
				}
				return errWork
			})
			if err != errWork {
				h.Errorf("Do returned %v, want fn's error", err)
			}
			if work.Err() == nil {
				h.Error("fn's context goes on after Do")
			}
			h.empty("a")
			if err := c.Do(h.ctx, "a", func(context.Context, *holdfast.Lock) error { return nil }); err != nil {
				h.Error(err)
			}
			l := h.acquire(h.client(longTTL), "a")
			err = c.Do(h.ctx, "a", func(context.Context, *holdfast.Lock) error { h.Error("fn ran"); return nil }, holdfast.MaxWait(0))
			h.is("Do of a name that is held", err, holdfast.ErrHeld)
			h.release(l)

			func() {
				defer func() { recover() }()
				c.Do(h.ctx, "a", func(context.Context, *holdfast.Lock) error { panic("test") })
			}()
			h.empty("a")
		},
	},
	{
		name: "do ends with ctx",
		rule: "fn's context ends with ctx and its cause; the lock is kept until fn has returned",
		run: func(h *clients) {
			c := h.client(longTTL)
			ctx, cancel := context.WithCancelCause(h.ctx)
			returned := make(chan error, 1)
			started, end := make(chan bool), make(chan bool)
			var cause error
			go func() {
				returned <- c.Do(ctx, "a", func(ctx context.Context, l *holdfast.Lock) error {
					close(started)
					<-ctx.Done()
					cause = context.Cause(ctx)
					<-end
					return l.Err()
				})
			}()
			<-started
			queued := h.queue(1, h.client(longTTL), "a")
			cancel(errWork)
			time.Sleep(50 * time.Millisecond)
			if len(queued) > 0 {
				h.Error("the lock was given on before fn had returned")
			}
			close(end)
			if err := <-returned; err != nil {
				h.Errorf("Do returned %v", err)
			}
			h.is("the cause", cause, errWork)
			h.release(h.granted(queued, h.soon))
		},
	},
	{
		name: "do and loss",
		rule: "fn's context ends with the loss as its cause, and Do's error is fn's joined with ErrLost (P2)",
		run: func(h *clients) {
			for _, own := range []error{nil, errWork} {
				c := h.client(midTTL)
				returned := make(chan error, 1)
				var cause error
				go func() {
					returned <- c.Do(h.ctx, "a", func(ctx context.Context, l *holdfast.Lock) error {
						<-ctx.Done()
						cause = context.Cause(ctx)
						return own
					})
				}()
				h.eventually(h.soon, "it is held", func() bool { return len(h.show("a").Holders) == 1 })
				if err := h.look().Break(h.ctx, "a", h.show("a").Holders[0].Token, "ticket 815"); err != nil {
					h.Fatal(err)
				}
				err := <-returned
				h.is("Do", err, holdfast.ErrLost)
				if own != nil {
					h.is("Do", err, own)
				}
				h.is("the cause", cause, holdfast.ErrLost)
				h.free("a")
			}
		},
	},
}

// electionCases are about Election.
var electionCases = []clientCase{
	{
		name: "election",
		rule: "of the candidates one leads; who resigns is followed by the next; each change is observed once",
		run: func(h *clients) {
			ctx, cancel := context.WithCancelCause(h.ctx)
			defer cancel(nil)
			var elections []*holdfast.Election
			var wg sync.WaitGroup
			led := make(chan *holdfast.Election, 100)
			for range 3 {
				elections = append(elections, h.client(longTTL).Election("seat"))
			}
			for i, e := range elections {
				wg.Go(func() {
					err := e.Run(ctx, func(ctx context.Context, l *holdfast.Lock) error {
						for _, other := range elections {
							if _, ok := other.HasLock(); ok != (other == e) {
								h.Errorf("HasLock of the leader: %v, of another: %v", other == e, ok)
							}
						}
						led <- e
						<-ctx.Done()
						return nil
					})
					h.is("Run", err, errWork)
				})
				h.eventually(h.soon, "it stands", func() bool {
					in := h.show("seat")
					return len(in.Holders)+len(in.Waiters) == i+1
				})
			}
			var mu sync.Mutex
			var observed []holdfast.Claim
			seen := func() []holdfast.Claim { mu.Lock(); defer mu.Unlock(); return slices.Clone(observed) }
			watching, enough := context.WithCancel(h.ctx)
			wg.Go(func() {
				for cl, err := range h.look().Election("seat").Observe(watching) {
					if err != nil {
						h.Error(err)
					}
					mu.Lock()
					observed = append(observed, cl)
					mu.Unlock()
				}
			})
			var terms []int64
			for i := range 4 {
				leader := <-led
				if leader != elections[i%3] {
					h.Errorf("term %d: the candidates do not lead in the order in which they stood", i)
				}
				l, ok := leader.HasLock()
				cl, err := elections[(i+1)%3].Leader(h.ctx)
				if !ok || err != nil || cl.Token != l.Token() || cl.Owner.Session == "" {
					h.Fatalf("the leader has its lock: %v; another sees %+v, error %v", ok, cl, err)
				}
				terms = append(terms, l.Token())
				h.eventually(3*time.Second+h.soon, "the leader is observed", func() bool {
					o := seen()
					return len(o) > 0 && o[len(o)-1].Token == l.Token()
				})
				if i < 3 {
					h.waiting("seat", 2)
					if i == 1 { // the queue changes, and the leader does not
						_, err := h.client(longTTL).Acquire(h.ctx, "seat", holdfast.MaxWait(1500*time.Millisecond))
						h.is("one more candidate", err, holdfast.ErrHeld)
					}
					if err := leader.Resign(h.ctx); err != nil {
						h.Fatal(err)
					}
				}
			}
			if !slices.IsSorted(terms) {
				h.Errorf("terms are %d", terms)
			}
			cancel(errWork)
			h.eventually(3*time.Second+h.soon, "the empty seat is observed", func() bool { o := seen(); return o[len(o)-1].Token == 0 })
			enough()
			wg.Wait()
			var last int64 = -1
			for _, cl := range seen() {
				if cl.Token == last {
					h.Errorf("term %d was observed twice", last)
				}
				last = cl.Token
			}
			if cl, err := elections[0].Leader(h.ctx); err != nil || cl.Token != 0 {
				h.Errorf("the leader of an empty seat is %+v, error %v", cl, err)
			}
			h.free("seat")
		},
	},
	{
		name: "election and loss",
		rule: "who loses the seat stands again; Run returns what lead returned while it led",
		run: func(h *clients) {
			e := h.client(midTTL).Election("seat")
			led := make(chan *holdfast.Lock)
			finish := make(chan bool)
			returned := make(chan error, 1)
			go func() {
				returned <- e.Run(h.ctx, func(ctx context.Context, l *holdfast.Lock) error {
					led <- l
					select {
					case <-ctx.Done():
					case <-finish:
					}
					return errWork
				})
			}()
			first := <-led
			if err := h.look().Break(h.ctx, "seat", h.show("seat").Holders[0].Token, "test"); err != nil {
				h.Fatal(err)
			}
			h.is("the first term", first.Err(), holdfast.ErrLost)
			second := <-led
			if second.Token() <= first.Token() || second.Err() != nil {
				h.Errorf("term %d after %d, %v", second.Token(), first.Token(), second.Err())
			}
			close(finish)
			h.is("Run", <-returned, errWork)
			if _, ok := e.HasLock(); ok {
				h.Error("it has the lock after Run")
			}
			h.free("seat")
			if err := e.Resign(h.ctx); err != nil {
				h.Errorf("Resign of who does not lead: %v", err)
			}
		},
	},
	{
		name: "election of the silent",
		rule: "a leader that is cut off has ended its term before another leads, and stands again when it is back (P1, P2)",
		run: func(h *clients) {
			ctx, cancel := context.WithCancel(h.ctx)
			defer cancel()
			var wg sync.WaitGroup
			defer wg.Wait()
			run := func(c *holdfast.Client) *holdfast.Election {
				e := c.Election("seat")
				wg.Go(func() {
					for ctx.Err() == nil { // it ends if the store is silent for too long, but not because of a loss
						if err := e.Run(ctx, nil); errors.Is(err, holdfast.ErrLost) {
							h.Errorf("the election ended with the term: %v", err)
						}
					}
				})
				return e
			}
			c, p := h.process(&holdfast.Options{TTL: shortTTL})
			first := run(c)
			h.eventually(h.soon, "the first leads", func() bool { _, ok := first.HasLock(); return ok })
			second := run(h.client(longTTL))
			h.waiting("seat", 1)
			p.Partition(true)
			h.eventually(shortTTL+h.soon, "the second leads", func() bool {
				_, ok := second.HasLock()
				if _, both := first.HasLock(); ok && both {
					h.Fatal("two leaders")
				}
				return ok
			})
			p.Partition(false)
			h.eventually(shortTTL+h.soon, "the first stands again", func() bool { return len(h.show("seat").Waiters) == 1 })
			cancel()
		},
	},
}

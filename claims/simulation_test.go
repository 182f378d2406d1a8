package claims

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	firstSeed = flag.Int("first", 1, "the first seed of the simulation")
	seeds     = flag.Int("seeds", 300, "how many seeds")
)

// A world is a table, processes that lock one row in it, and what goes wrong.
type world struct {
	t    *testing.T
	seed int
	x    *table
	opts Options
	skew time.Duration // of clocks, in truth
	ends time.Time

	all sync.WaitGroup

	mu       sync.Mutex
	rand     *rand.Rand
	cut      map[string]bool
	believes map[string]func() bool // by who took the lock
	overlap  string
	grants   int
	steals   int // of locks whose holder had been lost
}

func (w *world) chance(percent int) bool { return w.upTo(100) < time.Duration(percent) }

// upTo is a random span below d.
func (w *world) upTo(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rand.Int64N(int64(d)))
}

// off is how far a clock is off, often as far as may be.
func (w *world) off() time.Duration {
	switch w.upTo(4) {
	case 0:
		return 0
	case 1:
		return w.skew
	}
	return w.upTo(w.skew + 1)
}

// fate: mostly quick, sometimes too slow, sometimes an error of something that
// has happened, will happen, or never does.
func (w *world) fate(call, who string) fate {
	f := fate{takes: w.upTo(15 * ms), reply: w.upTo(15 * ms)}
	switch {
	case w.chance(6):
		f.takes += w.upTo(120 * ms)
	case w.chance(10): // just in time
		f.takes, f.reply = 99*ms+w.upTo(ms), 0
	}
	if w.chance(6) {
		f.reply += w.upTo(120 * ms)
	}
	if w.chance(1) {
		f.takes += w.upTo(time.Second)
	}
	w.mu.Lock()
	dead := w.cut[who]
	w.mu.Unlock()
	switch {
	case dead:
		f.err, f.late = errStore, -1
	case w.chance(4):
		f.err = errStore
		switch w.upTo(3) {
		case 0:
			f.late = w.upTo(6 * time.Second)
		case 1:
			f.late = -1
		}
	}
	return f
}

// took notes who holds the lock, and looks whether another believes so too.
func (w *world) took(who string, believes func() bool) {
	w.mu.Lock()
	w.grants++
	w.believes[who] = believes
	w.mu.Unlock()
	w.look()
}

func (w *world) left(who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.believes, who)
}

func (w *world) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var who []string
	for name, believes := range w.believes {
		if believes() {
			who = append(who, name)
		} else {
			w.steals++
		}
	}
	if len(who) > 1 && w.overlap == "" {
		w.overlap = fmt.Sprintf("seed %d: %v hold the lock together, %v before the end", w.seed, who, time.Until(w.ends))
	}
}

func (w *world) over() bool { return !time.Now().Before(w.ends) }

// process takes the lock again and again, as a Locker. It may be killed, and
// another of its name takes its place.
func (w *world) process(name string, clock *wall) {
	for life := 0; !w.over(); life++ {
		who := fmt.Sprintf("%s.%d", name, life)
		l := locker(w.t, w.x, name, clock, w.opts)
		l.columns = w.x.as(who)
		dies := time.Now().Add(time.Minute)
		if w.chance(60) {
			dies = time.Now().Add(w.upTo(20 * time.Second))
		}
		for !w.over() && time.Now().Before(dies) {
			ctx, cancel := context.WithTimeout(context.Background(), 100*ms+w.upTo(4*time.Second))
			lock, err := l.Acquire(ctx, testKey, testCol)
			cancel()
			if err != nil {
				time.Sleep(w.upTo(100 * ms))
				continue
			}
			w.took(who, func() bool { return lock.Err() == nil })
			hold := w.upTo(400 * ms)
			if w.chance(10) {
				hold *= 20
			}
			for end := time.Now().Add(hold); time.Now().Before(end) && lock.Err() == nil; {
				time.Sleep(min(50*ms, time.Until(end)))
				w.look()
			}
			if !w.over() && !time.Now().Before(dies) {
				break // while it holds the lock, perhaps
			}
			w.left(who)
			if w.seed%2 == 0 && w.chance(50) { // all come back at about the same time
				round := 2 * time.Second
				lock.Release(context.Background())
				time.Sleep(time.Until(time.Now().Truncate(round).Add(round)) + w.upTo(150*ms))
				continue
			}
			ctx, cancel = context.WithTimeout(context.Background(), w.upTo(300*ms))
			lock.Release(ctx)
			cancel()
		}
		if !w.over() {
			w.mu.Lock()
			w.cut[who] = true
			w.mu.Unlock()
			w.all.Go(func() { // it goes on believing for a while, and cannot do anything
				time.Sleep(2 * w.opts.Expire)
				w.left(who)
				l.Close(context.Background())
			})
			continue
		}
		w.left(who)
		l.Close(context.Background())
	}
}

// stranger takes the lock as JanusGraph does.
func (w *world) stranger(name string, clock *wall) {
	for !w.over() {
		o := w.x.original(name, clock, w.opts)
		ctx := context.Background()
		err := o.write(ctx)
		hold := w.upTo(time.Second)
		if err == nil && w.chance(30) { // a transaction that takes its time: as long as it may
			time.Sleep(w.opts.Expire - w.upTo(2*time.Second) - 200*ms)
			hold = 0
		}
		if err == nil {
			if err = o.check(ctx); err == nil {
				w.took(name, func() bool { return true })
				time.Sleep(hold)
				w.look()
				w.left(name)
			}
			o.delete(ctx)
		}
		time.Sleep(w.upTo(300 * ms))
	}
}

// run runs a world for a while, and says who held the lock together.
func run(t *testing.T, seed int, skew time.Duration, strangers bool) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = &world{t: t, seed: seed, x: newTable(), skew: skew, opts: Options{Expire: 4 * time.Second, CleanExpired: seed%2 == 0},
			ends: time.Now().Add(15 * time.Second), rand: rand.New(rand.NewPCG(uint64(seed), 6)),
			cut: make(map[string]bool), believes: make(map[string]func() bool)}
		w.x.doom(w.fate)
		var clocks []*wall
		for i := range 3 {
			clock := &wall{off: w.off()}
			clocks = append(clocks, clock)
			w.all.Go(func() { w.process(fmt.Sprint("p", i), clock) })
		}
		if strangers && seed%3 == 0 {
			both := &wall{off: w.off()} // they are not safe from one another if their clocks differ
			for i := range 1 + seed%2 {
				w.all.Go(func() { w.stranger(fmt.Sprint("s", i), both) })
			}
		}
		w.all.Go(func() { // clocks are set
			for !w.over() {
				time.Sleep(w.upTo(8 * time.Second))
				c := clocks[w.upTo(3)]
				c.set(w.off())
			}
		})
		w.all.Wait()
	})
	return w
}

// Clocks within the bound, whatever else goes wrong: never two holders.
func TestSimulation(t *testing.T) {
	grants, steals := 0, 0
	for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
		w := run(t, seed, 100*ms, true)
		if w.overlap != "" {
			t.Fatal(w.overlap)
		}
		grants, steals = grants+w.grants, steals+w.steals
	}
	t.Logf("%d grants, and %d times a holder was seen that had lost its lock", grants, steals)
	if grants < 10**seeds || steals < *seeds/10 {
		t.Errorf("too little happens")
	}
}

// Clocks beyond the bound: two hold the lock, as the documentation says.
func TestSimulationBeyondSkew(t *testing.T) {
	for seed := 1; seed <= 300; seed++ {
		if w := run(t, seed, 600*ms, false); w.overlap != "" {
			t.Log(w.overlap)
			return
		}
	}
	t.Error("clocks that differ by more than Skew let nobody in together: the simulation shows nothing")
}

package claims

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// transact locks one to three columns at once, in any order, again and again. Now and
// then it looks once more, goes on after a failure, or closes the Locker in the middle.
func transact(w *world, columns map[string]*world, name string, clock *wall) {
	for life := 0; !w.over(); life++ {
		who := fmt.Sprintf("%s.%d", name, life)
		l := locker(w.t, w.x, name, clock, w.opts)
		l.columns = w.x.as(who)
		dies := time.Now().Add(2*time.Second + w.upTo(20*time.Second))
		for !w.over() && time.Now().Before(dies) {
			time.Sleep(w.upTo(50 * ms))
			names := []string{"a", "b", "c"}
			w.mu.Lock()
			w.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			w.mu.Unlock()
			names = names[:1+w.upTo(3)]
			tx := l.Begin(nil)
			ctx, cancel := context.WithTimeout(context.Background(), 200*ms+w.upTo(3*time.Second))
			var err error
			for _, c := range names {
				if err = tx.Write(ctx, testKey, []byte(c), nil); err != nil && w.chance(50) {
					break
				}
				if w.chance(10) {
					time.Sleep(w.upTo(w.opts.Expire / 2))
				}
			}
			if w.chance(20) {
				time.Sleep(w.upTo(w.opts.Expire))
			}
			if e := tx.Check(ctx); e == nil && err != nil {
				w.t.Errorf("seed %d: Check after %v says nothing", w.seed, err)
			} else if e == nil {
				for _, c := range names {
					columns[c].took(who, func() bool { return tx.Err() == nil })
				}
				hold := w.upTo(400 * ms)
				if w.chance(10) {
					hold *= 20
				}
				for end := time.Now().Add(hold); time.Now().Before(end) && tx.Err() == nil; {
					time.Sleep(min(50*ms, time.Until(end)))
					for _, c := range names {
						columns[c].look()
					}
					if w.chance(5) {
						tx.Check(ctx)
					}
				}
			}
			cancel()
			if w.chance(5) && !w.over() {
				break // killed, or closed, while it holds them
			}
			for _, c := range names {
				columns[c].left(who)
			}
			ctx, cancel = context.WithTimeout(context.Background(), w.upTo(300*ms))
			tx.Delete(ctx)
			cancel()
			if tx.Err() == nil || tx.Write(context.Background(), testKey, testCol, nil) == nil || tx.Check(context.Background()) == nil {
				w.t.Errorf("seed %d: a transaction goes on after Delete", w.seed)
			}
		}
		if !w.over() && w.chance(50) {
			w.mu.Lock()
			w.cut[who] = true
			w.mu.Unlock()
			w.all.Go(func() {
				time.Sleep(2 * w.opts.Expire)
				for _, c := range columns {
					c.left(who)
				}
				l.Close(context.Background())
			})
			continue
		}
		for _, c := range columns { // what is closed believes no more
			c.look()
		}
		ctx, cancel := context.WithTimeout(context.Background(), w.upTo(time.Second))
		l.Close(ctx)
		cancel()
		for _, c := range columns {
			c.look()
			c.left(who)
		}
	}
}

// Transactions of several columns, with clocks within the bound: no column has two
// holders.
func TestTransactions(t *testing.T) {
	grants := 0
	for seed := *firstSeed; seed < *firstSeed+*seeds/3; seed++ {
		columns := make(map[string]*world)
		synctest.Test(t, func(t *testing.T) {
			w := &world{t: t, seed: seed, x: newTable(), skew: 100 * ms, opts: Options{Expire: 4 * time.Second, CleanExpired: seed%2 == 0},
				ends: time.Now().Add(15 * time.Second), rand: rand.New(rand.NewPCG(uint64(seed), 7)),
				cut: make(map[string]bool), believes: make(map[string]func() bool)}
			if seed%3 == 0 {
				w.opts.Group = fmt.Sprint("seed ", seed)
			}
			w.x.doom(w.fate)
			for _, c := range []string{"a", "b", "c"} {
				columns[c] = &world{t: t, seed: seed, ends: w.ends, believes: make(map[string]func() bool)}
			}
			for i := range 3 {
				clock := &wall{off: w.off()}
				w.all.Go(func() { transact(w, columns, fmt.Sprint("p", i), clock) })
				w.all.Go(func() {
					for !w.over() {
						time.Sleep(w.upTo(8 * time.Second))
						clock.set(w.off())
					}
				})
			}
			w.all.Wait()
		})
		for c, w := range columns {
			if w.overlap != "" {
				t.Fatalf("column %s: %s", c, w.overlap)
			}
			grants += w.grants
		}
	}
	t.Logf("%d grants", grants)
	if grants < 3**seeds {
		t.Error("too little happens")
	}
}

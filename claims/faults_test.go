package claims

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
)

const ms = time.Millisecond

// T1: a claim may be there only Wait after its timestamp, and its timestamp be
// of a clock that is behind by Skew, and rounded down.
func TestT01SkewMargin(t *testing.T) {
	for _, test := range []struct {
		name string
		unit Unit
		a, b time.Duration // when they claim
	}{
		{"skew", Micro, 0, 99 * ms},
		{"tick", Milli, 900 * time.Microsecond, 100*ms + 950*time.Microsecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTable()
				opts := Options{Unit: test.unit}
				a := locker(t, x, "b", nil, opts) // sorts behind, where the timestamps are equal
				b := locker(t, x, "a", &wall{off: -100 * ms}, opts)
				a.agree(t.Context())
				b.agree(t.Context())
				x.doom(once(1, "add", "a", fate{takes: 100 * ms}))
				began, results := time.Now(), make(chan error, 2)
				for _, p := range []struct {
					l    *Locker
					from time.Duration
				}{{a, test.a}, {b, test.b}} {
					go func() {
						time.Sleep(p.from - time.Since(began))
						tx := p.l.Begin(nil)
						err := tx.Write(t.Context(), testKey, testCol, nil)
						if err == nil {
							err = tx.Check(t.Context())
						}
						results <- err
					}()
				}
				first, second := <-results, <-results
				if first == nil && second == nil {
					t.Error("both hold the lock")
				}
				if first != nil && second != nil {
					t.Errorf("nobody holds the lock: %v; %v", first, second)
				}
				a.Close(t.Context())
				b.Close(t.Context())
			})
		})
	}
}

// An original does not wait for Skew. A Locker whose claim sorts before that of an
// original, and came later, leaves it the lock.
func TestT01Original(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		b := locker(t, x, "b", &wall{off: -100 * ms}, Options{})
		b.agree(t.Context())
		x.doom(once(1, "add", "b", fate{takes: 100 * ms}))
		o := x.original("o", nil, Options{Expire: 5 * time.Minute})
		go func() {
			o.write(t.Context())
			if err := o.check(t.Context()); err != nil {
				t.Errorf("the original: %v", err)
			}
		}()
		time.Sleep(99 * ms)
		tx := b.Begin(nil)
		if err := tx.Write(t.Context(), testKey, testCol, nil); err != nil {
			t.Fatal(err)
		}
		if err := tx.Check(t.Context()); !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("beside an original: %v", err)
		}
		b.Close(t.Context())
	})
}

// T2: who works for longer than Expire goes on holding the lock, against
// Lockers and against originals, also those that had claimed before the renewal and
// check when the first claim has expired.
func TestT02Renewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		a, b := locker(t, x, "a", nil, small), locker(t, x, "b", nil, small)
		lock := acquire(t, a)
		early := x.original("early", nil, small)
		time.Sleep(time.Second)
		if err := early.write(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9300 * ms) // its own claim has not expired, the holder's first has
		if err := early.check(t.Context()); err == nil || !strings.Contains(err.Error(), "already held") {
			t.Errorf("an original that claimed before the renewal: %v", err)
		}
		early.delete(t.Context())
		for i := range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
			if _, err := b.Acquire(ctx, testKey, testCol); !errors.Is(err, holdfast.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("another Locker, at %d: %v", i, err)
			}
			cancel()
			late := x.original("late", nil, small)
			late.write(t.Context())
			if err := late.check(t.Context()); err == nil {
				t.Errorf("an original holds the lock too, at %d", i)
			}
			late.delete(t.Context())
			if err := lock.Err(); err != nil {
				t.Fatalf("at %d: %v", i, err)
			}
			if err := lock.Verify(t.Context()); err != nil {
				t.Fatalf("at %d: %v", i, err)
			}
		}
		if n := len(x.claims()); n > 8 {
			t.Errorf("%d columns of one lock: what has expired is not removed", n)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		a.Close(t.Context())
		b.Close(t.Context())
		if left := x.leftovers(); len(left) > 0 {
			t.Errorf("left over: %q", left)
		}
	})
}

// A holder that could not renew stops before anybody else can start, and its
// context ends at that moment, not later.
func TestT02LostInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		a, b := locker(t, x, "a", nil, small), locker(t, x, "b", nil, small)
		lock := acquire(t, a)
		began := time.Now()
		x.cut("a")
		go func() {
			<-lock.Done()
			if took := time.Since(began); took > a.trust() {
				t.Errorf("lost after %v, trust is %v", took, a.trust())
			}
		}()
		second := acquire(t, b)
		if err := lock.Err(); !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, errStore) || !errors.Is(context.Cause(lock.Context()), holdfast.ErrLost) {
			t.Errorf("the first holder: %v", err)
		}
		if err := lock.Release(t.Context()); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("its release: %v", err)
		}
		if err := second.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		x.doom(nil)
		second.Release(t.Context())
		a.Close(t.Context())
		b.Close(t.Context())
	})
}

// T3: claims expire by a clock that may be ahead of the holder's by Skew.
func TestT03ExpirySkew(t *testing.T) {
	opts := Options{Expire: 10 * time.Second, Skew: time.Second}
	t.Run("holder", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x := newTable()
			a := locker(t, x, "a", &wall{off: -time.Second}, opts)
			lock := acquire(t, a)
			x.cut("a")
			for {
				o := x.original("o", nil, opts)
				err := o.write(t.Context())
				if err == nil {
					err = o.check(t.Context())
				}
				if err == nil {
					break
				}
				o.delete(t.Context())
			}
			if lock.Err() == nil {
				t.Error("an original whose clock is ahead has the lock, and its holder believes in it still")
			}
			x.doom(nil)
			lock.Release(t.Context())
			a.Close(t.Context())
		})
	})
	t.Run("reader", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x := newTable()
			behind := &wall{off: -time.Second}
			o := x.original("o", behind, opts)
			o.write(t.Context())
			if err := o.check(t.Context()); err != nil {
				t.Fatal(err)
			}
			b := locker(t, x, "b", nil, opts)
			for _, free := range []bool{false, true} {
				left := opts.Expire - 500*ms // when b claims, by its clock
				if free {
					left += 1500 * ms
				}
				time.Sleep(time.Until(time.UnixMicro(o.at).Add(left)))
				tx := b.Begin(nil)
				if err := tx.Write(t.Context(), testKey, testCol, nil); err != nil {
					t.Fatal(err)
				}
				err := tx.Check(t.Context())
				if age := behind.now().Sub(time.UnixMicro(o.at)); (age > opts.Expire) != free || (err == nil) != free {
					t.Errorf("the original's clock gives it %v more: %v", opts.Expire-age, err)
				}
				tx.Delete(t.Context())
			}
			b.Close(t.Context())
		})
	})
}

// T4: the wall clock steps; waits and trust are by a clock that does not.
func TestT04SteadyClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, w := newTable(), &wall{}
		a := locker(t, x, "a", w, small)
		tx := a.Begin(nil)
		if err := tx.Write(t.Context(), testKey, testCol, nil); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.step(99 * ms)
		if err := tx.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took <= a.wait() {
			t.Errorf("checked after %v, and it has to be more than %v", took, a.wait())
		}
		x.cut("a")
		w.step(-time.Hour)
		time.Sleep(a.trust() - time.Since(began) + 1)
		if !errors.Is(tx.Err(), holdfast.ErrLost) {
			t.Errorf("trusted for longer as the clock went back: %v", tx.Err())
		}
		x.doom(nil)
		tx.Delete(t.Context())

		w.step(time.Hour) // a write that took too long, while the clock went back
		x.doom(func(call, who string) fate {
			if call == "add" {
				w.step(-150 * ms)
				return fate{takes: 150 * ms}
			}
			return fate{}
		})
		var slow *SlowError
		if _, err := a.Acquire(t.Context(), testKey, testCol); !errors.As(err, &slow) {
			t.Errorf("a slow write is measured by a clock that steps: %v", err)
		}
		x.doom(nil)
		a.Close(t.Context())
	})
}

// T5: a write that failed may be applied later. It makes nobody a holder, and
// leaves nothing behind.
func TestT05Ghost(t *testing.T) {
	t.Run("no holder by a ghost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x := newTable()
			a, b := locker(t, x, "a", nil, small), locker(t, x, "b", nil, small)
			a.agree(t.Context())
			b.agree(t.Context())
			// The second write of a, which removes the first, is slower than b's.
			n := 0
			x.doom(func(call, who string) fate {
				if call != "add" || who != "a" {
					return fate{}
				}
				switch n++; n {
				case 1:
					return fate{err: errStore, takes: 50 * ms, late: 400 * ms}
				default:
					return fate{}
				}
			})
			results := make(chan error, 1)
			go func() {
				tx := a.Begin(nil)
				err := tx.Write(t.Context(), testKey, testCol, nil)
				// Now the deletion of the first is forgotten, as after gc_grace.
				x.mu.Lock()
				for name, c := range x.rows[string(testRow)] {
					if c.dead {
						delete(x.rows[string(testRow)], name)
					}
				}
				x.mu.Unlock()
				time.Sleep(500 * ms)
				if err == nil {
					err = tx.Check(t.Context())
				}
				results <- err
			}()
			time.Sleep(20 * ms)
			second := acquire(t, b)
			if err := <-results; err == nil {
				t.Error("both hold it: one by a claim that came when it had been given up")
			} else if !errors.Is(err, holdfast.ErrHeld) {
				t.Error(err)
			}
			second.Release(t.Context())
			a.Close(t.Context())
			b.Close(t.Context())
		})
	})
	t.Run("no ghost stays", func(t *testing.T) {
		for _, how := range []fate{
			{err: errStore, late: 0},                // applied, the answer lost
			{err: errStore, late: 100 * ms},         // before the release
			{err: errStore, late: 10 * time.Second}, // after it
			{takes: 150 * ms},                       // too slow
		} {
			for n := 1; n <= 3; n++ { // the first write, the second, the renewal
				synctest.Test(t, func(t *testing.T) {
					x := newTable()
					a := locker(t, x, "a", nil, Options{Expire: time.Minute})
					x.doom(once(n, "add", "a", how))
					lock := acquire(t, a)
					time.Sleep(a.trust() / 2)
					if err := lock.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(20 * time.Second)
					if left := x.leftovers(); len(left) > 0 {
						t.Errorf("write %d %+v: left over: %q", n, how, left)
					}
					a.Close(t.Context())
				})
			}
		}
	})
}

// T6: processes that have one name by mistake keep each other out all the same.
func TestT06SameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		a, b := locker(t, x, "same", nil, small), locker(t, x, "same", nil, small)
		results := make(chan error, 2)
		for _, l := range []*Locker{a, b} { // in the same moment
			go func() {
				tx := l.Begin(nil)
				err := tx.Write(t.Context(), testKey, testCol, nil)
				if err == nil {
					err = tx.Check(t.Context())
				}
				results <- err
			}()
		}
		first, second := <-results, <-results
		if (first == nil) == (second == nil) {
			t.Errorf("want one holder: %v; %v", first, second)
		}
		// One that was killed: a successor of its name does not take its claims for its own.
		x.cut("same")
		a.Close(within(t, time.Second))
		b.Close(within(t, time.Second))
		x.doom(nil)
		c := locker(t, x, "same", nil, small)
		tx := c.Begin(nil)
		err := tx.Write(t.Context(), testKey, testCol, nil)
		if err == nil {
			err = tx.Check(t.Context())
		}
		if !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("the successor: %v", err)
		}
		c.Close(t.Context())
	})
}

// T7: a goroutine that works for longer than Expire is not joined by another of its
// process, even if its lock is lost.
func TestT07LocalLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		opts := small
		opts.Group = t.Name()
		a, a2 := locker(t, x, "a", nil, opts), locker(t, x, "a2", nil, opts)
		lock := acquire(t, a)
		x.cut("a")
		time.Sleep(time.Minute)
		if !errors.Is(lock.Err(), holdfast.ErrLost) {
			t.Fatalf("the lock: %v", lock.Err())
		}
		var held *HeldError
		if _, err := a2.Acquire(within(t, time.Minute), testKey, testCol); !errors.As(err, &held) || !held.Local {
			t.Fatalf("beside work that goes on: %v", err)
		}
		x.doom(nil)
		lock.Release(t.Context())
		acquire(t, a2)
		a.Close(t.Context())
		a2.Close(t.Context())
	})
}

// T8: however an attempt ends, no claim of it stays.
func TestT08EveryExit(t *testing.T) {
	broken := Permanent(errors.New("no such table"))
	type part func(t *testing.T, ctx context.Context, x *table, l *Locker) error
	take := func(t *testing.T, ctx context.Context, x *table, l *Locker) error {
		_, err := l.Acquire(ctx, testKey, testCol)
		return err
	}
	write := func(t *testing.T, ctx context.Context, x *table, l *Locker) error {
		return l.Begin(nil).Write(ctx, testKey, testCol, nil)
	}
	check := func(t *testing.T, ctx context.Context, x *table, l *Locker) error {
		tx := l.Begin(func(context.Context, []byte, []byte) ([]byte, error) { return []byte("is"), nil })
		for _, col := range []string{"c0", "c1"} {
			if err := tx.Write(ctx, testKey, []byte(col), []byte("was")); err != nil {
				t.Fatal(err)
			}
		}
		return tx.Check(ctx)
	}
	all := func(call string, f fate) func(string, string) fate {
		return func(c, who string) fate {
			if c == call {
				return f
			}
			return fate{}
		}
	}
	for _, test := range []struct {
		name string
		do   part
		fate func(call, who string) fate
		ctx  time.Duration
		held bool
	}{
		{"writes fail and are applied", take, all("add", fate{err: errStore}), 0, false},
		{"writes fail and come late", take, all("add", fate{err: errStore, late: 200 * ms}), 0, false},
		{"writes are slow", take, all("add", fate{takes: 200 * ms}), 0, false},
		{"a write is refused, after another", write, func() func(string, string) fate {
			n := 0
			return func(c, who string) fate {
				if c != "add" {
					return fate{}
				}
				if n++; n == 1 {
					return fate{err: errStore}
				}
				return fate{err: broken, late: -1}
			}
		}(), 0, false},
		{"ctx ends in a write", write, all("add", fate{takes: 90 * ms}), 50 * ms, false},
		{"ctx ends in the wait", take, nil, 50 * ms, false},
		{"ctx ends behind another", take, nil, time.Second, true},
		{"ctx ends in a read", take, all("slice", fate{takes: time.Second}), 500 * ms, false},
		{"reads fail", take, all("slice", fate{err: errStore}), 0, false},
		{"reads are refused", take, all("slice", fate{err: broken}), 0, false},
		{"another is first", check, nil, 0, true},
		{"the value is another", check, nil, 0, false},
		{"a deletion fails", check, once(1, "delete", "a", fate{err: errStore, late: -1}), 0, false},
		{"deletions fail for a while", check, func() func(string, string) fate {
			n := 0
			return func(c, who string) fate {
				if n++; c == "delete" && n < 12 {
					return fate{err: errStore, late: -1}
				}
				return fate{}
			}
		}(), 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTable()
				if test.held {
					x.apply(string(testRow), &Column{claimName(time.Now().UnixMicro(), "other"), nil}, nil, 1)
					time.Sleep(ms)
				}
				l := locker(t, x, "a", nil, small)
				ctx := t.Context()
				if test.ctx > 0 {
					ctx = within(t, test.ctx)
				}
				if err := l.agree(t.Context()); err != nil {
					t.Fatal(err)
				}
				x.doom(test.fate)
				if err := test.do(t, ctx, x, l); err == nil {
					t.Error("no error")
				}
				time.Sleep(5 * time.Second)
				want := 0
				if test.held {
					want = 1
				}
				if left := x.leftovers(); len(left) != want {
					t.Errorf("left over: %q", left)
				}
				x.doom(nil)
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// T9: deletions count though the clock has gone back since the write, here or
// where the claim to be cleaned comes from.
func TestT09DeleteLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, w := newTable(), &wall{off: 90 * ms}
		a := locker(t, x, "a", w, small)
		lock := acquire(t, a)
		w.step(-time.Hour)
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := x.leftovers(); len(left) > 0 {
			t.Errorf("left over: %q", left)
		}
		a.Close(t.Context())

		// JanusGraph writes with a timestamp that may be the claim's and one.
		b := locker(t, x, "b", nil, small)
		b.stamped.Store(0)
		at := time.Now().Add(-time.Minute)
		x.apply(string(testRow), &Column{claimName(at.UnixMicro(), "o"), nil}, nil, time.Now().Add(time.Minute).UnixMicro())
		if stamp := b.stamp(time.Now().Add(time.Minute).UnixMicro()); stamp <= time.Now().Add(time.Minute).UnixMicro()+1 {
			t.Errorf("the stamp %d is not later", stamp)
		}
		b.Close(t.Context())
	})
}

// sites are two data centres with a table each; what is written in one comes to
// the other after a while.
type sites struct {
	near, far *table
	lag       time.Duration
	quorum    bool // of all replicas: a write is confirmed when it is in both
}

func (s sites) Add(ctx context.Context, key []byte, add Column, remove [][]byte, stamp int64) error {
	return s.change(func(x *table) { x.apply(string(key), &add, remove, stamp) })
}

func (s sites) Delete(ctx context.Context, key []byte, columns [][]byte, stamp int64) error {
	return s.change(func(x *table) { x.apply(string(key), nil, columns, stamp) })
}

func (s sites) change(apply func(*table)) error {
	apply(s.near)
	time.AfterFunc(s.lag, func() { apply(s.far) })
	if s.quorum {
		time.Sleep(s.lag + ms)
	}
	return nil
}

func (s sites) Slice(ctx context.Context, key, from []byte) ([]Column, error) {
	return s.near.as("").Slice(ctx, key, from)
}

// T10: Columns has to show every confirmed write to all. A store that confirms
// what only one data centre has lets one in each.
func TestT10Consistency(t *testing.T) {
	holders := func(quorum bool, lag time.Duration) (n int) {
		synctest.Test(t, func(t *testing.T) {
			x, y := newTable(), newTable()
			results := make(chan error, 2)
			var lockers []*Locker
			for i, c := range []Columns{sites{x, y, lag, quorum}, sites{y, x, lag, quorum}} {
				base := time.Now()
				l, err := New(c, &Options{Name: fmt.Sprint(i), clocks: &clocks{time.Now, func() time.Duration { return time.Since(base) }}})
				if err != nil {
					t.Fatal(err)
				}
				lockers = append(lockers, l)
				go func() {
					_, err := l.Acquire(within(t, 2*time.Second), testKey, testCol)
					results <- err
				}()
			}
			for range 2 {
				if err := <-results; err == nil {
					n++
				}
			}
			for _, l := range lockers {
				l.Close(t.Context())
			}
		})
		return n
	}
	if n := holders(true, 50*ms); n != 1 {
		t.Errorf("%d holders, with writes confirmed by both", n)
	}
	if n := holders(true, 400*ms); n != 0 {
		t.Errorf("%d holders, with writes confirmed by both, too late to count", n)
	}
	if n := holders(false, 400*ms); n != 2 {
		t.Errorf("%d holders, with writes confirmed by one data centre: this test shows nothing", n)
	}
}

// T11: a lock that is taken often leaves a tombstone each time, and reads do not
// meet those of long ago. Waiting leaves next to none.
func TestT11Tombstones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		x.tombstones = 200
		a, b := locker(t, x, "a", nil, small), locker(t, x, "b", nil, small)
		for i := range 1000 {
			lock, err := a.Acquire(t.Context(), testKey, testCol)
			if err != nil {
				t.Fatalf("at the %d-th time: %v", i, err)
			}
			lock.Release(t.Context())
		}
		lock := acquire(t, a)
		before := x.count("add") + x.count("delete")
		b.Acquire(within(t, time.Minute), testKey, testCol)
		if n := x.count("add") + x.count("delete") - before; n > 70 {
			t.Errorf("%d writes in a minute of holding and waiting", n)
		}
		lock.Release(t.Context())
		a.Close(t.Context())
		b.Close(t.Context())
	})
}

// T12: the cleaner removes nothing that could be believed in, by clocks as far
// apart as may be.
func TestT12Cleaner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		opts := small
		opts.CleanExpired = true
		a := locker(t, x, "a", nil, opts)
		put := func(age time.Duration) string {
			name := claimName(time.Now().Add(-age).UnixMicro(), "o")
			x.apply(string(testRow), &Column{name, nil}, nil, timestampOf(name)|1)
			return string(name)
		}
		old := put(opts.Expire + 250*ms)
		older := put(time.Hour)
		kept := put(opts.Expire + 150*ms)
		a.agree(t.Context())
		a.behind.Add(1)
		a.clean(testRow)
		a.behind.Done()
		synctest.Wait()
		if got := x.claims(); len(got) != 1 || got[0] != kept {
			t.Errorf("%q stay; want %q, and neither %q nor %q", got, kept, old, older)
		}
		a.Close(t.Context())
	})
}

func TestT12Cooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		opts := small
		opts.CleanExpired = true
		a := locker(t, x, "a", nil, opts)
		a.behind.Add(1)
		for range 500 {
			a.clean(testRow)
			synctest.Wait()
		}
		if n := x.count("slice"); n != 1 {
			t.Errorf("500 looks clean a row %d times", n)
		}
		time.Sleep(cooldown)
		a.clean(testRow)
		synctest.Wait()
		if n := x.count("slice"); n != 2 {
			t.Errorf("after the cooldown it was cleaned %d times", n)
		}
		a.behind.Done()
		a.Close(t.Context())
	})
}

// T13: who has other settings than the others finds out before it locks.
func TestT13UnequalSettings(t *testing.T) {
	for _, other := range []Options{
		{Expire: 20 * time.Second},
		{Expire: 10 * time.Second, Wait: 50 * ms},
		{Expire: 10 * time.Second, Skew: 50 * ms},
		{Expire: 10 * time.Second, Unit: Milli},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := newTable()
			a := locker(t, x, "a", nil, small)
			lock := acquire(t, a)
			b := locker(t, x, "b", nil, other)
			var settings *SettingsError
			refused := func(when string) {
				_, err := b.Acquire(t.Context(), testKey, testCol)
				if err == nil {
					t.Fatalf("%s: it locks with other settings", when)
				}
				if !errors.As(err, &settings) || !strings.Contains(err.Error(), a.opts.text()) || !strings.Contains(err.Error(), b.opts.text()) {
					t.Errorf("%s: %v", when, err)
				}
			}
			refused("while the lock is held")
			time.Sleep(time.Minute) // renewals keep the settings published
			refused("after a minute")
			lock.Release(t.Context())
			acquire(t, a).Release(t.Context()) // who was first is not put out by it
			refused("while the Locker is open")
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			second, err := b.Acquire(t.Context(), testKey, testCol)
			if err != nil {
				t.Fatalf("after the others are closed: %v", err)
			}
			c := locker(t, x, "c", nil, small)
			second.Release(t.Context())
			x.cut("b") // killed
			b.Close(within(t, time.Second))
			x.doom(nil)
			if _, err := c.Acquire(t.Context(), testKey, testCol); !errors.As(err, &settings) {
				t.Errorf("beside one that was killed just now: %v", err)
			}
			time.Sleep(2*b.opts.Expire + b.opts.Skew)
			acquire(t, c)
			c.Close(t.Context())
		})
	}
}

// A Locker that is cut off still believes in its lock for a while. Nobody locks
// with other settings meanwhile.
func TestT13CutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		a := locker(t, x, "a", nil, small)
		a.agree(t.Context())
		time.Sleep(a.trust()/3 - a.wait() - ms) // just before it would publish again
		lock := acquire(t, a)
		x.cut("a")
		b := locker(t, x, "b", nil, Options{Expire: 5 * time.Second})
		for lock.Err() == nil {
			if _, err := b.Acquire(within(t, time.Second), testKey, testCol); err == nil {
				t.Fatal("both hold the lock")
			} else if lock.Err() == nil && errors.Is(err, holdfast.ErrHeld) {
				t.Fatalf("it locks with other settings: %v", err)
			}
			time.Sleep(100 * ms)
		}
		x.doom(nil)
		a.Close(t.Context())
		b.Close(t.Context())
	})
}

// Two that start in one moment with unequal settings do not both lock.
func TestT13Together(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		x.doom(func(string, string) fate { return fate{takes: ms, reply: ms} })
		results := make(chan error, 2)
		lockers := []*Locker{locker(t, x, "a", nil, small), locker(t, x, "b", nil, Options{Expire: 20 * time.Second})}
		for _, l := range lockers {
			go func() { results <- l.agree(t.Context()) }()
		}
		if first, second := <-results, <-results; first == nil && second == nil {
			t.Error("both may lock")
		}
		for _, l := range lockers {
			l.Close(t.Context())
		}
	})
}

// T14: a store that is too slow is named as the cause, with what was measured,
// after as many writes as are allowed.
func TestT14SlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		a := locker(t, x, "a", nil, small)
		a.agree(t.Context())
		x.doom(func(call, who string) fate { return fate{takes: 155 * ms} })
		_, err := a.Acquire(within(t, time.Minute), testKey, testCol)
		var slow *SlowError
		if !errors.As(err, &slow) || slow.Took != 155*ms || slow.Wait != 100*ms || slow.Tries != 3 || !strings.Contains(err.Error(), "155ms") {
			t.Errorf("%v", err)
		}
		if n := x.count("add"); n != 3 {
			t.Errorf("%d writes", n)
		}
		x.doom(nil)
		a.Close(t.Context())
	})
}

// A claim from the future shows that Skew is exceeded.
func TestSkewSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		a := locker(t, x, "a", nil, small)
		o := x.original("o", &wall{off: 5 * time.Second}, small)
		o.write(t.Context())
		if err := o.check(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := a.Acquire(t.Context(), testKey, testCol)
		var skew *SkewError
		if !errors.As(err, &skew) || skew.Rid != "o" || skew.By < 4*time.Second {
			t.Errorf("%v", err)
		}
		a.Close(t.Context())
	})
}

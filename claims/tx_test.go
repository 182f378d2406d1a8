package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A scene is one Locker on a table, with claims of others put there by hand.
type scene struct {
	*testing.T
	x *table
	l *Locker
}

func (s scene) put(age time.Duration, rid string) string {
	name := claimName(time.Now().Add(-age).UnixMicro(), rid)
	s.x.apply(string(testRow), &Column{name, claimValue()}, nil, timestampOf(name)|1)
	return string(name)
}

func (s scene) write(tx *Tx, columns ...string) {
	s.Helper()
	for _, col := range columns {
		if err := tx.Write(s.Context(), testKey, []byte(col), nil); err != nil {
			s.Fatal(err)
		}
	}
}

func (s scene) held(err error, rid string) {
	s.Helper()
	var held *HeldError
	if !errors.As(err, &held) || !errors.Is(err, holdfast.ErrHeld) || held.Rid != rid {
		s.Errorf("got %v, want an error that says that %s holds it", err, rid)
	}
}

// everyCall gives each such call one fate.
func everyCall(call string, f fate) func(string, string) fate {
	return func(c, _ string) fate {
		if c == call {
			return f
		}
		return fate{}
	}
}

// firstCalls gives the first n such calls one fate.
func firstCalls(n int, call string, f fate) func(string, string) fate {
	return func(c, _ string) fate {
		if c == call && n > 0 {
			n--
			return f
		}
		return fate{}
	}
}

var refused = Permanent(errors.New("no such table"))

// What upstream's tests of the locker ask, of this one.
var scenes = []struct {
	name string
	do   func(s scene)
}{
	{"write: one column, its value, its time", func(s scene) {
		tx := s.l.Begin(nil)
		began := time.Now()
		s.write(tx, "c1")
		columns, _ := s.x.live(string(testRow), "")
		if len(columns) != 1 || timestampOf(columns[0].Name) != began.UnixMicro() || string(columns[0].Value) != "\x00\x00\x00\x00" {
			s.Errorf("%q", columns)
		}
	}},
	{"write: again after one that was slow, which is removed", func(s scene) {
		s.x.doom(firstCalls(1, "add", fate{takes: 101 * ms}))
		s.write(s.l.Begin(nil), "c1")
		if n := len(s.x.claims()); n != 1 || s.x.count("add") != 2 || s.x.count("delete") != 0 {
			s.Errorf("%d claims after %d writes and %d deletions", n, s.x.count("add"), s.x.count("delete"))
		}
	}},
	{"write: exactly Wait is quick enough", func(s scene) {
		s.x.doom(firstCalls(1, "add", fate{takes: 100 * ms}))
		s.write(s.l.Begin(nil), "c1")
		if n := s.x.count("add"); n != 1 {
			s.Errorf("%d writes", n)
		}
	}},
	{"write: gives up when all are slow", func(s scene) {
		s.x.doom(everyCall("add", fate{takes: 101 * ms}))
		var slow *SlowError
		if err := s.l.Begin(nil).Write(s.Context(), testKey, testCol, nil); !errors.As(err, &slow) {
			s.Error(err)
		}
	}},
	{"write: dies of a permanent error at once", func(s scene) {
		s.x.doom(everyCall("add", fate{err: refused, late: -1}))
		if err := s.l.Begin(nil).Write(s.Context(), testKey, testCol, nil); !errors.Is(err, refused) || s.x.count("add") != 1 {
			s.Errorf("%v, after %d writes", err, s.x.count("add"))
		}
	}},
	{"write: again after a temporary error", func(s scene) {
		s.x.doom(firstCalls(2, "add", fate{err: errStore, late: -1}))
		s.write(s.l.Begin(nil), "c1")
		if n := s.x.count("add"); n != 3 {
			s.Errorf("%d writes", n)
		}
	}},
	{"write: waits for this process's own, and not for ever", func(s scene) {
		one := s.l.Begin(nil)
		s.write(one, "c1")
		before := s.x.count("add")
		var held *HeldError
		err := s.l.Begin(nil).Write(within(s.T, time.Second), testKey, testCol, nil)
		if !errors.As(err, &held) || !held.Local || !errors.Is(err, context.DeadlineExceeded) {
			s.Error(err)
		}
		if s.x.count("add") != before {
			s.Error("it has claimed beside one of its own process")
		}
		go func() {
			time.Sleep(time.Second)
			one.Delete(s.Context())
		}()
		s.write(s.l.Begin(nil), "c1")
	}},
	{"write: twice is once", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1", "c1")
		if n := s.x.count("add"); n != 1 {
			s.Errorf("%d writes", n)
		}
	}},
	{"write: twice does not make it live longer", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		time.Sleep(s.l.trust() / 2)
		s.write(tx, "c1")
		time.Sleep(s.l.trust() / 2)
		if err := tx.Check(s.Context()); !errors.Is(err, ErrExpired) {
			s.Error(err)
		}
	}},
	{"write: not after Check", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := tx.Check(s.Context()); err != nil {
			s.Fatal(err)
		}
		if err := tx.Write(s.Context(), testKey, []byte("c2"), nil); err == nil {
			s.Error("no error")
		}
		if err := tx.Err(); err != nil {
			s.Errorf("it ended what is held: %v", err)
		}
	}},
	{"check: alone", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := tx.Check(s.Context()); err != nil {
			s.Error(err)
		}
	}},
	{"check: nothing", func(s scene) {
		if err := s.l.Begin(nil).Check(s.Context()); err != nil {
			s.Error(err)
		}
	}},
	{"check: an own claim that has expired", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		time.Sleep(s.l.trust())
		if err := tx.Check(s.Context()); !errors.Is(err, ErrExpired) {
			s.Error(err)
		}
	}},
	{"check: an expired claim of another is none", func(s scene) {
		s.put(s.l.opts.Expire+s.l.opts.Skew+2*ms, "other")
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := tx.Check(s.Context()); err != nil {
			s.Error(err)
		}
	}},
	{"check: a claim of another that has not expired is one", func(s scene) {
		s.put(s.l.opts.Expire-s.l.wait(), "other")
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		s.held(tx.Check(s.Context()), "other")
	}},
	{"check: twice", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := errors.Join(tx.Check(s.Context()), tx.Check(s.Context())); err != nil {
			s.Error(err)
		}
	}},
	{"check: again finds out that the claim was removed", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := tx.Check(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.x.apply(string(testRow), nil, [][]byte{[]byte(s.x.claims()[0])}, 1<<62)
		if err := tx.Check(s.Context()); !errors.Is(err, holdfast.ErrLost) {
			s.Error(err)
		}
	}},
	{"check: a renewal finds out that the claim was removed", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := tx.Check(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.x.apply(string(testRow), nil, [][]byte{[]byte(s.x.claims()[0])}, 1<<62)
		s.put(0, "other")
		time.Sleep(s.l.trust() / 2)
		if err := tx.Err(); !errors.Is(err, holdfast.ErrLost) || !errors.Is(err, holdfast.ErrHeld) {
			s.Error(err)
		}
	}},
	{"check: an error of a second one is no loss", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := tx.Check(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.x.doom(everyCall("slice", fate{err: errStore}))
		if err := tx.Check(s.Context()); !errors.Is(err, errStore) || tx.Err() != nil {
			s.Errorf("%v; %v", err, tx.Err())
		}
	}},
	{"check: others are first", func(s scene) {
		s.put(time.Second, "senior")
		s.put(time.Second/2, "second")
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		s.held(tx.Check(s.Context()), "senior")
	}},
	{"check: others come after", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		time.Sleep(150 * ms)
		s.put(0, "junior")
		s.put(-ms, "junior too")
		if err := tx.Check(s.Context()); err != nil {
			s.Error(err)
		}
	}},
	{"check: claims of the same name are of others", func(s scene) {
		s.put(time.Second, s.l.rid())
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := tx.Check(s.Context()); !errors.Is(err, holdfast.ErrHeld) {
			s.Error(err)
		}
	}},
	{"check: again after a temporary error", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		s.x.doom(firstCalls(2, "slice", fate{err: errStore}))
		if err := tx.Check(s.Context()); err != nil {
			s.Error(err)
		}
	}},
	{"check: gives up after temporary errors", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		s.x.doom(everyCall("slice", fate{err: errStore}))
		before := s.x.count("slice")
		if err := tx.Check(s.Context()); !errors.Is(err, errStore) || s.x.count("slice")-before != 3 {
			s.Errorf("%v, after %d reads", err, s.x.count("slice")-before)
		}
	}},
	{"check: dies of a permanent error at once", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		s.x.doom(everyCall("slice", fate{err: refused}))
		before := s.x.count("slice")
		if err := tx.Check(s.Context()); !errors.Is(err, refused) || s.x.count("slice")-before != 1 {
			s.Errorf("%v, after %d reads", err, s.x.count("slice")-before)
		}
	}},
	{"check: the claim is gone", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		s.x.apply(string(testRow), nil, [][]byte{[]byte(s.x.claims()[0])}, 1<<62)
		if err := tx.Check(s.Context()); !errors.Is(err, errMissing) {
			s.Error(err)
		}
	}},
	{"delete: one", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		tx.Check(s.Context())
		if err := tx.Delete(s.Context()); err != nil || len(s.x.leftovers()) > 0 {
			s.Errorf("%v; left over %q", err, s.x.leftovers())
		}
	}},
	{"delete: two", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1", "c2")
		tx.Check(s.Context())
		if err := tx.Delete(s.Context()); err != nil || len(s.x.leftovers()) > 0 || s.x.count("delete") != 2 {
			s.Errorf("%v; left over %q", err, s.x.leftovers())
		}
	}},
	{"delete: again after temporary errors", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		s.x.doom(firstCalls(5, "delete", fate{err: errStore, late: -1}))
		if err := tx.Delete(s.Context()); err != nil || len(s.x.leftovers()) > 0 {
			s.Errorf("%v; left over %q", err, s.x.leftovers())
		}
	}},
	{"delete: a lock that cannot be removed does not keep the others", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1", "c2")
		s.x.doom(firstCalls(1, "delete", fate{err: refused, late: -1}))
		if err := tx.Delete(s.Context()); !errors.Is(err, refused) || len(s.x.leftovers()) != 1 {
			s.Errorf("%v; left over %q", err, s.x.leftovers())
		}
		s.write(s.l.Begin(nil), "c1", "c2") // the local locks are free
	}},
	{"delete: without Check", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := tx.Delete(s.Context()); err != nil || len(s.x.leftovers()) > 0 {
			s.Errorf("%v; left over %q", err, s.x.leftovers())
		}
	}},
	{"delete: twice", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		if err := errors.Join(tx.Delete(s.Context()), tx.Delete(s.Context())); err != nil || s.x.count("delete") != 1 {
			s.Errorf("%v, after %d deletions", err, s.x.count("delete"))
		}
	}},
	{"delete: nothing", func(s scene) {
		if err := s.l.Begin(nil).Delete(s.Context()); err != nil {
			s.Error(err)
		}
	}},
	{"delete: though ctx is done", func(s scene) {
		tx := s.l.Begin(nil)
		s.write(tx, "c1")
		ctx, cancel := context.WithCancel(s.Context())
		cancel()
		s.x.doom(everyCall("delete", fate{takes: 10 * ms}))
		if err := tx.Delete(ctx); !errors.Is(err, context.Canceled) {
			s.Error(err)
		}
		time.Sleep(20 * ms)
		if left := s.x.leftovers(); len(left) > 0 {
			s.Errorf("left over %q", left)
		}
	}},
	{"delete: a lock for the next", func(s scene) {
		for range 3 {
			tx := s.l.Begin(nil)
			s.write(tx, "c1")
			if err := tx.Check(s.Context()); err != nil {
				s.Fatal(err)
			}
			tx.Delete(s.Context())
		}
	}},
	{"a long transaction between Write and Check", func(s scene) {
		one, other := s.l.Begin(nil), s.l.Begin(nil)
		s.write(one, "c1")
		s.write(other, "c2")
		if err := errors.Join(one.Check(s.Context()), other.Check(s.Context())); err != nil {
			s.Error(err)
		}
	}},
	{"transactions that wait in a circle", func(s scene) {
		one, other := s.l.Begin(nil), s.l.Begin(nil)
		s.write(one, "c1")
		s.write(other, "c2")
		got := make(chan error)
		go func() { got <- one.Write(s.Context(), testKey, []byte("c2"), nil) }()
		synctest.Wait()
		if err := other.Write(s.Context(), testKey, []byte("c1"), nil); !errors.Is(err, errDeadlock) {
			s.Errorf("the second: %v", err)
		}
		if err := <-got; err != nil { // the second has ended
			s.Errorf("the first: %v", err)
		}
	}},
}

func TestOriginal(t *testing.T) {
	for _, test := range scenes {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTable()
				l := locker(t, x, "a", nil, small)
				test.do(scene{t, x, l})
				x.doom(nil)
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Values are compared when all locks are held, with what the first Write of each
// expected.
func TestExpectedValues(t *testing.T) {
	for _, test := range []struct {
		name       string
		want, is   []byte
		read       error
		mismatched bool
	}{
		{"as expected", []byte("v"), []byte("v"), nil, false},
		{"another", []byte("v"), []byte("w"), nil, true},
		{"absent, as expected", nil, nil, nil, false},
		{"absent", []byte("v"), nil, nil, true},
		{"there", nil, []byte{}, nil, true},
		{"cannot be read", []byte("v"), nil, errStore, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTable()
				l := locker(t, x, "a", nil, small)
				reads := 0
				tx := l.Begin(func(_ context.Context, key, column []byte) ([]byte, error) {
					if len(x.claims()) != 1 || string(key) != "k1" || string(column) != "c1" {
						t.Errorf("read of %q %q, with claims %q", key, column, x.claims())
					}
					reads++
					return test.is, test.read
				})
				tx.Write(t.Context(), testKey, testCol, test.want)
				tx.Write(t.Context(), testKey, testCol, []byte("x"))
				err := tx.Check(t.Context())
				var mismatch *MismatchError
				if errors.As(err, &mismatch) != test.mismatched || (err != nil) != (test.mismatched || test.read != nil) || test.read != nil && !errors.Is(err, test.read) {
					t.Error(err)
				}
				if reads != 1 {
					t.Errorf("%d reads", reads)
				}
				l.Close(t.Context())
				if left := x.leftovers(); len(left) > 0 {
					t.Errorf("left over %q", left)
				}
			})
		})
	}
}

// Goroutines of one process get a lock in the order in which they asked, across
// its Lockers, and a wait that is given up is passed over.
func TestLocalOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		opts := Options{Group: t.Name()}
		lockers := []*Locker{locker(t, x, "a", nil, opts), locker(t, x, "b", nil, opts)}
		first := acquire(t, lockers[0])
		var order []int
		var mu sync.Mutex
		note := func(i int) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, i)
		}
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				ctx := t.Context()
				if i == 2 {
					ctx = within(t, 50*ms)
				}
				lock, err := lockers[i%2].Acquire(ctx, testKey, testCol)
				if err != nil {
					note(-i)
					return
				}
				note(i)
				lock.Release(t.Context())
			})
			synctest.Wait()
		}
		time.Sleep(100 * ms)
		if n := len(x.claims()); n != 1 {
			t.Errorf("%d claims of one process", n)
		}
		first.Release(t.Context())
		all.Wait()
		if want := []int{-2, 0, 1, 3, 4, 5}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		for _, l := range lockers {
			l.Close(t.Context())
		}
	})
}

// Processes get a lock in the order in which they asked, soon after a release.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		var lockers []*Locker
		for i := range 5 {
			lockers = append(lockers, locker(t, x, fmt.Sprint(i), nil, Options{}))
		}
		held := acquire(t, lockers[0])
		got := make(chan *Lock)
		for _, l := range lockers[1:] {
			go func() { got <- acquire(t, l) }()
			time.Sleep(300 * ms)
		}
		for i := range lockers[1:] {
			time.Sleep(5 * time.Second)
			released := time.Now()
			held.Release(t.Context())
			held = <-got
			if took := time.Since(released); took > 5*time.Second/3 {
				t.Errorf("the hand-over took %v", took)
			}
			if held.tx.l != lockers[i+1] {
				t.Errorf("the %d-th was %s", i+1, held.tx.l.opts.Name)
			}
		}
		for _, l := range lockers {
			l.Close(t.Context())
		}
	})
}

// Beside originals, who do not queue, both kinds get their turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		x.doom(func(string, string) fate { return fate{takes: 3 * ms, reply: 3 * ms} })
		ends := time.Now().Add(time.Minute)
		turns := make([]int, 8)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				l := locker(t, x, fmt.Sprint(i), nil, Options{})
				for time.Now().Before(ends) {
					lock := acquire(t, l)
					turns[i]++
					time.Sleep(5 * ms)
					lock.Release(t.Context())
				}
				l.Close(t.Context())
			})
			all.Go(func() {
				for time.Now().Before(ends) {
					o := x.original(fmt.Sprint("o", i), nil, Options{Expire: 5 * time.Minute})
					err := o.write(t.Context())
					if err == nil {
						if err = o.check(t.Context()); err == nil {
							turns[4+i]++
							time.Sleep(5 * ms)
						}
					}
					o.delete(t.Context())
				}
			})
		}
		all.Wait()
		ours, theirs := 0, 0
		for i := range 4 {
			ours, theirs = ours+turns[i], theirs+turns[4+i]
		}
		t.Logf("turns of Lockers %v, of originals %v", turns[:4], turns[4:])
		if ours < 60 || theirs < 60 || ours > 4*theirs || theirs > 4*ours {
			t.Errorf("Lockers had %d turns in a minute, originals %d", ours, theirs)
		}
	})
}

// Settings that contradict each other are refused.
func TestOptions(t *testing.T) {
	for _, test := range []struct {
		opts *Options
		says string
	}{
		{&Options{Expire: time.Second}, "too short"},
		{&Options{Wait: time.Minute}, "too short"},
		{&Options{Skew: time.Minute}, "too short"},
		{&Options{Wait: -1}, "Wait"},
		{&Options{Skew: -1}, "Skew"},
		{&Options{Retries: -1}, "Retries"},
		{&Options{Unit: 7}, "Unit"},
		{&Options{Name: "\x00"}, "Name"},
		{&Options{Name: strings.Repeat("x", 201)}, "Name"},
	} {
		if _, err := New(newTable().as(""), test.opts); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v", test.opts, err)
		}
	}
	if _, err := New(nil, nil); err == nil {
		t.Error("no columns are taken")
	}
	if l, err := New(newTable().as(""), nil); err != nil || l.opts.Wait != 100*ms || l.opts.Expire != 5*time.Minute || l.opts.Retries != 3 {
		t.Errorf("%+v %v", l, err)
	}
}

// After a Delete that was not confirmed, what is asked of the transaction is answered
// at once: it does not wait for the removal of claims, which may take until they expire.
func TestAnswersAfterDelete(t *testing.T) {
	x := newTable()
	l := locker(t, x, "a", nil, Options{Expire: 10 * time.Second})
	tx := l.Begin(nil)
	if err := tx.Write(t.Context(), testKey, testCol, nil); err != nil {
		t.Fatal(err)
	}
	if err := tx.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.cut("a")
	if err := tx.Delete(within(t, 100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Delete without the store: %v", err)
	}
	for name, ask := range map[string]func(context.Context) error{
		"Check": tx.Check,
		"Write": func(ctx context.Context) error { return tx.Write(ctx, testKey, testCol, nil) },
	} {
		answer := make(chan error, 1)
		go func() { answer <- ask(within(t, 100*time.Millisecond)) }()
		select {
		case err := <-answer:
			if !errors.Is(err, holdfast.ErrReleased) {
				t.Errorf("%s: %v, want ErrReleased", name, err)
			}
		case <-time.After(3 * time.Second):
			t.Errorf("%s waits for the removal of claims", name)
		}
	}
	l.Close(within(t, time.Second))
}

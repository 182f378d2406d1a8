package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// What is wrong with a lock that is a row for itself and a row for each of those who
// share it, as that of HP Service Manager was first described, H1 to H17. There is one
// record here, and whoever changes it does so by one compare-and-swap. docs/holes.md
// says by which tests each is found; these are the ones that had none.

// share has a client take "a" together with others.
func (s *stage) share(c *holdfast.Client) *holdfast.Lock {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	l, err := c.Acquire(ctx, "a", holdfast.Shared())
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// release gives a lock back.
func (s *stage) release(l *holdfast.Lock) {
	s.Helper()
	if err := l.Release(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// H1: a reader is about to join when the last one leaves, and a writer comes. What the
// reader had sent comes to nothing.
func TestHoleH1ReleaseUnderAJoiningReader(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		first, writer := s.notified(), s.notified()
		second, way := s.join()
		l := s.share(first)
		join := keep(way, func(w driver.Write) bool { return wire.IsClaim(w) && w.Old != driver.IfEmpty }, 1)
		joined := make(chan *holdfast.Lock, 1)
		go func() {
			l, err := second.Acquire(t.Context(), "a", holdfast.Shared())
			if err != nil {
				t.Error(err)
			}
			joined <- l
		}()
		synctest.Wait() // it has seen that the lock is shared
		s.release(l)
		next := s.take(writer, time.Minute)
		join.lose(s)
		s.holds(next)
		select {
		case <-joined:
			t.Fatal("a reader holds the lock beside the writer")
		case <-time.After(2 * holdfast.DefaultTTL):
		}
		s.release(next)
		s.release(<-joined)
	})
}

// H2: the first reader's claim is there and its process does not know yet. Another
// reader comes and goes, and takes nothing along with it.
func TestHoleH2FirstReaderPauses(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		first, way := s.join()
		second, writer := s.notified(), s.notified()
		answer := make(chan bool)
		way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			outs, err := send()
			if wire.IsClaim(writes[len(writes)-1]) {
				<-answer
			}
			return outs, err
		})
		joined := make(chan *holdfast.Lock, 1)
		go func() {
			l, err := first.Acquire(t.Context(), "a", holdfast.Shared())
			if err != nil {
				t.Error(err)
			}
			joined <- l
		}()
		synctest.Wait()
		s.release(s.share(second))
		s.refused(writer)
		way.SetMeet(nil)
		close(answer)
		l := <-joined
		s.holds(l)
		s.refused(writer)
		s.release(l)
		s.release(s.take(writer, time.Second))
	})
}

// H3: the reader that was there first leaves, or dies, and the other goes on. The lock
// is not called after the first: who waits for it waits for the other.
func TestHoleH3FirstReaderLeaves(t *testing.T) {
	for _, dies := range []bool{false, true} {
		play(t, func(t *testing.T, s *stage) {
			first, way := s.join()
			second, writer := s.notified(), s.notified()
			a, b := s.share(first), s.share(second)
			got := queue(t, writer)
			if dies {
				way.Off.Store(true)
			} else {
				s.release(a)
			}
			time.Sleep(40 * holdfast.DefaultTTL) // ten minutes
			if len(got) > 0 || b.Err() != nil {
				t.Fatalf("dies %v: a reader holds the lock (%v), and a writer has it: %v", dies, b.Err(), len(got) > 0)
			}
			s.holds(b)
			s.release(b)
			s.granted(got, 5*time.Second)
		})
	}
}

// H5: a holder is slow, so that one after the other asks it for a heartbeat, and each
// time one comes. However long that goes on, it is not dead by marks that were of
// earlier heartbeats.
func TestHoleH5MarksOfEarlierHeartbeats(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		l := s.take(a, time.Second)
		var slow atomic.Bool
		way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			if slow.Load() && wire.IsBeat(writes[0]) {
				return nil, errFails
			}
			return send()
		})
		var marks atomic.Int64
		for i := range 3 {
			c, way := s.join()
			way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
				outs, err := send()
				if err == nil && outs[0].Won && strings.Contains(string(writes[0].Value), `"suspected":`) {
					marks.Add(1)
				}
				return outs, err
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { // who waits is not always the same
				for ctx.Err() == nil {
					c.Acquire(ctx, "a", holdfast.MaxWait(time.Duration(i+2)*holdfast.DefaultTTL))
				}
			}()
		}
		const times = 12
		for range times {
			slow.Store(true)
			time.Sleep(holdfast.DefaultTTL / 2)
			slow.Store(false)
			time.Sleep(holdfast.DefaultTTL / 5)
			if l.Err() != nil {
				t.Fatalf("after %d marks: %v", marks.Load(), l.Err())
			}
			s.holds(l)
		}
		if marks.Load() < times/2 {
			t.Errorf("it was asked for a heartbeat %d times only", marks.Load())
		}
	})
}

// H6: two have found a holder dead. One takes the lock, and then what the other has
// sent comes: neither its burial nor its claim takes away what is not the dead one's.
func TestHoleH6RemovedTwice(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, wayA := s.join()
		b := s.notified()
		c, wayC := s.join()
		l := s.take(a, time.Second)
		late := keep(wayC, func(w driver.Write) bool { return wire.IsTombstone(w) || wire.IsClaim(w) && w.Old != driver.IfEmpty }, always)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		gaveUp := make(chan bool)
		go func() {
			defer close(gaveUp)
			c.Acquire(ctx, "a")
		}()
		wayA.Off.Store(true)
		time.Sleep(holdfast.DefaultTTL + 5*time.Second)
		next := s.take(b, time.Minute)
		late.mu.Lock()
		burials := 0
		for _, w := range late.writes {
			if wire.IsTombstone(w) {
				burials++
			}
		}
		late.mu.Unlock()
		if burials == 0 && len(late.writes) == 0 {
			t.Fatal("the other has sent nothing")
		}
		late.lose(s)
		s.holds(next)
		<-gaveUp
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(next)
		s.lost(l)
	})
}

// H7: a heartbeat that changes nothing has lost, and its holder learns so at once, not
// when its time is over.
func TestHoleH7HeartbeatThatChangesNothing(t *testing.T) {
	for name, becomes := range map[string]func(value string) string{
		"a tombstone": func(v string) string { return strings.TrimSuffix(v, "}") + `,"dead":1,"by":"nobody"}` },
		"another's":   func(v string) string { return strings.Replace(v, `"nonce":"`, `"nonce":"0`, 1) },
		"nothing":     func(string) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, s *stage) {
				l := s.take(s.notified(), time.Second)
				info, err := s.look.Show(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				k := driver.Key{Space: driver.Sessions, Name: info.Holders[0].Owner.Session}
				r := s.record(k)
				r.Value = []byte(becomes(string(r.Value)))
				if _, err := s.store.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: r.Version, Value: r.Value}}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(beat + time.Second)
				s.lost(l)
			})
		})
	}
}

// H8: heartbeats are counted in whole numbers, however many there have been: one more is
// another one to those who look.
func TestHoleH8ManyHeartbeats(t *testing.T) {
	for _, many := range []int64{1 << 24, 1 << 53, 1 << 60} {
		play(t, func(t *testing.T, s *stage) {
			var to atomic.Pointer[driver.Key]
			a, way := s.join()
			way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
				if k := to.Load(); k == nil && wire.IsBeat(writes[0]) {
					to.Store(&writes[0].Key)
				}
				// The session counts from 1; the store sees it count from there.
				for i, w := range writes {
					if wire.IsBeat(w) {
						writes[i].Value = []byte(renumber(string(w.Value), many))
					}
				}
				outs, err := send()
				for i := range outs {
					if writes[i].Key.Space == driver.Sessions {
						outs[i].Record.Value = []byte(renumber(string(outs[i].Record.Value), -many))
					}
				}
				return outs, err
			})
			b := s.notified()
			l := s.take(a, time.Second)
			got := queue(t, b)
			time.Sleep(20 * holdfast.DefaultTTL)
			s.holds(l)
			if v := string(s.record(*to.Load()).Value); !strings.Contains(v, fmt.Sprintf(`"beat":%d`, many/1000)[:8]) {
				t.Errorf("beats are not counted from %d: %s", many, v)
			}
			s.release(l)
			s.granted(got, 5*time.Second)
		})
	}
}

// renumber adds to the number of a heartbeat.
func renumber(value string, by int64) string {
	before, after, ok := strings.Cut(value, `"beat":`)
	if !ok {
		return value
	}
	digits, rest, _ := strings.Cut(after, ",")
	var n int64
	fmt.Sscan(digits, &n)
	return fmt.Sprintf(`%s"beat":%d,%s`, before, n+by, rest)
}

// H9: processes that look the same (a cloned machine, a pid used again, one address for
// many) keep each other out, inherit nothing, and give back nothing of each other's.
func TestHoleH9SameProcessAgain(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		same := &holdfast.Options{Owner: holdfast.Owner{Host: "h", PID: 7, User: "u", Program: "p", Address: "10.0.0.1", Started: time.Unix(1, 0)}}
		way := wire.New(s.store)
		a := newClient(t, way, same)
		s.Cleanup(func() { a.Close() })
		l := s.take(a, time.Second)
		twin := newClient(t, s.store, same)
		s.refused(twin)
		if err := twin.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(l)
		way.Off.Store(true) // it dies, and starts again with the pid it had
		again := newClient(t, s.store, same)
		s.Cleanup(func() { again.Close() })
		s.refused(again)
		next := s.take(again, holdfast.DefaultTTL+5*time.Second)
		s.lost(l)
		s.holds(next)
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
	})
}

// H11: calls for locks hang, and heartbeats do not: what is held stays held.
func TestHoleH11HeartbeatsPassLocks(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		l := s.take(a, time.Second)
		hang := make(chan bool)
		way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			if wire.IsClaim(writes[0]) {
				<-hang
			}
			return send()
		})
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*holdfast.DefaultTTL)
				defer cancel()
				a.Acquire(ctx, fmt.Sprint("other", i))
			})
		}
		for range 4 {
			time.Sleep(holdfast.DefaultTTL)
			s.holds(l)
		}
		close(hang)
		all.Wait()
		s.holds(l)
	})
}

// H12: a process dies when its claim is there and its session is not. Nobody waits for
// that longer than for any who dies.
func TestHoleH12ClaimWithoutASession(t *testing.T) {
	for _, shared := range []bool{false, true} {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			b := s.notified()
			way.SetMeet(func(writes []driver.Write, _ wire.Send) ([]driver.Outcome, error) {
				for _, w := range writes {
					if wire.IsClaim(w) {
						if _, err := s.store.CompareAndSwap(context.Background(), []driver.Write{w}); err != nil {
							t.Error(err)
						}
					}
				}
				way.Off.Store(true)
				return nil, errFails
			})
			opts := []holdfast.Option{holdfast.MaxWait(0)}
			if shared {
				opts = append(opts, holdfast.Shared())
			}
			if _, err := a.Acquire(t.Context(), "a", opts...); !errors.Is(err, errFails) {
				t.Errorf("its answers are lost: %v", err)
			}
			info, err := s.look.Show(t.Context(), "a")
			if err != nil || len(info.Holders) != 1 {
				t.Fatalf("its claim is not there: %+v, %v", info, err)
			}
			s.holds(s.take(b, holdfast.DefaultTTL+3*time.Second))
		})
	}
}

// H13: a client that does not want to wait tries a few times and fails, and a waiter does not
// poll without pause.
func TestHoleH13NoBusyLoop(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, b := s.notified(), s.notified()
		s.take(a, time.Second)
		var calls atomic.Int64
		c := newClient(t, &callCount{Store: s.store, n: &calls}, nil) // nobody tells it of anything
		s.Cleanup(func() { c.Close() })
		s.refused(c)
		if n := calls.Load(); n > 10 {
			t.Errorf("%d calls to be told that another holds the lock", n)
		}
		calls.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait of a minute: %v", err)
		}
		if n := calls.Load(); n > 10*60 {
			t.Errorf("%d calls in a minute of waiting", n)
		}
		b.Close()
	})
}

// A callCount counts the calls of locks.
type callCount struct {
	driver.Store
	n *atomic.Int64
}

func (c *callCount) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	c.n.Add(1)
	return c.Store.Load(ctx, keys, how)
}

func (c *callCount) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if writes[0].Key.Space == driver.Names {
		c.n.Add(1)
	}
	return c.Store.CompareAndSwap(ctx, writes)
}

// H15: the TTL is changed while a lock is held. Its holder follows, and is judged by what
// it has followed, not by what its judge goes by.
func TestHoleH15TimeoutIsChanged(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		l := s.take(a, time.Second)
		got := queue(t, s.notified())
		const longer = 4 * holdfast.DefaultTTL
		if err := s.look.SetStoreTTL(t.Context(), longer); err != nil {
			t.Fatal(err)
		}
		time.Sleep(holdfast.DefaultTTL)
		way.Off.Store(true)
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(l)
		s.granted(got, longer)
		s.lost(l)
	})
}

// H16: who wants two locks and who wants them the other way round get them both, one
// after the other.
func TestHoleH16TwoLocksInAnyOrder(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		var all sync.WaitGroup
		for i := range 6 {
			c := s.notified()
			names := []string{"a", "b"}
			if i%2 == 1 {
				names = []string{"b", "a"}
			}
			all.Go(func() {
				for range 10 {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
					locks, err := c.AcquireAll(ctx, names)
					cancel()
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Second)
					if err := locks.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		began := time.Now()
		all.Wait()
		if took := time.Since(began); took > 5*time.Minute {
			t.Errorf("sixty seconds of work took %v", took)
		}
	})
}

// H17: a name that is too long is refused, not cut: names that differ in their last byte
// are two locks, in whatever letters.
func TestHoleH17LongNames(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, b := s.notified(), s.notified()
		for _, long := range []string{strings.Repeat("a", 1023), strings.Repeat("語", 340) + "abc"} {
			var held []*holdfast.Lock
			for i, c := range []*holdfast.Client{a, b} {
				l, err := c.TryAcquire(t.Context(), long+string(rune('0'+i)))
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, l)
			}
			for _, l := range held {
				s.holds(l)
				s.release(l)
			}
		}
		for _, tooLong := range []string{strings.Repeat("a", 1025), strings.Repeat("語", 342)} {
			if l, err := a.TryAcquire(t.Context(), tooLong); err == nil {
				t.Errorf("a name of %d bytes is the lock %q", len(tooLong), l.Name())
			}
		}
	})
}

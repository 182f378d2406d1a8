package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
)

// A past store counts calls and writes, and does to those of histories what it is told to.
type pastStore struct {
	driver.Store
	costly bool

	mu     sync.Mutex
	writes map[driver.Space]int
	calls  int
	swap   func(ctx context.Context, apply func() ([]driver.Outcome, error)) ([]driver.Outcome, error) // nil: apply
}

func newPastStore() *pastStore {
	return &pastStore{Store: memory.New(), writes: map[driver.Space]int{}}
}

func (s *pastStore) Unwrap() driver.Store { return s.Store }

func (s *pastStore) Traits() driver.Traits { return driver.Traits{CostlyWrites: s.costly} }

func (s *pastStore) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	return s.Store.Load(ctx, keys, how)
}

func (s *pastStore) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	s.mu.Lock()
	s.calls++
	for _, w := range writes {
		s.writes[w.Key.Space]++
	}
	swap := s.swap
	s.mu.Unlock()
	apply := func() ([]driver.Outcome, error) { return s.Store.CompareAndSwap(ctx, writes) }
	if swap != nil && writes[0].Key.Space == driver.Histories {
		return swap(ctx, apply)
	}
	return apply()
}

func (s *pastStore) counts() (calls, histories int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, s.writes[driver.Histories]
}

// pastOf is a history in short: each hold's client, end, time held and waited for, and what is
// said of the end; then the sums.
func pastOf(t *testing.T, c *holdfast.Client, name string) string {
	t.Helper()
	h, err := c.History(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range h.Holds {
		line := fmt.Sprintf("%s %s %v/%v", p.Owner.Program, p.End, p.To.Sub(p.From).Round(time.Second), p.Waited.Round(time.Second))
		if p.By.Program != "" {
			line += " by " + p.By.Program
		}
		if p.Why != "" {
			line += ": " + p.Why
		}
		lines = append(lines, line)
	}
	return fmt.Sprintf("%s +%d", strings.Join(lines, "; "), h.Others.Count)
}

func program(name string, ttl time.Duration) *holdfast.Options {
	return &holdfast.Options{TTL: ttl, Owner: holdfast.Owner{Host: "h", Program: name}}
}

// acquire takes a lock.
func acquire(t *testing.T, c *holdfast.Client, name string, opts ...holdfast.Option) *holdfast.Lock {
	t.Helper()
	l, err := c.Acquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// How each hold ended that is over, and by whom.
func TestHistory(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s *pastStore, a, b *holdfast.Client)
		want string
	}{
		{"released", func(t *testing.T, s *pastStore, a, b *holdfast.Client) {
			l := acquire(t, a, "n")
			time.Sleep(3 * time.Second)
			l.Release(t.Context())
		}, "a released 3s/0s +0"},
		{"a short hold is counted", func(t *testing.T, s *pastStore, a, b *holdfast.Client) {
			for range 3 {
				acquire(t, a, "n").Release(t.Context())
			}
		}, " +3"},
		{"one that was waited for is listed", func(t *testing.T, s *pastStore, a, b *holdfast.Client) {
			l := acquire(t, a, "n")
			time.AfterFunc(2*time.Second, func() { l.Release(t.Context()) })
			acquire(t, b, "n").Release(t.Context())
		}, "b released 0s/2s; a released 2s/0s +0"},
		{"closed", func(t *testing.T, s *pastStore, a, b *holdfast.Client) {
			acquire(t, a, "n")
			time.Sleep(2 * time.Second)
			a.Close()
		}, "a released 2s/0s +0"},
		{"broken", func(t *testing.T, s *pastStore, a, b *holdfast.Client) {
			l := acquire(t, a, "n")
			time.Sleep(2 * time.Second)
			go func() { <-l.Context().Done(); l.Release(t.Context()) }()
			if err := b.Break(t.Context(), "n", l.Token(), "ticket 815"); err != nil {
				t.Fatal(err)
			}
		}, "a broken 2s/0s by b: ticket 815 +0"},
		{"broken at once", func(t *testing.T, s *pastStore, a, b *holdfast.Client) {
			l := acquire(t, a, "n")
			time.Sleep(2 * time.Second)
			if err := b.BreakNow(t.Context(), "n", l.Token(), "ticket 815"); err != nil {
				t.Fatal(err)
			}
		}, "a broken 2s/0s by b: ticket 815 +0"},
		{"expired", func(t *testing.T, s *pastStore, a, b *holdfast.Client) {
			if _, err := a.AcquireFor(t.Context(), "n", 10*time.Second); err != nil {
				t.Fatal(err)
			}
			acquire(t, b, "n").Release(t.Context())
		}, "b released 0s/11s; a expired 10s/0s +0"},
		{"released by its token", func(t *testing.T, s *pastStore, a, b *holdfast.Client) {
			c, err := a.AcquireFor(t.Context(), "n", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if err := b.ReleaseToken(t.Context(), "n", c.Token); err != nil {
				t.Fatal(err)
			}
		}, "a released 5s/0s +0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPastStore()
				a, b := newClient(t, s, program("a", 6*time.Second)), newClient(t, s, program("b", 6*time.Second))
				defer a.Close()
				defer b.Close()
				test.run(t, s, a, b)
				time.Sleep(2*time.Second + time.Millisecond) // a heartbeat
				synctest.Wait()
				if got := pastOf(t, b, "n"); got != test.want {
					t.Errorf("%q, want %q", got, test.want)
				}
			})
		})
	}
}

// A hold whose client dies is told by whoever takes it over; that its client, which was only
// cut off, believes to have lost it is the same hold.
func TestHistoryOfTheDead(t *testing.T) {
	for _, comes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.New()
			cut := &wire.Cut{Store: s}
			a, b := newClient(t, cut, program("a", 6*time.Second)), newClient(t, s, program("b", 6*time.Second))
			defer b.Close()
			l := acquire(t, a, "n", holdfast.Reason("backup"))
			time.Sleep(3 * time.Second)
			cut.Off.Store(true)
			acquire(t, b, "n").Release(t.Context())
			if err := l.Err(); !errors.Is(err, holdfast.ErrLost) {
				t.Fatalf("its own client: %v", err)
			}
			want := `^b released 0s/[4-8]s; a taken over ([7-9]|1[01])s/0s by b$`
			if comes {
				cut.Off.Store(false)
				acquire(t, a, "other")
				want = `^b released 0s/[4-8]s; a taken over [78]s/0s by b$` // when it stopped believing
			}
			time.Sleep(3 * time.Second)
			a.Close()
			synctest.Wait()
			if got, _, ok := strings.Cut(pastOf(t, b, "n"), ": silent for"); !regexp.MustCompile(want).MatchString(got) || !ok {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// Taking a lock and giving it back costs no call and no write for the history: with it and
// without they make the same, and what has ended is told behind the next heartbeat, in one call.
func TestHistoryIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := make(map[int]int)
		for _, holds := range []int{0, 32} {
			s := newPastStore()
			c := newClient(t, s, program("a", 6*time.Second))
			if err := c.SetStoreHistory(t.Context(), holds); err != nil {
				t.Fatal(err)
			}
			acquire(t, c, "first").Release(t.Context())
			time.Sleep(2*time.Second + time.Millisecond) // it has read the setting
			before, _ := s.counts()
			for i := range 1000 {
				acquire(t, c, fmt.Sprint("n", i%100)).Release(t.Context())
			}
			synctest.Wait()
			after, histories := s.counts()
			if made[holds] = after - before; histories != 0 {
				t.Errorf("%d histories written before a heartbeat", histories)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if _, histories = s.counts(); holds == 0 && histories != 0 || holds > 0 && histories != 64 {
				t.Errorf("history %d: %d written behind a heartbeat", holds, histories)
			}
			c.Close()
			if h, err := c.History(t.Context(), "n7"); err != nil || h.Others.Count != int64(min(holds, 10)) {
				t.Errorf("history %d: %d counted, %v", holds, h.Others.Count, err)
			}
		}
		if made[0] != made[32] || made[0] != 2000 {
			t.Errorf("1000 times taken and given back: %d calls without history, %d with it, want 2000", made[0], made[32])
		}
	})
}

// What is told twice, since the first answer was lost, counts once.
func TestHistoryAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPastStore()
		c := newClient(t, s, program("a", 6*time.Second))
		defer c.Close()
		n := 0
		s.swap = func(ctx context.Context, apply func() ([]driver.Outcome, error)) ([]driver.Outcome, error) {
			outs, err := apply()
			if n++; n < 3 {
				return nil, errors.New("the answer is lost")
			}
			return outs, err
		}
		for range 5 {
			acquire(t, c, "n").Release(t.Context())
		}
		l := acquire(t, c, "n")
		time.Sleep(10 * time.Second)
		l.Release(t.Context())
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got, want := pastOf(t, c, "n"), "a released 10s/0s +5"; got != want || n < 2 {
			t.Errorf("%q after %d writes, want %q", got, n, want)
		}
	})
}

// A store that does not take histories delays neither locks nor Close.
func TestHistoryHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPastStore()
		c := newClient(t, s, program("a", 6*time.Second))
		s.swap = func(ctx context.Context, apply func() ([]driver.Outcome, error)) ([]driver.Outcome, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		for range 10 {
			l := acquire(t, c, "n")
			time.Sleep(1500 * time.Millisecond)
			began := time.Now()
			l.Release(t.Context())
			acquire(t, c, "n").Release(t.Context())
			if took := time.Since(began); took > 0 {
				t.Fatalf("a hand-over took %v", took)
			}
		}
		began := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

// What is kept until it can be told is bounded; what does not fit is counted.
func TestHistoryBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPastStore()
		c := newClient(t, s, program("a", time.Minute))
		defer c.Close()
		for range 300 {
			l := acquire(t, c, "n")
			time.Sleep(1010 * time.Millisecond)
			l.Release(t.Context())
			s.mu.Lock()
			s.swap = func(context.Context, func() ([]driver.Outcome, error)) ([]driver.Outcome, error) {
				return nil, errors.New("down")
			}
			s.mu.Unlock()
		}
		s.mu.Lock()
		s.swap = nil
		s.mu.Unlock()
		for range 30 {
			time.Sleep(20 * time.Second)
		}
		synctest.Wait()
		h, err := c.History(t.Context(), "n")
		if err != nil || len(h.Holds) != 32 || h.Others.Count != 300-32 {
			t.Errorf("%d holds and %d others, %v", len(h.Holds), h.Others.Count, err)
		}
	})
}

// Where writes are rounds of consensus there is no history unless it is set; clients follow the
// setting while they run, whoever sets their TTL.
func TestHistorySetting(t *testing.T) {
	for _, own := range []time.Duration{0, 6 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newPastStore()
			s.costly = true
			c := newClient(t, s, program("a", own))
			defer c.Close()
			hold := func() string {
				l := acquire(t, c, "n")
				time.Sleep(2 * time.Second)
				l.Release(t.Context())
				time.Sleep(6 * time.Second)
				synctest.Wait()
				return pastOf(t, c, "n")
			}
			set := func(n, want int) {
				if err := c.SetStoreHistory(t.Context(), n); err != nil {
					t.Fatal(err)
				}
				if got, err := c.StoreHistory(t.Context()); got != want || err != nil {
					t.Errorf("set to %d: %d, %v", n, got, err)
				}
				time.Sleep(2 * time.Minute)
			}
			if n, err := c.StoreHistory(t.Context()); n != 0 || err != nil {
				t.Errorf("unless set: %d, %v", n, err)
			}
			if got := hold(); got != " +0" {
				t.Errorf("unless set: %q", got)
			}
			set(128, 128)
			if got := hold(); got != "a released 2s/0s +0" {
				t.Errorf("128: %q", got)
			}
			set(0, 0)
			if got := hold(); got != "a released 2s/0s +0" {
				t.Errorf("off again: %q", got)
			}
			if err := c.SetStoreHistory(t.Context(), 33); err == nil {
				t.Error("33 is accepted")
			}
		})
	}
}

// A success is on the store's disk before the lock is given back, also where no history is kept.
func TestSucceeded(t *testing.T) {
	for _, holds := range []int{0, 32} {
		synctest.Test(t, func(t *testing.T) {
			s := newPastStore()
			a, b := newClient(t, s, program("a", 0)), newClient(t, s, program("b", 0))
			defer a.Close()
			defer b.Close()
			if err := a.SetStoreHistory(t.Context(), holds); err != nil {
				t.Fatal(err)
			}
			if h, err := b.History(t.Context(), "n"); err != nil || h.Success != nil {
				t.Errorf("before: %+v, %v", h.Success, err)
			}
			l := acquire(t, a, "n")
			time.Sleep(2 * time.Second)
			if err := l.Succeeded(t.Context()); err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			time.Sleep(time.Hour)
			h, err := b.History(t.Context(), "n")
			if err != nil || h.Success == nil || h.Success.Token != l.Token() || h.Success.Ago != time.Hour || !h.Success.At.Equal(at) || h.Success.By.Program != "a" {
				t.Errorf("%+v, %v", h.Success, err)
			}
			l.Release(t.Context())
			time.Sleep(6 * time.Second)
			l = acquire(t, b, "n")
			l.Release(t.Context())
			if h, err := b.History(t.Context(), "n"); err != nil || h.Success == nil || len(h.Holds) != min(holds, 1) {
				t.Errorf("after: %+v, %v", h, err)
			}
		})
	}
}

// Histories go when their names were idle for 30 days, and those with a success later; all are
// listed before.
func TestHistoriesAreSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		holder, c := newClient(t, s, program("a", 0)), newClient(t, s, nil)
		defer c.Close()
		for _, name := range []string{"b", "a/2", "a/1", "c", "job"} {
			l := acquire(t, holder, name)
			time.Sleep(2 * time.Second)
			if name == "job" {
				if err := l.Succeeded(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			l.Release(t.Context())
		}
		holder.Close()
		names := func(prefix string) (all []string) {
			for h, err := range c.Histories(t.Context(), prefix) {
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, h.Name)
			}
			return all
		}
		for _, test := range []struct {
			after  time.Duration
			prefix string
			want   []string
		}{
			{0, "", []string{"a/1", "a/2", "b", "c", "job"}},
			{0, "a/", []string{"a/1", "a/2"}},
			{29 * 24 * time.Hour, "", []string{"a/1", "a/2", "b", "c", "job"}},
			{2 * 24 * time.Hour, "", []string{"job"}},
			{370 * 24 * time.Hour, "", nil},
		} {
			time.Sleep(test.after)
			if _, err := c.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := names(test.prefix); !slices.Equal(got, test.want) {
				t.Errorf("after %v: %q, want %q", test.after, got, test.want)
			}
		}
	})
}

// slowHistories takes its time to load histories.
type slowHistories struct{ driver.Store }

func (s slowHistories) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	for _, k := range keys {
		if k.Space == driver.Histories {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			break
		}
	}
	return s.Store.Load(ctx, keys, how)
}

// Close waits for what is being written into the history of a lock that a client has just given
// back by its token, as a command does that ends at once.
func TestCloseWaitsForHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		c := newClient(t, slowHistories{m}, nil)
		claim, err := c.AcquireFor(t.Context(), "a", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := c.ReleaseToken(t.Context(), "a", claim.Token); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it is being told
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		looks := newClient(t, m, &holdfast.Options{ReadOnly: true})
		defer looks.Close()
		h, err := looks.History(t.Context(), "a")
		if err != nil || len(h.Holds) != 1 || h.Holds[0].Token != claim.Token {
			t.Errorf("history %+v, error %v", h, err)
		}
	})
}

// A lock without a process that is given back after a moment is counted, by a program that goes on as
// by one that ends at once.
func TestHistoryOfTheDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		a, b := newClient(t, s, program("a", 0)), newClient(t, s, program("b", 0))
		defer a.Close()
		defer b.Close()
		l, err := a.AcquireFor(t.Context(), "n", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.ReleaseToken(t.Context(), "n", l.Token); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := pastOf(t, a, "n"); got != " +1" {
			t.Errorf("%q", got)
		}
	})
}

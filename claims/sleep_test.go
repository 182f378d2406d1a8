package claims

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// While the machine sleeps its clocks go on and its timers do not. Within a second after it wakes up
// a lock whose trust has ended is lost, and one that is due is renewed.
func TestSleep(t *testing.T) {
	for _, test := range []struct {
		name  string
		sleep func(l *Locker) time.Duration
		lost  bool
	}{
		{"longer than trust", func(l *Locker) time.Duration { return l.trust() }, true},
		{"almost as long", func(l *Locker) time.Duration { return l.trust() - 10*time.Second }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var slept atomic.Int64
				base := time.Now()
				now := func() time.Time { return time.Now().Add(time.Duration(slept.Load())) }
				beats := 0
				x := newTable()
				l, err := New(x.as("a"), &Options{
					clocks: &clocks{now, func() time.Duration { return now().Sub(base) + time.Hour }},
					Trace:  &holdfast.Trace{Heartbeat: func(context.Context, holdfast.Event) { beats++ }},
				})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(t.Context())
				lock := acquire(t, l)
				if test.lost { // with no I/O in the way
					x.doom(everyCall("add", fate{takes: time.Minute}))
				}
				synctest.Wait() // its timers run
				slept.Store(int64(test.sleep(l)))
				time.Sleep(2 * time.Second)
				synctest.Wait()
				cause := context.Cause(lock.Context())
				switch {
				case test.lost && !errors.Is(cause, holdfast.ErrLost):
					t.Errorf("two seconds after it woke up the lock has ended with %v, want it lost", cause)
				case !test.lost && (cause != nil || beats != 1):
					t.Errorf("two seconds after it woke up the lock has ended with %v, and was renewed %d times, want once", cause, beats)
				}
			})
		})
	}
}

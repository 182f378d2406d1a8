package machine

import (
	"testing"
	"testing/synctest"
	"time"
)

const day = 24 * time.Hour

func TestRate(t *testing.T) {
	for _, rate := range []int64{950_000, True, 1_050_000, 2_000_000} {
		synctest.Test(t, func(t *testing.T) {
			m := New(rate, 1)
			began := time.Now()
			timer := m.NewTimer(day)
			fired := make(chan time.Duration, 1)
			m.AfterFunc(day, func() { fired <- m.Now() })
			<-timer.C
			if at := m.Now(); at < day || at > day+time.Second {
				t.Errorf("rate %d: a timer of a day rings at %v", rate, at)
			}
			if at := <-fired; at < day || at > day+time.Second {
				t.Errorf("rate %d: a function of a day is called at %v", rate, at)
			}
			want := time.Duration(float64(day) * True / float64(rate))
			if took := time.Since(began); (took - want).Abs() > time.Second {
				t.Errorf("rate %d: it took %v, want %v", rate, took, want)
			}
		})
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(True, 1)
		timer := m.NewTimer(10 * time.Second)
		time.Sleep(4 * time.Second)
		m.Sleep(time.Minute)
		time.Sleep(30 * time.Second)
		if at := m.Now(); at != 34*time.Second {
			t.Errorf("after 34 s, 30 of them asleep, its clock says %v", at)
		}
		short := m.NewTimer(time.Second)
		<-short.C
		if at := m.Now(); at < 65*time.Second || at > 66*time.Second {
			t.Errorf("a timer set asleep rings at %v, want 65 s", at)
		}
		<-timer.C
		if at := m.Now(); at < 70*time.Second || at > 71*time.Second {
			t.Errorf("a timer of 10 s rings at %v, want 70 s", at)
		}
	})
}

func TestReset(t *testing.T) {
	for _, m := range []*Machine{nil, New(True, 1)} {
		synctest.Test(t, func(t *testing.T) {
			if m != nil {
				m = New(True, 1)
			}
			timer := m.NewTimer(time.Second)
			time.Sleep(2 * time.Second)
			timer.Reset(time.Second) // and what it had rung for is gone
			began := time.Now()
			<-timer.C
			if took := time.Since(began); took < time.Second || took > 1010*time.Millisecond {
				t.Errorf("rings after %v", took)
			}
			timer.Reset(time.Second)
			timer.Stop()
			select {
			case <-timer.C:
				t.Error("a stopped timer rings")
			case <-time.After(time.Minute):
			}
		})
	}
}

func TestChance(t *testing.T) {
	draw := func(m *Machine) (int64, [16]byte) {
		var b [16]byte
		m.Read(b[:])
		return m.Int64N(1 << 60), b
	}
	n, b := draw(New(True, 7))
	if k, c := draw(New(True, 7)); k != n || c != b {
		t.Error("one seed, two chances")
	}
	if k, c := draw(New(True, 8)); k == n || c == b {
		t.Error("two seeds, one chance")
	}
	if k, c := draw(nil); k == n || c == b {
		t.Error("the real machine plays a seed")
	}
}

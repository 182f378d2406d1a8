//go:build linux

package life

import (
	"os"
	"sync"
	"time"
)

// Slowness measures by how much this machine is late to wake who sleeps, and how
// long its disk takes, so that a limit on others is not a limit on them: a
// hand-over is a few wake-ups and writes. It writes to a temporary file.
func Slowness() (stop func() time.Duration, err error) {
	w := new(worst)
	if err := gauge.enter(w); err != nil {
		return nil, err
	}
	return func() time.Duration {
		gauge.leave(w)
		return 2*w[wakeUp] + 3*w[disk]
	}, nil
}

// What is measured.
const (
	wakeUp = iota
	disk
	kinds
)

// A worst is the worst of what was measured since somebody began to look.
type worst [kinds]time.Duration

// A machine is measured once for all who look at one time.
type machine struct {
	mu   sync.Mutex
	open map[*worst]bool
	stop chan struct{} // closed when nobody looks
}

var gauge = machine{open: make(map[*worst]bool)}

func (m *machine) enter(w *worst) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.open) == 0 {
		file, err := os.CreateTemp("", "gauge-")
		if err != nil {
			return err
		}
		os.Remove(file.Name())
		m.stop = make(chan struct{})
		go m.measure(m.stop, wakeUp, late)
		go func() {
			defer file.Close()
			m.measure(m.stop, disk, func() time.Duration { return written(file) })
		}()
	}
	m.open[w] = true
	return nil
}

func (m *machine) leave(w *worst) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if delete(m.open, w); len(m.open) == 0 {
		close(m.stop)
	}
}

// measure measures again and again.
func (m *machine) measure(stop chan struct{}, kind int, once func() time.Duration) {
	for {
		took := once()
		m.mu.Lock()
		for w := range m.open {
			w[kind] = max(w[kind], took)
		}
		m.mu.Unlock()
		select {
		case <-stop:
			return
		default:
		}
	}
}

// late is by how much who sleeps for a millisecond is woken late.
func late() time.Duration {
	before := Now()
	time.Sleep(time.Millisecond)
	return time.Duration(Now()-before) - time.Millisecond
}

// written is how long the disk takes for a page, asked now and then.
func written(file *os.File) time.Duration {
	time.Sleep(20 * time.Millisecond)
	before := Now()
	file.WriteAt(make([]byte, 4096), 0)
	file.Sync()
	return time.Duration(Now() - before)
}

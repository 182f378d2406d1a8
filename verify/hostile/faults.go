//go:build linux

package hostile

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Faults are what a host is told wrongly, and how often: each a part of the
// operations of its kind.
type Faults struct {
	Stale time.Duration // the longest that caches of names, attributes and listings are old
	Views bool          // also names that were never asked for are looked up in old listings

	Refused float64       // changes: EIO, and nothing was done
	Lost    float64       // changes: EIO, and all was done
	Again   float64       // changes of names: done, and told as a retransmission is
	Late    float64       // changes: EIO, and it is done later
	Twice   float64       // changes: done, and done again later
	LateBy  time.Duration // the longest that Late and Twice mean
	Sync    float64       // fsync: EIO, and the data never becomes durable
	Read    float64       // all else: EIO
	Full    float64       // changes that take space: ENOSPC
	Slow    float64       // all: takes longer, up to SlowBy, before or after it is done
	SlowBy  time.Duration

	Only string          // only operations of this name have these faults: rename, fsyncdir, …
	Held <-chan struct{} // changes are done, and answered when this is closed
}

// A Cut is how a host is cut off.
type Cut int

const (
	Connected Cut = iota
	Hangs         // calls wait, as those of a hard mount do
	Fails         // calls fail after a while, as those of a soft mount do, and may have been done
)

// Set has other faults from now on.
func (m *Mount) Set(f Faults) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = f
}

// CutOff cuts the host off, or connects it again.
func (m *Mount) CutOff(how Cut) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cut != Connected {
		close(m.healed)
	}
	if m.cut = how; how != Connected {
		m.healed = make(chan struct{})
	}
}

// Counts are how often each fault has hit.
func (m *Mount) Counts() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := make(map[string]int)
	for k, v := range m.counts {
		counts[k] = v
	}
	return counts
}

func (m *Mount) count(what string) { m.counts[what]++ }

func (m *Mount) chance(p float64) bool { return p > 0 && m.rng.Float64() < p }

// upTo is a random time.
func (m *Mount) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(m.rng.Int64N(int64(d)) + 1)
}

// later does something after a while, unless the server is closed.
func (s *Server) later(after time.Duration, wait <-chan struct{}, do func()) {
	s.lateMu.Lock()
	s.late++
	s.lateMu.Unlock()
	go func() {
		defer func() {
			s.lateMu.Lock()
			s.late--
			s.lateMu.Unlock()
			s.none.Broadcast()
		}()
		if wait != nil {
			select {
			case <-wait:
			case <-s.closed:
				return
			}
		}
		select {
		case <-time.After(after):
			do()
		case <-s.closed:
		}
	}()
}

// A kind of operation.
type kind struct {
	change bool          // it changes something
	space  bool          // and takes space
	again  syscall.Errno // what a retransmission is told; 0: what it was told first
	sync   bool
}

var (
	reads   = kind{}
	writes  = kind{change: true, space: true}
	sets    = kind{change: true}
	makes   = kind{change: true, space: true, again: syscall.EEXIST}
	renames = kind{change: true, again: syscall.ENOENT}
	removes = kind{change: true, again: syscall.ENOENT}
	syncs   = kind{sync: true}
)

// call does an operation of a process as the faults have it. do may be called
// once, twice, never, or long after call has returned. Of its answer only that
// counts which call returns.
func (m *Mount) call(pid uint32, name string, k kind, do func() syscall.Errno) syscall.Errno {
	if done, err := m.reach(pid, k, do); done {
		return err
	}
	m.mu.Lock()
	f := m.faults
	if f.Only != "" && f.Only != name {
		f = Faults{}
	}
	var before, after time.Duration
	if m.chance(f.Slow) {
		m.count("slow")
		if before = m.upTo(f.SlowBy); m.rng.IntN(2) == 0 {
			before, after = 0, before
		}
	}
	lateBy := m.upTo(f.LateBy)
	what := ""
	switch {
	case k.sync && m.chance(f.Sync):
		what = "fsync failed"
	case k.change && m.chance(f.Refused):
		what = "refused"
	case k.change && m.chance(f.Lost):
		what = "reply lost"
	case k.change && k.again != 0 && m.chance(f.Again):
		what = "retransmitted"
	case k.change && m.chance(f.Late):
		what = "late"
	case k.change && m.chance(f.Twice):
		what = "twice"
	case k.space && m.chance(f.Full):
		what = "disk full"
	case !k.change && !k.sync && m.chance(f.Read):
		what = "read failed"
	}
	if what != "" {
		m.count(what)
	}
	m.mu.Unlock()
	time.Sleep(before)
	defer time.Sleep(after)
	if f.Held != nil && k.change {
		defer func() { <-f.Held }()
	}
	switch what {
	case "refused", "read failed":
		return syscall.EIO
	case "disk full":
		return syscall.ENOSPC
	case "fsync failed":
		return notSynced
	case "reply lost":
		do()
		return syscall.EIO
	case "retransmitted":
		if err := do(); err != 0 {
			return err
		}
		return k.again
	case "late":
		m.server.later(lateBy, nil, func() { do() })
		return syscall.EIO
	case "twice":
		m.server.later(lateBy, nil, func() { do() })
	}
	return do()
}

// reach waits until the host is connected, or says what becomes of a call when
// it is not.
func (m *Mount) reach(pid uint32, k kind, do func() syscall.Errno) (done bool, err syscall.Errno) {
	for {
		m.mu.Lock()
		cut, healed := m.cut, m.healed
		late, lost, wait := m.rng.IntN(4) == 0, m.rng.IntN(4) == 0, m.upTo(200*time.Millisecond)
		if cut != Connected {
			m.count("cut off")
		}
		m.mu.Unlock()
		switch cut {
		case Connected:
			return false, 0
		case Fails:
			time.Sleep(wait)
			switch {
			case k.change && late:
				m.server.later(wait, healed, func() { do() })
			case k.change && lost:
				do()
			}
			return true, syscall.EIO
		}
		for waits := true; waits; {
			select {
			case <-healed:
				waits = false
			case <-m.server.closed:
				return true, syscall.EIO
			case <-time.After(20 * time.Millisecond):
				if killed(pid) { // what it has sent may still be done
					if k.change && late {
						m.server.later(wait, healed, func() { do() })
					}
					return true, syscall.EINTR
				}
			}
		}
	}
}

// killed says whether a thread has been sent SIGKILL. Other signals do not
// interrupt a call.
func killed(pid uint32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return true
	}
	for _, what := range []string{"\nSigPnd:\t", "\nShdPnd:\t"} {
		if _, after, ok := bytes.Cut(text, []byte(what)); ok {
			line, _, _ := bytes.Cut(after, []byte("\n"))
			set, _ := strconv.ParseUint(string(line), 16, 64)
			if set&(1<<(uint(syscall.SIGKILL)-1)) != 0 {
				return true
			}
		}
	}
	return false
}

func itoa(n uint64) string { return strconv.FormatUint(n, 36) }

// notSynced is what call returns of an fsync that has to fail.
const notSynced = syscall.Errno(1 << 15)

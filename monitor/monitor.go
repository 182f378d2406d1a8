// Package monitor measures what a client does, and answers whether it is healthy. It needs only the
// standard library; the modules prometheus and otel hand the same instruments to the libraries of
// these names.
//
//	m := monitor.New(nil)
//	client, err := holdfast.New(store, &holdfast.Options{Trace: m.Trace()})
//	http.Handle("/metrics", m) // for a Prometheus server
//	http.Handle("/readyz", monitor.Ready(client))
//
// No label comes from a client, so the number of time series has a bound. The name of a lock
// becomes a label only through Options.Lock, and where this process stands for election.
package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A Kind says how an instrument's numbers are to be read.
type Kind string

const (
	Counter   Kind = "counter"   // only grows
	Gauge     Kind = "gauge"     // goes up and down
	Histogram Kind = "histogram" // of durations, in seconds
)

// An Instrument is something that is measured.
type Instrument struct {
	Name   string   // as OpenTelemetry writes it: holdfast.lock.held
	Kind   Kind     //
	Unit   string   // s, {lock}, {session}, {transaction}
	Help   string   //
	Labels []string // in addition to lock, if Options.Lock is set
	Lock   bool     // is about locks, and may have the label lock
}

// Prometheus is the instrument's name as Prometheus writes it.
func (i Instrument) Prometheus() string {
	name := strings.ReplaceAll(i.Name, ".", "_")
	if i.Unit == "s" {
		name += "_seconds"
	}
	if i.Kind == Counter {
		name += "_total"
	}
	return name
}

// The instruments of a client.
var (
	LockWait = Instrument{"holdfast.lock.wait.duration", Histogram, "s", "From a request for a lock to its outcome.", []string{"outcome", "queued"}, true}
	LockHold = Instrument{"holdfast.lock.hold.duration", Histogram, "s", "From the grant of a lock to its end.", []string{"end"}, true}
	LockHeld = Instrument{"holdfast.lock.held", Gauge, "{lock}", "Locks that are held.", []string{"mode"}, true}
	Waiting  = Instrument{"holdfast.lock.waiting", Gauge, "{lock}", "Requests that stand in line.", []string{"mode"}, true}
	LockLost = Instrument{"holdfast.lock.lost", Counter, "{lock}", "Locks that were lost while their work went on.", []string{"reason"}, true}
	Broken   = Instrument{"holdfast.lock.broken", Counter, "{lock}", "Claims of others that this client broke.", nil, true}
	TookOver = Instrument{"holdfast.lock.taken_over", Counter, "{lock}", "Locks of dead holders that this client freed for the next waiter.", nil, true}
	Leading  = Instrument{"holdfast.leader", Gauge, "1", "1 while this process leads, 0 while it has stood for the election of that name.", []string{"name"}, false}
	Refused  = Instrument{"holdfast.fence.refused", Counter, "{transaction}", "Transactions that a fence refused, because the lock had been lost.", nil, true}
	Beat     = Instrument{"holdfast.session.beat.duration", Histogram, "s", "Heartbeats, from sending to the answer.", []string{"result"}, false}
	Window   = Instrument{"holdfast.session.window.remaining", Gauge, "s", "What is left of the trust window. When it is over all locks are lost: this predicts a loss.", nil, false}
	TTL      = Instrument{"holdfast.session.ttl", Gauge, "s", "The TTL of the session whose trust window that is.", nil, false}
	Suspects = Instrument{"holdfast.session.suspected", Counter, "{session}", "Silent sessions of others that were asked for a heartbeat.", nil, false}
	Dead     = Instrument{"holdfast.session.declared_dead", Counter, "{session}", "Sessions of others that were declared dead, so that their locks could be taken over.", nil, false}
	Call     = Instrument{"holdfast.store.call.duration", Histogram, "s", "Calls to the store.", []string{"operation", "result"}, false}
)

// Instruments are those of a client, in the order in which they are written.
var Instruments = []Instrument{LockWait, LockHold, LockHeld, Waiting, LockLost, Broken, TookOver, Leading, Refused, Beat, Window, TTL, Suspects, Dead, Call}

// Buckets are the upper bounds of the histograms, in seconds.
var Buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}

// Options are the settings of a Monitor. The zero value of each field is its default.
type Options struct {
	// Lock turns a lock's name into the label "lock", such as the part before its first slash. nil:
	// there is no such label. It must have few values: each is a time series.
	Lock func(name string) string
}

// A Monitor has the numbers of a client, or of several together.
type Monitor struct {
	opts Options

	mu      sync.Mutex
	series  map[string]map[string]*Sample // by instrument, and by the values of the labels
	windows map[string]*window            // by session
}

// A window is the trust window of a session.
type window struct {
	until time.Time
	ttl   time.Duration
	ended time.Time // when the session was over; zero: it lives
	lost  bool      // it ended by a loss
}

// rememberEnded is how long a session that was lost shows an empty window, if there is no other.
const rememberEnded = 5 * time.Minute

// A Sample is one number, or one histogram.
type Sample struct {
	Labels  []string // names and values, alternating
	Value   float64  // of a histogram: the sum
	Count   uint64   // of a histogram
	Buckets []uint64 // of a histogram: how many are at most Buckets[i]
}

// New makes a monitor. opts may be nil.
func New(opts *Options) *Monitor {
	m := &Monitor{series: map[string]map[string]*Sample{}, windows: map[string]*window{}}
	if opts != nil {
		m.opts = *opts
	}
	if m.opts.Lock == nil { // else the labels are not known yet
		for _, reason := range Reasons {
			m.add(LockLost, holdfast.Event{}, 0, "reason", reason)
		}
	}
	return m
}

// Trace returns the Trace for the options of a client. It can be joined to another with Trace.And.
func (m *Monitor) Trace() *holdfast.Trace {
	return &holdfast.Trace{
		Queued: func(_ context.Context, e holdfast.Event) {
			m.add(Waiting, e, 1, "mode", Mode(e.Slots))
			m.leads(e, 0)
		},
		Acquired: func(_ context.Context, e holdfast.Event) {
			if e.Queued {
				m.add(Waiting, e, -1, "mode", Mode(e.Slots))
			}
			m.observe(LockWait, e, e.Waited, "outcome", "acquired", "queued", fmt.Sprint(e.Queued))
			if !e.Detached {
				m.add(LockHeld, e, 1, "mode", Mode(e.Slots))
			}
			m.leads(e, 1)
		},
		Refused: func(_ context.Context, e holdfast.Event) {
			m.observe(LockWait, e, e.Waited, "outcome", Outcome(e.Err), "queued", "false")
		},
		GaveUp: func(_ context.Context, e holdfast.Event) {
			m.add(Waiting, e, -1, "mode", Mode(e.Slots))
			m.observe(LockWait, e, e.Waited, "outcome", Outcome(e.Err), "queued", "true")
		},
		Released: func(_ context.Context, e holdfast.Event) {
			if !e.Detached {
				m.observe(LockHold, e, e.Held, "end", "released")
				m.add(LockHeld, e, -1, "mode", Mode(e.Slots))
			}
			m.leads(e, -1)
		},
		Returned: func(_ context.Context, e holdfast.Event) { m.observe(LockHold, e, e.Held, "end", "released") },
		Lost: func(_ context.Context, e holdfast.Event) {
			m.observe(LockHold, e, e.Held, "end", Lost(e))
			m.add(LockHeld, e, -1, "mode", Mode(e.Slots))
			m.add(LockLost, e, 1, "reason", Lost(e))
			m.leads(e, -1)
		},
		FenceRefused: func(_ context.Context, e holdfast.Event) { m.add(Refused, e, 1) },
		Broken:       func(_ context.Context, e holdfast.Event) { m.add(Broken, e, 1) },
		Suspected:    func(_ context.Context, e holdfast.Event) { m.add(Suspects, e, 1) },
		TakenOver:    func(_ context.Context, e holdfast.Event) { m.add(TookOver, e, 1) },
		DeclaredDead: func(_ context.Context, e holdfast.Event) { m.add(Dead, e, 1) },
		Heartbeat: func(_ context.Context, e holdfast.Event) {
			m.observe(Beat, e, e.Took, "result", Result(e.Err))
			m.follow(e)
		},
		Shortened:    func(_ context.Context, e holdfast.Event) { m.follow(e) },
		SessionEnded: func(_ context.Context, e holdfast.Event) { m.ended(e) },
		StoreCall: func(_ context.Context, e holdfast.Event) {
			m.observe(Call, e, e.Took, "operation", e.Operation, "result", Result(e.Err))
		},
	}
}

// Mode is a label: exclusive, shared or slots.
func Mode(slots int) string {
	switch slots {
	case 0:
		return "shared"
	case 1:
		return "exclusive"
	}
	return "slots"
}

// Outcome is a label for a request that failed: held, canceled or error.
func Outcome(err error) string {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	case errors.Is(err, holdfast.ErrHeld):
		return "held"
	}
	return "error"
}

// Reasons are the labels of LockLost. Without Options.Lock its counters begin at 0, so that the
// first loss of a process is an increase, too.
var Reasons = []string{"broken", "lease"}

// Lost is a label for how a lock was lost: broken, or lost because its lease was over.
func Lost(e holdfast.Event) string {
	if e.Broken {
		return "broken"
	}
	return "lease"
}

// Result is a label: ok or error.
func Result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// sample is a series; m.mu is held.
func (m *Monitor) sample(i Instrument, e holdfast.Event, labels []string) *Sample {
	if i.Lock && m.opts.Lock != nil {
		labels = append(labels, "lock", strings.ToValidUTF8(m.opts.Lock(e.Name), "\uFFFD"))
	}
	all := m.series[i.Name]
	if all == nil {
		all = map[string]*Sample{}
		m.series[i.Name] = all
	}
	key := strings.Join(labels, "\xff")
	s := all[key]
	if s == nil {
		s = &Sample{Labels: slices.Clone(labels)}
		if i.Kind == Histogram {
			s.Buckets = make([]uint64, len(Buckets))
		}
		all[key] = s
	}
	return s
}

func (m *Monitor) add(i Instrument, e holdfast.Event, n float64, labels ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sample(i, e, labels).Value += n
}

// leads counts the seats that this process has, by the names of its elections.
func (m *Monitor) leads(e holdfast.Event, n float64) {
	if e.Election {
		m.add(Leading, e, n, "name", strings.ToValidUTF8(e.Name, "\uFFFD"))
	}
}

func (m *Monitor) observe(i Instrument, e holdfast.Event, d time.Duration, labels ...string) {
	v := max(d, 0).Seconds()
	n, _ := slices.BinarySearch(Buckets, v)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sample(i, e, labels)
	s.Value += v
	s.Count++
	for ; n < len(Buckets); n++ {
		s.Buckets[n]++
	}
}

// follow notes the trust window of a session. A session that is not open yet has none, nor does the
// lease of another package.
func (m *Monitor) follow(e holdfast.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.windows[e.Session]
	switch {
	case w == nil && (e.Err != nil || e.Session == ""):
		return
	case w == nil:
		w = new(window)
		m.windows[e.Session] = w
	}
	w.until, w.ttl = e.Until, e.TTL
}

// ended notes that a session is over. Its events may still come, because several goroutines send
// them.
func (m *Monitor) ended(e holdfast.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(m.windows, func(_ string, w *window) bool { return w.forgotten(now) })
	w := m.windows[e.Session]
	if w == nil {
		w = new(window)
		m.windows[e.Session] = w
	}
	w.ended, w.lost = now, e.Reason != ""
}

func (w *window) forgotten(now time.Time) bool {
	return !w.ended.IsZero() && now.Sub(w.ended) > rememberEnded
}

// Remaining returns what is left of the trust window, and the TTL of its session. With several
// sessions it is the window that ends first. known is true if there is a session, or if one was
// lost within the last five minutes and none came after it.
func (m *Monitor) Remaining() (left, ttl time.Duration, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var lives, lost *window
	for _, w := range m.windows {
		switch {
		case w.ended.IsZero() && (lives == nil || w.until.Before(lives.until)):
			lives = w
		case w.lost && !w.forgotten(now) && (lost == nil || w.ended.After(lost.ended)):
			lost = w
		}
	}
	switch {
	case lives != nil:
		return max(0, lives.until.Sub(now)), lives.ttl, true
	case lost != nil:
		return 0, lost.ttl, true
	}
	return 0, 0, false
}

// Samples returns the current numbers of an instrument, in the order of their labels.
func (m *Monitor) Samples(i Instrument) []Sample {
	if i.Name == Window.Name || i.Name == TTL.Name {
		left, ttl, known := m.Remaining()
		switch {
		case !known:
			return nil
		case i.Name == TTL.Name:
			left = ttl
		}
		return []Sample{{Value: left.Seconds()}}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []Sample
	for _, s := range m.series[i.Name] {
		one := *s
		one.Buckets = slices.Clone(s.Buckets)
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Sample) int {
		return cmp.Compare(strings.Join(a.Labels, "\xff"), strings.Join(b.Labels, "\xff"))
	})
	return list
}

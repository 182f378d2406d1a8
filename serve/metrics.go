package serve

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/monitor"
)

// What a server measures in addition to monitor.Instruments: its requests, the holds that it
// keeps, and what is in the store.
var (
	requests    = monitor.Instrument{Name: "http.server.request.duration", Kind: monitor.Histogram, Unit: "s", Help: "Requests to the API and the page, from their arrival to the end of the answer.", Labels: []string{"route", "method", "status"}}
	served      = monitor.Instrument{Name: "holdfast.serve.holds", Kind: monitor.Gauge, Unit: "{hold}", Help: "Holds that this server keeps: by an open connection, or by a request that waits.", Labels: []string{"kind", "state"}}
	lapsed      = monitor.Instrument{Name: "holdfast.serve.lapsed", Kind: monitor.Counter, Unit: "{hold}", Help: "Answers that a hold is over because it was silent for its TTL.", Labels: nil}
	storeHeld   = monitor.Instrument{Name: "holdfast.store.held", Kind: monitor.Gauge, Unit: "{lock}", Help: "Claims in the store that hold.", Labels: []string{"prefix"}}
	storeWaits  = monitor.Instrument{Name: "holdfast.store.waiting", Kind: monitor.Gauge, Unit: "{lock}", Help: "Claims in the store that wait.", Labels: []string{"prefix"}}
	storeWait   = monitor.Instrument{Name: "holdfast.store.wait.longest", Kind: monitor.Gauge, Unit: "s", Help: "How long the claim that waits for the longest time has waited, not counting candidates of elections.", Labels: []string{"prefix"}}
	storeBeat   = monitor.Instrument{Name: "holdfast.store.beat.oldest", Kind: monitor.Gauge, Unit: "s", Help: "Age of the oldest heartbeat of a holder, by the store's clock.", Labels: []string{"prefix"}}
	storeAsked  = monitor.Instrument{Name: "holdfast.store.suspected", Kind: monitor.Gauge, Unit: "{lock}", Help: "Holders that were asked for a heartbeat.", Labels: []string{"prefix"}}
	storeDead   = monitor.Instrument{Name: "holdfast.store.dead", Kind: monitor.Gauge, Unit: "{lock}", Help: "Holders that have been silent for their TTL and were not taken over yet.", Labels: []string{"prefix"}}
	storeAnswer = monitor.Instrument{Name: "holdfast.store.up", Kind: monitor.Gauge, Unit: "1", Help: "1 if the store could be listed, otherwise 0.", Labels: nil}
)

// Instruments are those of a server: the client's, its requests, the holds that it keeps, and what
// is in the store.
var Instruments = append(slices.Clip(monitor.Instruments), requests, served, lapsed, storeAnswer, storeHeld, storeWaits, storeWait, storeBeat, storeAsked, storeDead)

// mostPrefixes is how many prefixes (and values of Options.MetricsLock) have series of their own;
// the rest are "other".
const mostPrefixes = 50

// census is what is in the store, counted at most every five seconds, or ten times as long as a
// count takes. A request waits for a slow count for a while, and then gets the one before.
type census struct {
	mu      sync.Mutex
	at      time.Time // when it was last counted; zero: never yet
	took    time.Duration
	ok      bool
	samples map[string][]monitor.Sample
	done    chan struct{} // closed when the count that is under way has ended; nil: there is none
}

type tally struct {
	prefix, lock               string
	held, waiting, asked, dead int
	longestWait, oldestBeat    time.Duration
}

// take returns the census, and whether the store could be listed, which is assumed while the first
// count is under way.
func (h *Handler) take(ctx context.Context) (map[string][]monitor.Sample, bool) {
	c := &h.census
	c.mu.Lock()
	if c.at.IsZero() || time.Since(c.at) >= max(5*time.Second, 10*c.took) {
		if c.done == nil {
			c.done = make(chan struct{})
			h.after.Go(h.count)
		}
		done, enough := c.done, time.NewTimer(storeTimeout)
		defer enough.Stop()
		c.mu.Unlock()
		select {
		case <-done:
		case <-enough.C:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	return c.samples, c.ok || c.at.IsZero()
}

// count counts what is in the store. A store that yields no name for a while cannot be listed.
func (h *Handler) count() {
	ctx, cancel := context.WithCancel(h.drain)
	defer cancel()
	silence := time.AfterFunc(storeTimeout, cancel)
	defer silence.Stop()
	began, ok := time.Now(), true
	by := map[[2]string]*tally{}
	for info, err := range h.client.List(ctx, "") {
		if err != nil {
			ok = false
			break
		}
		silence.Reset(storeTimeout)
		prefix, _, _ := strings.Cut(info.Name, "/")
		if prefix == info.Name {
			prefix = "" // a name is no label
		}
		key := [2]string{prefix}
		if h.opts.MetricsLock != nil {
			key[1] = h.opts.MetricsLock(info.Name)
		}
		if by[key] == nil {
			by[key] = &tally{prefix: key[0], lock: key[1]}
		}
		by[key].add(info)
	}
	c := &h.census
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at, c.took, c.ok = time.Now(), time.Since(began), ok; ok {
		c.samples = samplesOf(by, h.opts.MetricsLock != nil)
	}
	close(c.done)
	c.done = nil
}

func (t *tally) add(info holdfast.Info) {
	t.held += len(info.Holders)
	t.waiting += len(info.Waiters)
	for _, w := range info.Waiters {
		if !w.Election { // whose candidates wait all the time
			t.longestWait = max(t.longestWait, w.Waited)
		}
	}
	for _, h := range info.Holders {
		if !h.Detached {
			t.oldestBeat = max(t.oldestBeat, h.BeatAge)
		}
		switch {
		case h.Dead && h.Detached: // its time is over, and nobody has died
		case h.Dead, !h.Detached && h.TTL > 0 && h.BeatAge >= h.TTL:
			t.dead++
		case h.Suspected:
			t.asked++
		}
	}
}

// merge adds what another tally has counted.
func (t *tally) merge(o *tally) {
	t.held, t.waiting, t.asked, t.dead = t.held+o.held, t.waiting+o.waiting, t.asked+o.asked, t.dead+o.dead
	t.longestWait, t.oldestBeat = max(t.longestWait, o.longestWait), max(t.oldestBeat, o.oldestBeat)
}

func samplesOf(by map[[2]string]*tally, locks bool) map[string][]monitor.Sample {
	var list []*tally
	for _, t := range by {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *tally) int {
		return cmp.Or(cmp.Compare(b.held+b.waiting, a.held+a.waiting), strings.Compare(a.prefix, b.prefix), strings.Compare(a.lock, b.lock))
	})
	if len(list) > mostPrefixes {
		other := &tally{prefix: "other", lock: "other"}
		for _, t := range list[mostPrefixes:] {
			other.merge(t)
		}
		list = append(list[:mostPrefixes:mostPrefixes], other)
	}
	if len(list) == 0 {
		list = []*tally{{}} // an empty store has numbers, too: zeros
	}
	out := map[string][]monitor.Sample{}
	for _, t := range list {
		labels := []string{"prefix", strings.ToValidUTF8(t.prefix, "\uFFFD")}
		if locks {
			labels = append(labels, "lock", strings.ToValidUTF8(t.lock, "\uFFFD"))
		}
		for _, one := range []struct {
			of    monitor.Instrument
			value float64
		}{{storeHeld, float64(t.held)}, {storeWaits, float64(t.waiting)}, {storeWait, t.longestWait.Seconds()},
			{storeBeat, t.oldestBeat.Seconds()}, {storeAsked, float64(t.asked)}, {storeDead, float64(t.dead)}} {
			out[one.of.Name] = append(out[one.of.Name], monitor.Sample{Labels: labels, Value: one.value})
		}
	}
	return out
}

// timings are the durations of requests, by route, method and status.
type timings struct {
	mu sync.Mutex
	by map[[3]string]*monitor.Sample
}

func (t *timings) add(route, method string, status int, took time.Duration) {
	if route == "" {
		route = "page"
	}
	if !slices.Contains([]string{"GET", "HEAD", "PUT", "POST", "DELETE"}, method) {
		method = "other"
	}
	key := [3]string{route, method, strconv.Itoa(status)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[[3]string]*monitor.Sample{}
	}
	s := t.by[key]
	if s == nil {
		s = &monitor.Sample{Labels: []string{"route", key[0], "method", key[1], "status", key[2]}, Buckets: make([]uint64, len(monitor.Buckets))}
		t.by[key] = s
	}
	s.Value += took.Seconds()
	s.Count++
	for n, most := range monitor.Buckets {
		if took.Seconds() <= most {
			s.Buckets[n]++
		}
	}
}

func (t *timings) samples() []monitor.Sample {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []monitor.Sample
	for _, s := range t.by {
		one := *s
		one.Buckets = slices.Clone(s.Buckets)
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b monitor.Sample) int { return slices.Compare(a.Labels, b.Labels) })
	return list
}

// keeping counts the holds that this server keeps.
type keeping struct {
	requests                            atomic.Int64 // that wait
	connectionsWaiting, connectionsHeld atomic.Int64
	died                                atomic.Uint64 // answers that a hold has died
}

func (k *keeping) samples() (holds, died []monitor.Sample) {
	for _, one := range []struct {
		kind, state string
		n           int64
	}{{"request", "waiting", k.requests.Load()}, {"connection", "waiting", k.connectionsWaiting.Load()}, {"connection", "held", k.connectionsHeld.Load()}} {
		holds = append(holds, monitor.Sample{Labels: []string{"kind", one.kind, "state", one.state}, Value: float64(one.n)})
	}
	return holds, []monitor.Sample{{Value: float64(k.died.Load())}}
}

// metrics answers a Prometheus server.
func (h *Handler) metrics(w http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	if m := h.opts.Monitor; m != nil {
		_, _ = m.WriteTo(&b) // into memory
	}
	monitor.WriteText(&b, requests, h.timings.samples())
	holds, died := h.keeping.samples()
	monitor.WriteText(&b, served, holds)
	monitor.WriteText(&b, lapsed, died)
	samples, ok := h.take(r.Context())
	up := 0.0
	if ok {
		up = 1
	}
	monitor.WriteText(&b, storeAnswer, []monitor.Sample{{Value: up}})
	for _, i := range []monitor.Instrument{storeHeld, storeWaits, storeWait, storeBeat, storeAsked, storeDead} {
		if ok {
			monitor.WriteText(&b, i, samples[i.Name])
		}
	}
	begin(w, monitor.TextType)
	w.WriteHeader(http.StatusOK)
	w.Write(b.Bytes()) // the scraper may have gone
}

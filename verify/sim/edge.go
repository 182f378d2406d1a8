package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/machine"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// An edge stands between one client and its way to the store. It sees what the
// client sends and hears, and works out by itself until when the client's
// session may be trusted.
type edge struct {
	*faultstore.Process
	w   *world
	bit uint64
	who string
	on  *machine.Machine
	at  time.Duration // when it was made

	mu      sync.Mutex
	calls   int
	windows map[string]*window // of the client's own sessions
}

// A window is the trust in one session: from the moment before its last
// answered beat was sent, for its TTL less the margin.
type window struct {
	until  time.Duration // on the clock of its machine
	opened bool
	ttl    time.Duration
	sent   map[string]attempt // by nonce
}

type attempt struct{ at, ttl time.Duration }

// newEdge makes the edge of a client on a machine whose clock runs at a rate.
func (w *world) newEdge(name string, bit uint64, rate int64) *edge {
	m := machine.New(rate, w.seed<<8^bit)
	return &edge{Process: w.bus.Process(name), w: w, bit: bit, who: name, on: m, at: w.now(), windows: map[string]*window{}}
}

// Machine implements machine.Owner.
func (e *edge) Machine() *machine.Machine { return e.on }

// left is how long any lock of the client may be believed in at most, on the
// clock of its machine.
func (e *edge) left() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	var last time.Duration
	for _, win := range e.windows {
		if win.opened {
			last = max(last, win.until)
		}
	}
	return last - e.on.Now()
}

// ended is when the window of a session ended, or will, in true time after the
// edge was made.
func (e *edge) ended(session string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if win := e.windows[session]; win != nil {
		return e.on.True(win.until)
	}
	return 1 << 62
}

// Load implements driver.Store.
func (e *edge) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if how == driver.Stale && e.w.plan.staleReads {
		return e.read(ctx, "stale read", e.Process.StaleLoad, keys)
	}
	return e.read(ctx, "load", e.fresh, keys)
}

func (e *edge) fresh(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
	return e.Process.Load(ctx, keys, driver.Fresh)
}

// Traits implements driver.Store.
func (e *edge) Traits() driver.Traits {
	return driver.Traits{StaleReads: e.w.plan.staleReads, CostlyWatch: e.w.plan.costly && e.w.plan.notifications, TellsRecords: e.w.plan.tells, Awaits: e.w.plan.awaits}
}

// Await implements driver.Awaiter.
func (e *edge) Await(ctx context.Context, key driver.Key, version int64, every, limit time.Duration) (driver.Record, error) {
	recs, err := e.read(ctx, "await", func(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
		r, err := e.Process.Await(ctx, keys[0], version, every, limit)
		return []driver.Record{r}, err
	}, []driver.Key{key})
	return recs[0], err
}

// read looks at keys one way or the other.
func (e *edge) read(ctx context.Context, how string, read func(context.Context, []driver.Key) ([]driver.Record, error), keys []driver.Key) ([]driver.Record, error) {
	recs, err := read(ctx, keys)
	if e.w.verbose {
		for i, k := range keys {
			if err != nil {
				e.w.logf("%s %s %s: %v", e.who, how, keyName(k), err)
				break
			}
			e.w.logf("%s %s %s: %d age %v %s", e.who, how, keyName(k), recs[i].Version, recs[i].Age, recs[i].Value)
		}
	}
	return recs, err
}

// CompareAndSwap implements driver.Store.
func (e *edge) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	type beat struct {
		i     int
		nonce string
		win   *window
	}
	var beats []beat
	for i, w := range writes {
		if w.Key.Space == driver.Sessions && ctx.Value(extending{}) == nil {
			if win, nonce := e.sending(w); win != nil {
				beats = append(beats, beat{i, nonce, win})
			}
		}
	}
	e.w.store.announce(e.bit, writes)
	if e.w.verbose {
		for _, w := range writes {
			e.w.logf("%s send %s old %d lazy %v: %s", e.who, keyName(w.Key), w.Old, w.Lazy, w.Value)
		}
	}
	outs, err := e.swap(ctx, writes)
	if e.w.verbose {
		for i, w := range writes {
			if perhaps := cmp.Or(err, unknown(outs, i)); perhaps != nil {
				e.w.logf("%s sent %s old %d: %v", e.who, keyName(w.Key), w.Old, perhaps)
				continue
			}
			e.w.logf("%s sent %s old %d: won %v %d %s", e.who, keyName(w.Key), w.Old, outs[i].Won, outs[i].Record.Version, outs[i].Record.Value)
		}
	}
	if err == nil {
		for _, b := range beats {
			if outs[b.i].Err == nil {
				e.answered(b.win, b.nonce, outs[b.i])
			}
		}
	}
	return outs, err
}

// swap sends writes, unless someone keeps a row locked: then they lose to what
// they were to follow.
func (e *edge) swap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	keys := make([]driver.Key, len(writes))
	names := true
	for i, w := range writes {
		keys[i] = w.Key
		names = names && w.Key.Space == driver.Names
	}
	e.mu.Lock()
	e.calls++
	random := rand.New(rand.NewPCG(e.bit, uint64(e.calls)))
	e.mu.Unlock()
	if !names || random.Float64() >= e.w.plan.locked {
		return e.Process.CompareAndSwap(ctx, writes)
	}
	recs, err := e.Process.Load(ctx, keys, driver.Fresh)
	outs := make([]driver.Outcome, len(recs))
	for i := range recs {
		outs[i].Record = recs[i]
	}
	return outs, err
}

// unknown is why nothing is known of a write, though its call was answered.
func unknown(outs []driver.Outcome, i int) error {
	if i < len(outs) {
		return outs[i].Err
	}
	return nil
}

// sending notes a beat of a session of the client's own.
func (e *edge) sending(w driver.Write) (*window, string) {
	rec, err := check.ReadSession(string(w.Value))
	if err != nil || isHold(w.Key.Name) || rec.Dead != 0 || rec.Nonce == "" || rec.Suspected != nil || len(rec.Revoked) > 0 {
		return nil, ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	win := e.windows[w.Key.Name]
	if win == nil && rec.Beat == 1 && w.Old == driver.IfEmpty {
		win = &window{sent: map[string]attempt{}}
		e.windows[w.Key.Name] = win
		e.w.store.own(w.Key.Name, e.bit)
	}
	if win == nil {
		return nil, ""
	}
	now, ttl := e.on.Now(), time.Duration(rec.TTL)*time.Millisecond
	if win.opened {
		if now >= win.until {
			e.w.broken("C6", "%s sends a heartbeat %v after its window has ended", e.who, now-win.until)
		}
		if ttl < win.ttl {
			win.until = min(win.until, now+ttl-holdfast.Margin(ttl))
		}
	}
	win.sent[rec.Nonce] = attempt{now, ttl}
	return win, rec.Nonce
}

// answered handles the answer to a beat: it won, or it lost to an earlier one
// that had won.
func (e *edge) answered(win *window, nonce string, out driver.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !out.Won {
		rec, err := check.ReadSession(string(out.Record.Value))
		if err != nil || rec.Dead != 0 {
			return
		}
		nonce = rec.Nonce
	}
	a, ok := win.sent[nonce]
	if !ok || win.opened && e.on.Now() >= win.until {
		return
	}
	until := a.at + a.ttl - holdfast.Margin(a.ttl)
	if !win.opened || until > win.until {
		win.until = until
	}
	win.opened, win.ttl = true, a.ttl
}

func keyName(k driver.Key) string { return fmt.Sprintf("%s %.8s", k.Space, k.Name) }

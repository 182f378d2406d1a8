package page

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// A board is the list of all locks, read once for all viewers.
type board struct {
	client *holdfast.Client
	fill   sync.Mutex // held while the list is read

	mu   sync.Mutex // guards all below
	list list
	bad  int // findings of doctor that are not good
	term time.Duration
	read time.Time // when term was read
}

// A list is what was read at one time. It is never changed.
type list struct {
	infos []holdfast.Info
	err   error // the last read failed: infos are incomplete, or those of an earlier read
	at    time.Time
	took  time.Duration
	sum   uint64 // if equal, nothing has changed but ages
}

// patience is how long the store may yield nothing, and how long a viewer may read nothing.
const patience = 10 * time.Second

// fresh is how long a list is used: a second, or ten times as long as it took to read.
func (l list) fresh() time.Duration { return max(time.Second, 10*l.took) }

// all returns the list, read anew if it is no longer fresh.
func (b *board) all(ctx context.Context) list {
	if l, ok := b.recent(); ok {
		return l
	}
	b.fill.Lock()
	defer b.fill.Unlock()
	if l, ok := b.recent(); ok { // another viewer has just read it
		return l
	}
	start := time.Now()
	var l list
	sum := seeded()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it is for others too
	defer cancel()
	silence := time.AfterFunc(patience, cancel)
	defer silence.Stop()
	for info, err := range b.client.List(ctx, "") {
		silence.Reset(patience)
		if err != nil {
			l.err = err
			continue
		}
		l.infos = append(l.infos, info)
		fmt.Fprintf(&sum, "%q %d\n", info.Name, info.Version)
		for _, c := range slices.Concat(info.Holders, info.Waiters) {
			fmt.Fprintf(&sum, "%s %v %v %s\n", c.ID, c.Suspected, c.Dead, c.Owner.Host)
		}
	}
	l.at, l.took, l.sum = time.Now(), time.Since(start), sum.Sum64()
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.err != nil && len(l.infos) == 0 {
		l.infos, l.at = b.list.infos, cmp.Or(b.list.at, l.at)
		l.took = time.Since(start)
	}
	b.list = l
	return l
}

var seed = maphash.MakeSeed()

func seeded() (h maphash.Hash) {
	h.SetSeed(seed)
	return h
}

func (b *board) recent() (list, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.list, !b.list.at.IsZero() && time.Since(b.list.at) < b.list.fresh() && b.list.err == nil
}

// forget makes the next viewer read the list anew.
func (b *board) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list.at = time.Time{}
}

// ttl is the store's setting, read at most half a minute ago.
func (b *board) ttl(ctx context.Context) time.Duration {
	b.mu.Lock()
	term, read := b.term, b.read
	b.mu.Unlock()
	if time.Since(read) < 30*time.Second {
		return term
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if now, err := b.client.StoreTTL(ctx); err == nil {
		term = now
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.term, b.read = term, time.Now()
	return term
}

func (b *board) findings() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bad
}

func (b *board) found(findings []driver.Finding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad = 0
	for _, f := range findings {
		if f.Level != driver.Good {
			b.bad++
		}
	}
}

// States of a lock, worst first.
const (
	dead      = "dead"      // a holder is known to be dead
	silent    = "dead?"     // a holder has been silent for its TTL
	suspected = "suspected" // a holder was asked for a heartbeat
	held      = "held"
	detached  = "detached" // nothing beats for it
	ended     = "ended"    // nothing beat for it, and its time is over
	waiting   = "waiting"  // nobody holds it yet
	free      = "free"
)

var order = map[string]int{dead: 0, silent: 1, suspected: 2, waiting: 3, held: 4, detached: 5, ended: 6, free: 7}

// stateOf is the state of one claim.
func stateOf(c holdfast.Claim) string {
	switch {
	case c.Dead && c.Detached:
		return ended
	case c.Dead:
		return dead
	case c.Detached:
		return detached
	case c.BeatAge >= c.TTL && c.TTL > 0:
		return silent
	case c.Suspected:
		return suspected
	}
	return held
}

// stateOfLock is the worst state of its holders.
func stateOfLock(i holdfast.Info) string {
	if len(i.Holders) == 0 {
		if len(i.Waiters) == 0 {
			return free
		}
		return waiting
	}
	state := free
	for _, c := range i.Holders {
		if s := stateOf(c); order[s] < order[state] {
			state = s
		}
	}
	return state
}

// A row is a lock in the table.
type row struct {
	holdfast.Info
	State string
	First *holdfast.Claim // a holder, the one in the worst state
}

func rowOf(i holdfast.Info) row {
	r := row{Info: i, State: stateOfLock(i)}
	for n := range i.Holders {
		if r.First == nil || order[stateOf(i.Holders[n])] < order[stateOf(*r.First)] {
			r.First = &i.Holders[n]
		}
	}
	return r
}

// since is when its First holder was granted it.
func (r row) since() time.Time {
	if r.First == nil {
		return time.Time{}
	}
	return granted(*r.First)
}

const pageSize = 100

// A locksPage is the table of locks.
type locksPage struct {
	Query                               url.Values
	Prefix, Show, Sort                  string
	Held, Waiting, Contended            int
	Suspected, Dead, Detached           int
	Longest                             time.Duration
	LongestName                         string
	Rows                                []row
	From, To, Count                     int
	Prev, Next                          string
	SortName, SortState, SortFor, SortW string
	Empty                               bool // there is not one lock in the store
}

// link is the address of the table with some values changed.
func (p locksPage) link(values ...string) string {
	q := url.Values{}
	for k, v := range p.Query {
		if k == "q" || k == "show" || k == "sort" {
			q[k] = v
		}
	}
	for i := 0; i < len(values); i += 2 {
		if q.Set(values[i], values[i+1]); values[i+1] == "" {
			q.Del(values[i])
		}
	}
	if len(q) == 0 {
		return "./"
	}
	return "./?" + q.Encode()
}

// Link is the address of the table with one value changed, for the template.
func (p locksPage) Link(key, value string) string { return p.link(key, value) }

func (h *Handler) locks(w http.ResponseWriter, r *http.Request, v Viewer) {
	l := h.board.all(r.Context())
	q := r.URL.Query()
	p := locksPage{Query: q, Prefix: q.Get("q"), Show: cmp.Or(q.Get("show"), "all"), Sort: cmp.Or(q.Get("sort"), "state")}
	var rows []row
	for _, i := range l.infos {
		if !v.looks(i.Name) {
			continue
		}
		one := rowOf(i)
		p.count(one)
		if strings.HasPrefix(i.Name, p.Prefix) && p.shows(one) {
			rows = append(rows, one)
		}
	}
	p.Empty = p.Held+p.Waiting == 0
	p.order(rows)
	p.page(rows, q.Get("from"))
	f := frame{Title: "Locks", Tab: "locks", Live: true, Page: p}
	if l.err != nil {
		f.Problem = fmt.Sprintf("The store does not answer (%s). What is shown was read %s ago.", h.why(l.err), brief(time.Since(l.at)))
	}
	h.show(w, r, v, http.StatusOK, "locks", f)
}

func (p *locksPage) count(r row) {
	if len(r.Holders) > 0 {
		p.Held++
	}
	p.Waiting += len(r.Waiters)
	if len(r.Waiters) > 0 {
		p.Contended++
	}
	for _, c := range r.Waiters {
		if d := c.Waited; d > p.Longest && !c.Election {
			p.Longest, p.LongestName = d, r.Name
		}
	}
	switch r.State {
	case dead, silent:
		p.Dead++
	case suspected:
		p.Suspected++
	case detached:
		p.Detached++
	}
}

func (p *locksPage) shows(r row) bool {
	switch p.Show {
	case "contended":
		return len(r.Waiters) > 0
	case "suspected":
		return r.State == suspected || r.State == silent || r.State == dead
	case "detached":
		return r.State == detached
	}
	return true
}

// order sorts the rows: trouble first, then what others wait for, unless asked otherwise.
func (p *locksPage) order(rows []row) {
	by := map[string]func(a, b row) int{
		"name":    func(a, b row) int { return 0 },
		"for":     func(a, b row) int { return a.since().Compare(b.since()) },
		"waiting": func(a, b row) int { return len(b.Waiters) - len(a.Waiters) },
		"state": func(a, b row) int {
			return cmp.Or(order[a.State]-order[b.State], len(b.Waiters)-len(a.Waiters))
		},
	}
	f, ok := by[p.Sort]
	if !ok {
		p.Sort, f = "state", by["state"]
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Or(f(a, b), strings.Compare(a.Name, b.Name)) })
}

func (p *locksPage) page(rows []row, from string) {
	n, err := strconv.Atoi(from)
	if err != nil || n < 1 || n > len(rows) {
		n = 1
	}
	p.Count, p.From, p.To = len(rows), n, min(n+pageSize-1, len(rows))
	if len(rows) == 0 {
		p.From = 0
		return
	}
	p.Rows = rows[n-1 : p.To]
	if n > 1 {
		p.Prev = p.link("from", strconv.Itoa(max(1, n-pageSize)))
	}
	if p.To < len(rows) {
		p.Next = p.link("from", strconv.Itoa(p.To+1))
	}
}

// events tells the script of a viewer when it has to look again: "changed" when something did,
// else "same", so that it knows how old the shown page is.
func (h *Handler) events(w http.ResponseWriter, r *http.Request, v Viewer) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	var last uint64
	for first := true; ; first = false {
		l := h.board.all(r.Context())
		event := "same"
		switch {
		case l.err != nil:
			event = "trouble"
		case l.sum != last && !first:
			event = "changed"
		}
		last = l.sum
		_ = out.SetWriteDeadline(time.Now().Add(patience))
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %d\n\n", event, time.Since(l.at).Milliseconds()); err != nil || out.Flush() != nil {
			return
		}
		t := time.NewTimer(l.fresh())
		select {
		case <-t.C:
		case <-r.Context().Done():
			t.Stop()
			return
		case <-h.ctx.Done():
			t.Stop()
			return
		}
	}
}

package page

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A lockPage is one lock.
type lockPage struct {
	row
	Others   []holdfast.Claim // holders other than First
	Breaks   bool             // the viewer may break it
	Line     timeline
	Past     []past
	Sums     string
	Asked    *question // a break to be confirmed, without script
	Problem  string    // of a break that did not go through
	Fence    *fence    // nil: there is none to show
	ListLink string
}

// A question is a break before it is confirmed.
type question struct {
	Token      int64
	ID         string
	Owner      string
	Next       string // the first waiter
	AtMost     time.Duration
	Reason     string // that was given and cannot be used
	ShortToken string
}

// A fence is a statement around a name and a token.
type fence struct{ Before, Between, After string }

// fenceOf splits the statement of a fence. It returns nil for a name that could be written into it
// in more ways than one.
func fenceOf(statement, name string) *fence {
	before, rest, named := strings.Cut(statement, ":name")
	between, after, ok := strings.Cut(rest, ":token")
	if !named || !ok || shown(name) != name || strings.Contains(name, `\`) {
		return nil
	}
	return &fence{before, between, after}
}

func (h *Handler) lock(w http.ResponseWriter, r *http.Request, v Viewer) {
	name := r.URL.Query().Get("name")
	if !v.looks(name) {
		h.fail(w, r, http.StatusForbidden, "You may not look at this lock.")
		return
	}
	h.showLock(w, r, v, name, question{ID: r.URL.Query().Get("break")}, "", http.StatusOK)
}

// showLock is the page of a lock; ask is the claim whose break is to be confirmed, if it has an ID.
func (h *Handler) showLock(w http.ResponseWriter, r *http.Request, v Viewer, name string, ask question, problem string, status int) {
	info, err := h.client.Show(r.Context(), name)
	if err != nil {
		h.fail(w, r, http.StatusServiceUnavailable, h.why(err))
		return
	}
	p := lockPage{row: rowOf(info), Breaks: v.breaks(name), Problem: problem, Fence: fenceOf(h.opts.Fence, name), ListLink: "./?q=" + url.QueryEscape(directory(name))}
	for n := range info.Holders {
		if &info.Holders[n] != p.First {
			p.Others = append(p.Others, info.Holders[n])
		}
	}
	if p.Past, p.Sums, err = h.past(r.Context(), name); err != nil {
		p.Sums = "The history cannot be read: " + h.why(err)
	}
	p.Line = newTimeline(h.now(), p.Past, info)
	if ask.ID != "" && p.Breaks {
		if p.Asked = ofClaim(info, ask.ID); p.Asked != nil {
			p.Asked.Reason = ask.Reason
		}
	}
	h.show(w, r, v, status, "lock", frame{Title: shown(name), Tab: "locks", Live: p.Asked == nil, Page: p})
}

// ofClaim is the question about a claim; nil: it has gone.
func ofClaim(i holdfast.Info, id string) *question {
	for _, c := range i.Holders {
		if c.FullID() != id {
			continue
		}
		q := &question{Token: c.Token, ID: id, Owner: owner(c.Owner), AtMost: c.TTL - max(c.BeatAge, 0), ShortToken: shortToken(c.Token)}
		if len(i.Waiters) > 0 {
			q.Next = owner(i.Waiters[0].Owner)
		}
		return q
	}
	for _, c := range i.Waiters {
		if c.FullID() == id {
			return &question{ID: id, Owner: owner(c.Owner)}
		}
	}
	return nil
}

// directory is a name up to its last slash.
func directory(name string) string {
	for n := len(name) - 1; n >= 0; n-- {
		if name[n] == '/' {
			return name[:n+1]
		}
	}
	return ""
}

func shortToken(t int64) string {
	s := fmt.Sprint(t)
	if len(s) > 4 {
		s = "…" + s[len(s)-4:]
	}
	return s
}

package page

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A past is a hold that has ended, as it is shown.
type past struct {
	Name     string // "" on the page of its lock
	Token    int64
	Owner    string
	From, To time.Time
	Waited   time.Duration
	End      string
	By       string
	Reason   string
	Why      string
}

func pastOf(name string, p holdfast.PastHold) past {
	out := past{Name: name, Token: p.Token, Owner: ownerOnly(p.Owner), From: p.From, To: p.To, Waited: p.Waited, End: p.End, Reason: shown(p.Reason), Why: shown(p.Why)}
	if p.By.Host != "" || p.By.User != "" {
		out.By = ownerOnly(p.By)
	}
	if out.From.IsZero() {
		out.From = out.To
	}
	return out
}

// kind is its colour.
func (p past) kind() string {
	switch p.End {
	case "broken":
		return "broken"
	case "released", "expired":
		return "released"
	}
	return "died"
}

// State is the sign beside it.
func (p past) State() string {
	return map[string]string{"broken": detached, "released": held, "died": dead}[p.kind()]
}

func (p past) note() string {
	switch {
	case p.kind() == "released":
		return ""
	case p.By != "" && p.Why != "":
		return cut(p.End+" by "+p.By+": "+p.Why, 60)
	case p.By != "":
		return cut(p.End+" by "+p.By, 60)
	}
	return p.End
}

func (p past) Held() time.Duration { return p.To.Sub(p.From) }

// past returns the ended holds of a name, newest first, and a sentence about the rest.
func (h *Handler) past(ctx context.Context, name string) ([]past, string, error) {
	history, err := h.client.History(ctx, name)
	if err != nil {
		return nil, "", err
	}
	var list []past
	for _, p := range history.Holds {
		list = append(list, pastOf("", p))
	}
	return list, sums(history, h.now()), nil
}

// sums says what is not listed, and the last success.
func sums(history holdfast.History, now time.Time) string {
	text := ""
	if o := history.Others; o.Count > 0 {
		text = fmt.Sprintf("%s more, held for %s in all", thousands(int(o.Count)), brief(o.Held))
	}
	if s := history.Success; s != nil {
		if text != "" {
			text += " · "
		}
		text += "last success " + brief(s.Ago) + " ago"
	}
	return text
}

// A historyPage has the ended holds of all names, or of those that begin with a prefix.
type historyPage struct {
	Prefix string
	Past   []past
	Cut    bool // there is more
	Off    bool
}

const (
	mostPast  = 200   // rows of the page
	mostNames = 20000 // whose histories are read for it
)

func (h *Handler) history(w http.ResponseWriter, r *http.Request, v Viewer) {
	p := historyPage{Prefix: r.URL.Query().Get("q")}
	f := frame{Title: "History", Tab: "history"}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	names := 0
	for one, err := range h.client.Histories(ctx, p.Prefix) {
		if err != nil {
			f.Problem = "The store does not answer (" + h.why(err) + ")."
			break
		}
		if names++; names > mostNames {
			p.Cut = true
			break
		}
		if !v.looks(one.Name) {
			continue
		}
		for _, hold := range one.Holds {
			p.Past = append(p.Past, pastOf(one.Name, hold))
		}
		if len(p.Past) > 4*mostPast {
			p.newest()
		}
	}
	p.newest()
	if len(p.Past) == 0 {
		if limit, err := h.client.StoreHistory(r.Context()); err == nil {
			p.Off = limit == 0
		}
	}
	f.Page = p
	h.show(w, r, v, http.StatusOK, "history", f)
}

// newest keeps the newest.
func (p *historyPage) newest() {
	slices.SortStableFunc(p.Past, func(a, b past) int { return cmp.Or(b.To.Compare(a.To), cmp.Compare(b.Token, a.Token)) })
	if len(p.Past) > mostPast {
		p.Past, p.Cut = p.Past[:mostPast], true
	}
}

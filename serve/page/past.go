package page

import (
	"context"
	"net/http"
	"time"
)

// A past is a hold that has ended.
type past struct {
	Name     string
	Token    int64
	Owner    string
	From, To time.Time
	Waited   time.Duration
	End      string // released, lost, taken over, broken, expired
	By       string
	Reason   string // why it was wanted
	Why      string // why it was broken
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

// How says how it ended, in a word or two.
func (p past) How() string { return p.End }

func (p past) note() string {
	switch {
	case p.End == "broken" && p.Why != "":
		return cut("broken by "+p.By+": "+p.Why, 60)
	case p.kind() == "died" && p.By != "":
		return cut(p.End+" by "+p.By, 60)
	case p.kind() == "died":
		return p.End
	}
	return ""
}

func (p past) Held() time.Duration { return p.To.Sub(p.From) }

// A historyPage is what has ended, of all names or of those that begin with a prefix.
type historyPage struct {
	Prefix string
	Past   []past
	Off    bool
}

func (h *Handler) past(ctx context.Context, name string) ([]past, string, error) {
	return nil, "", nil
}

func (h *Handler) history(w http.ResponseWriter, r *http.Request, v Viewer) {
	h.show(w, r, v, http.StatusOK, "history", frame{Title: "History", Tab: "history", Page: historyPage{Prefix: r.URL.Query().Get("q")}})
}

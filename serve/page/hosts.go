package page

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast"
)

// A host is a machine with sessions that hold or wait.
type host struct {
	Name     string
	State    string
	Sessions int
	Holds    int
	Waits    int
	Oldest   *holdfast.Claim // the claim with the oldest beat
	Note     string
	Break    []holding // holds of dead or silent sessions that the viewer may break
}

// A holding is a claim of a lock, to be named in a form.
type holding struct {
	Name  string
	Token int64
}

type hostsPage struct {
	Hosts    []host
	Sessions int
	Asked    *host // whose holds are to be broken
}

func (h *Handler) hosts(w http.ResponseWriter, r *http.Request, v Viewer) {
	l := h.board.all(r.Context())
	p := hostsPage{Hosts: hostsOf(l.infos, v)}
	for n, one := range p.Hosts {
		p.Sessions += one.Sessions
		if one.Name == r.URL.Query().Get("break") && len(one.Break) > 0 {
			p.Asked = &p.Hosts[n]
		}
	}
	f := frame{Title: "Hosts", Tab: "hosts", Live: p.Asked == nil, Page: p}
	if l.err != nil {
		f.Problem = "The store does not answer (" + h.why(l.err) + ")."
	}
	h.show(w, r, v, http.StatusOK, "hosts", f)
}

func hostsOf(infos []holdfast.Info, v Viewer) []host {
	byName := map[string]*host{}
	sessions := map[string]map[string]bool{}
	of := func(c holdfast.Claim) *host {
		name := cmp.Or(c.Owner.Host, "unknown")
		one := byName[name]
		if one == nil {
			one = &host{Name: name, State: held}
			byName[name], sessions[name] = one, map[string]bool{}
		}
		sessions[name][c.Owner.Session] = true
		if s := stateOf(c); order[s] < order[one.State] {
			one.State = s
		}
		if !c.Detached && (one.Oldest == nil || c.BeatAge > one.Oldest.BeatAge) {
			one.Oldest = &c
		}
		return one
	}
	for _, i := range infos {
		if !v.looks(i.Name) {
			continue
		}
		for _, c := range i.Holders {
			one := of(c)
			one.Holds++
			if s := stateOf(c); (s == dead || s == silent) && v.breaks(i.Name) {
				one.Break = append(one.Break, holding{i.Name, c.Token})
			}
		}
		for _, c := range i.Waiters {
			of(c).Waits++
		}
	}
	hosts := make([]host, 0, len(byName))
	for name, one := range byName {
		one.Sessions = len(sessions[name])
		one.Note = one.note()
		hosts = append(hosts, *one)
	}
	slices.SortFunc(hosts, func(a, b host) int {
		return cmp.Or(order[a.State]-order[b.State], b.Holds-a.Holds, strings.Compare(a.Name, b.Name))
	})
	return hosts
}

func (h *host) note() string {
	switch {
	case h.Oldest == nil:
		return ""
	case h.State == suspected:
		return "asked for a heartbeat by " + shown(h.Oldest.SuspectedBy)
	case h.State == dead || h.State == silent:
		return fmt.Sprintf("silent for longer than its TTL of %s", brief(h.Oldest.TTL))
	}
	return ""
}

// Word is the state of a host as it is shown.
func (h host) Word() string {
	if h.State == held || h.State == detached || h.State == ended {
		return "alive"
	}
	return h.State
}

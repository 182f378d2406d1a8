package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/asjson"
	"github.com/holdfast-lock/holdfast/serve/access"
	"github.com/holdfast-lock/holdfast/state"
)

// listLocks shows a page of the names in use that the principal may look at.
func (h *Handler) listLocks(w http.ResponseWriter, r *http.Request) {
	prefix, after, limit, ok := h.paging(w, r)
	if !ok {
		return
	}
	p := access.PrincipalOf(r.Context())
	list, next := []asjson.Info{}, ""
	for info, err := range h.client.ListAfter(r.Context(), prefix, after) {
		if err != nil && info.Name == "" {
			h.fail(w, r, err)
			return
		}
		if err != nil || !p.May(access.Look, info.Name) {
			continue // what cannot be read is for doctor to find
		}
		if len(list) == limit {
			next = list[limit-1].Name
			break
		}
		list = append(list, asjson.Of(info))
	}
	h.answerPage(w, r, "locks", list, next)
}

// paging reads the parameters of a list. If that fails, the request has been answered.
func (h *Handler) paging(w http.ResponseWriter, r *http.Request) (prefix, after string, limit int, ok bool) {
	q := r.URL.Query()
	limit = 100
	if text := q.Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > 1000 {
			h.refuse(w, r, "bad-request", "limit: between 1 and 1000")
			return "", "", 0, false
		}
	}
	return q.Get("prefix"), q.Get("after"), limit, true
}

func (h *Handler) answerPage(w http.ResponseWriter, r *http.Request, what string, list any, after string) {
	m := members{what: list}
	if after != "" {
		m["after"] = after
	}
	h.answer(w, r, http.StatusOK, m)
}

// nameOf returns the lock name in a path, if the principal may use a verb on it. Else the
// request has been answered.
func (h *Handler) nameOf(w http.ResponseWriter, r *http.Request, v access.Verbs) (string, bool) {
	name := r.PathValue("name")
	p := access.PrincipalOf(r.Context())
	if err := driver.Names.Key(name).Check(); err != nil {
		h.refuse(w, r, "bad-request", "name: "+err.Error())
		return "", false
	}
	if !p.May(v, name) {
		h.refuse(w, r, "forbidden", fmt.Sprintf("%s may not %v %q", p.Name, v, name))
		return "", false
	}
	return name, true
}

// showLock shows a name, or each change of it.
func (h *Handler) showLock(w http.ResponseWriter, r *http.Request) {
	name, ok := h.nameOf(w, r, access.Look)
	if !ok {
		return
	}
	if form := streamed(r); form != "" {
		h.watchLock(w, r, form, name)
		return
	}
	info, err := h.client.Show(r.Context(), name)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	h.answer(w, r, http.StatusOK, asjson.Of(info))
}

// watchLock sends the state of a name, and again after each change.
func (h *Handler) watchLock(w http.ResponseWriter, r *http.Request, form, name string) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.drain, cancel)()
	type change struct {
		info holdfast.Info
		err  error
	}
	changes := make(chan change)
	h.after.Go(func() {
		defer close(changes)
		for info, err := range h.client.Watch(ctx, name) {
			select {
			case changes <- change{info, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	s := newStream(w, form)
	quiet := time.NewTicker(15 * time.Second)
	defer quiet.Stop()
	for {
		var err error
		select {
		case <-quiet.C:
			err = s.idle()
		case c, ok := <-changes:
			switch {
			case !ok:
				s.send("again", members{"detail": "this replica ends; send the same request again"})
				return
			case c.err != nil:
				err = s.send("silent", h.problemOf(r, c.err))
			default:
				err = s.send("lock", members{"lock": asjson.Of(c.info)})
			}
		}
		if err != nil {
			return
		}
	}
}

// listSessions shows a page of all sessions.
func (h *Handler) listSessions(w http.ResponseWriter, r *http.Request) {
	if !h.lookAtAll(w, r) {
		return
	}
	_, after, limit, ok := h.paging(w, r)
	if !ok {
		return
	}
	list, next := []asjson.Session{}, ""
	for s, err := range h.client.SessionsAfter(r.Context(), after) {
		if err != nil {
			h.fail(w, r, err)
			return
		}
		if len(list) == limit {
			next = list[limit-1].ID
			break
		}
		list = append(list, asjson.OfSession(s))
	}
	h.answerPage(w, r, "sessions", list, next)
}

// lookAtAll refuses principals that may look only at some names.
func (h *Handler) lookAtAll(w http.ResponseWriter, r *http.Request) bool {
	if p := access.PrincipalOf(r.Context()); !p.MayAll(access.Look) {
		h.refuse(w, r, "forbidden", p.Name+" may not look at all names, which this shows")
		return false
	}
	return true
}

// showState shows the key of the state that a name stands for.
func (h *Handler) showState(w http.ResponseWriter, r *http.Request) {
	name, ok := h.nameOf(w, r, access.Look)
	if !ok {
		return
	}
	key, err := state.On(h.client, name).Key(r.Context())
	if err != nil {
		h.fail(w, r, err)
		return
	}
	h.answer(w, r, http.StatusOK, asjson.Key{Key: key.ID, Writing: key.Writing})
}

// doctor shows what is wrong with the store, as `holdfast doctor` does.
func (h *Handler) doctor(w http.ResponseWriter, r *http.Request) {
	if !h.lookAtAll(w, r) {
		return
	}
	list := []asjson.Finding{}
	for _, f := range h.opts.Doctor(r.Context()) {
		list = append(list, asjson.OfFinding(f))
	}
	h.answer(w, r, http.StatusOK, members{"findings": list})
}

// showHistory shows how a name was held before.
func (h *Handler) showHistory(w http.ResponseWriter, r *http.Request) {
	name, ok := h.nameOf(w, r, access.Look)
	if !ok {
		return
	}
	past, err := h.client.History(r.Context(), name)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	h.answer(w, r, http.StatusOK, asjson.OfHistory(past))
}

// getConfig shows a setting of the store.
func (h *Handler) getConfig(w http.ResponseWriter, r *http.Request) {
	var value any
	var err error
	switch key := r.PathValue("key"); key {
	case "ttl":
		var ttl time.Duration
		ttl, err = h.client.StoreTTL(r.Context())
		value = ttl.Seconds()
	case "history":
		value, err = h.client.StoreHistory(r.Context())
	default:
		h.refuse(w, r, "not-found", noSetting(key))
		return
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	h.answer(w, r, http.StatusOK, members{r.PathValue("key"): value})
}

func noSetting(key string) string {
	return fmt.Sprintf("there is no setting %q: there are ttl and history", key)
}

// putConfig changes a setting of the store, for all who use it.
func (h *Handler) putConfig(w http.ResponseWriter, r *http.Request) {
	p := access.PrincipalOf(r.Context())
	if !p.MayAll(access.Configure) {
		h.refuse(w, r, "forbidden", p.Name+" may not use all names, which settings are for")
		return
	}
	var body struct {
		TTL     *seconds `json:"ttl"`
		History *int     `json:"history"`
	}
	if !h.read(w, r, &body, false) {
		return
	}
	key := r.PathValue("key")
	bad := func(detail string) {
		h.sendNoted(w, r, problem("bad-request", key+": "+detail, members{"field": key}))
	}
	var value any
	var err error
	switch least, most := seconds(holdfast.MinTTL.Seconds()), seconds(holdfast.MaxTTL.Seconds()); key {
	case "ttl":
		if body.TTL == nil || body.History != nil || !(*body.TTL >= least && *body.TTL <= most) {
			bad(fmt.Sprintf("seconds, between %.0f and %.0f", float64(least), float64(most)))
			return
		}
		value, err = body.TTL.duration().Seconds(), h.client.SetStoreTTL(r.Context(), body.TTL.duration())
	case "history":
		if body.History == nil || body.TTL != nil || !slices.Contains([]int{0, 32, 128}, *body.History) {
			bad("0, 32 or 128 holds of each name")
			return
		}
		value, err = *body.History, h.client.SetStoreHistory(r.Context(), *body.History)
	default:
		h.refuse(w, r, "not-found", noSetting(key))
		return
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	h.log.Warn("a setting was changed", "setting", key, "value", value, "principal", p.Name)
	h.answer(w, r, http.StatusOK, members{key: value})
}

// A breaking is the body of POST /v1/breaks.
type breaking struct {
	Name   string `json:"name"`
	Token  int64  `json:"token"`
	Claim  string `json:"claim"`
	Reason string `json:"reason"`
	Now    bool   `json:"now"`
}

// breakLock ends exactly one claim by force.
func (h *Handler) breakLock(w http.ResponseWriter, r *http.Request) {
	var b breaking
	if !h.read(w, r, &b, false) {
		return
	}
	p := access.PrincipalOf(r.Context())
	bad := func(field, detail string) {
		h.sendNoted(w, r, problem("bad-request", field+": "+detail, members{"field": field}))
	}
	switch err := driver.Names.Key(b.Name).Check(); {
	case err != nil:
		bad("name", err.Error())
		return
	case !p.May(access.Break, b.Name):
		h.refuse(w, r, "forbidden", fmt.Sprintf("%s may not break %q", p.Name, b.Name))
		return
	case (b.Token != 0) == (b.Claim != ""):
		bad("token", "the token of a holder, or else the field claim, as /v1/locks/{name} shows them")
		return
	case strings.TrimSpace(b.Reason) == "" || len(b.Reason) > 200:
		bad("reason", "between 1 and 200 bytes: the holder gets it, and the record keeps it")
		return
	}
	info, err := h.client.Show(r.Context(), b.Name)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	found := b.find(info)
	if len(found) != 1 {
		detail := fmt.Sprintf("no such claim on %q: nothing was broken", b.Name)
		if len(found) > 1 { // clients choose the ids of holds, so they may be equal
			detail = fmt.Sprintf("%d claims on %q have this id: nothing was broken; put owner.session in the place of its first eight digits", len(found), b.Name)
		}
		h.refuse(w, r, "not-found", detail)
		return
	}
	claim := found[0]
	begun := time.Now()
	// A client that hangs up does not leave a lock half broken.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 2*claim.TTL+storeTimeout)
	defer cancel()
	http.NewResponseController(w).SetWriteDeadline(time.Time{})
	err = h.client.BreakClaim(ctx, claim, holdfast.BreakOptions{Reason: b.Reason, Now: b.Now,
		By: holdfast.Owner{User: p.Name, Host: h.host, Program: "holdfast serve"}})
	level := h.log.With("name", b.Name, "claim", claim.ID, "token", claim.Token, "principal", p.Name, "reason", b.Reason)
	switch {
	case errors.Is(err, holdfast.ErrReleased):
		h.refuse(w, r, "not-found", fmt.Sprintf("the claim on %q has gone already: nothing was broken", b.Name))
		return
	case err != nil:
		level.Warn("a break did not end", "err", h.redact(err))
		h.fail(w, r, err)
		return
	}
	level.Warn("a claim was broken")
	h.answer(w, r, http.StatusOK, members{"broken": asjson.Claims([]holdfast.Claim{claim})[0], "took": time.Since(begun).Round(time.Millisecond).Seconds(), "by": p.Name})
}

// find returns the claims that are meant: several may have the same id.
func (b *breaking) find(info holdfast.Info) (found []holdfast.Claim) {
	for _, c := range slices.Concat(info.Holders, info.Waiters) {
		if b.Claim != "" && (b.Claim == c.ID || b.Claim == c.FullID()) || b.Token != 0 && c.Token == b.Token {
			found = append(found, c)
		}
	}
	return found
}

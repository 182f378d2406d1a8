package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// A finding is a line of doctor.
type finding struct{ State, Level, Subject, Text string }

func (h *Handler) doctor(w http.ResponseWriter, r *http.Request, v Viewer) {
	var list []finding
	f := frame{Title: "Doctor", Tab: "doctor"}
	if h.opts.Doctor == nil {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 15*time.Second)
	defer cancel()
	found := h.opts.Doctor(ctx)
	h.board.found(found)
	for _, one := range found {
		level := [...]struct{ state, word string }{driver.Good: {held, "good"}, driver.Warning: {suspected, "warning"}, driver.Failure: {dead, "failure"}}[one.Level]
		list = append(list, finding{level.state, level.word, shown(one.Subject), shown(one.Text)})
	}
	f.Page = list
	h.show(w, r, v, http.StatusOK, "doctor", f)
}

type settingsPage struct {
	TTL     string
	History string
	Choices []string
	Problem string
	Done    string
}

func (h *Handler) settings(w http.ResponseWriter, r *http.Request, v Viewer) {
	h.showSettings(w, r, v, http.StatusOK, settingsPage{Done: map[bool]string{true: "Kept. Clients follow within their TTL."}[r.URL.Query().Has("done")]})
}

func (h *Handler) showSettings(w http.ResponseWriter, r *http.Request, v Viewer, status int, p settingsPage) {
	f := frame{Title: "Settings", Tab: "settings"}
	if ttl, err := h.client.StoreTTL(r.Context()); err != nil {
		f.Problem = "The store does not answer: " + h.why(err)
	} else if p.TTL == "" {
		p.TTL = strconv.FormatFloat(ttl.Seconds(), 'f', -1, 64)
	}
	if limit, err := h.client.StoreHistory(r.Context()); err == nil && p.History == "" {
		p.History = strconv.Itoa(limit)
	}
	p.Choices = []string{"0", "32", "128"}
	f.Page = p
	h.show(w, r, v, status, "settings", f)
}

func (h *Handler) configure(w http.ResponseWriter, r *http.Request, v Viewer) {
	if !v.Configure {
		h.fail(w, r, http.StatusForbidden, "You may not change settings.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	text, history := r.PostFormValue("ttl"), r.PostFormValue("history")
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || seconds != seconds || seconds < 0 || seconds > 1e8 {
		h.showSettings(w, r, v, http.StatusBadRequest, settingsPage{TTL: text, Problem: "The TTL is a number of seconds, such as 15."})
		return
	}
	if err := h.client.SetStoreTTL(r.Context(), time.Duration(seconds*float64(time.Second))); err != nil {
		h.showSettings(w, r, v, http.StatusBadRequest, settingsPage{TTL: text, Problem: h.why(err)})
		return
	}
	h.log.Warn("setting changed", "key", "ttl", "seconds", seconds, "by", v.Name)
	if history != "" {
		limit, err := strconv.Atoi(history)
		if err == nil {
			err = h.client.SetStoreHistory(r.Context(), limit)
		}
		if err != nil {
			h.showSettings(w, r, v, http.StatusBadRequest, settingsPage{TTL: text, History: history, Problem: h.why(err)})
			return
		}
		h.log.Warn("setting changed", "key", "history", "holds", limit, "by", v.Name)
	}
	h.board.mu.Lock()
	h.board.read = time.Time{}
	h.board.mu.Unlock()
	http.Redirect(w, r, h.opts.Prefix+"/settings?done", http.StatusSeeOther)
}

// breakLocks breaks the claims that a form names, exactly those that its viewer has seen: each by
// its name and token or, if it waits, by its id.
func (h *Handler) breakLocks(w http.ResponseWriter, r *http.Request, v Viewer) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := r.ParseForm(); err != nil {
		h.fail(w, r, http.StatusBadRequest, "The form cannot be read.")
		return
	}
	names, tokens, reason := r.PostForm["name"], r.PostForm["token"], strings.TrimSpace(r.PostForm.Get("reason"))
	if len(names) == 0 || len(names) != len(tokens) {
		h.fail(w, r, http.StatusBadRequest, "The form does not say which claim.")
		return
	}
	for _, name := range names {
		if !v.breaks(name) {
			h.fail(w, r, http.StatusForbidden, "You may not break this lock.")
			return
		}
	}
	ask := question{ID: r.PostForm.Get("id"), Reason: reason}
	switch {
	case reason == "":
		h.showLock(w, r, v, names[0], ask, "A break needs a reason. It stays on record.", http.StatusBadRequest)
		return
	case len(reason) > mostReason:
		h.showLock(w, r, v, names[0], ask, fmt.Sprintf("The reason takes %d bytes, and at most %d can be kept.", len(reason), mostReason), http.StatusBadRequest)
		return
	}
	problem := h.breakAll(names, tokens, ask.ID, reason, v)
	h.board.forget()
	if problem != "" {
		h.showLock(w, r, v, names[0], question{}, problem, http.StatusConflict)
		return
	}
	to := "/lock?name=" + url.QueryEscape(names[0])
	if len(names) > 1 {
		to = "/hosts"
	}
	http.Redirect(w, r, h.opts.Prefix+to, http.StatusSeeOther)
}

// breakAll breaks claims side by side. A holder obeys with its next heartbeat; the page waits a
// moment for that, and the breaks go on until the holders have obeyed or their sessions are dead.
func (h *Handler) breakAll(names, tokens []string, id, reason string, v Viewer) (problem string) {
	errs := make(chan error, len(names))
	for n, name := range names {
		h.work.Go(func() {
			err := h.breakOne(h.ctx, name, tokens[n], id, reason, v)
			h.log.Warn("break", "name", name, "token", tokens[n], "reason", reason, "by", v.Name, "err", err)
			h.board.forget()
			errs <- err
		})
	}
	enough := time.NewTimer(3 * time.Second)
	defer enough.Stop()
	for range names {
		select {
		case err := <-errs:
			switch {
			case errors.Is(err, holdfast.ErrReleased):
				problem = "It had let go already: nothing was broken."
			case err != nil:
				problem = h.why(err)
			}
		case <-enough.C:
			return problem
		}
	}
	return problem
}

// mostReason is how many bytes of a reason the record keeps.
const mostReason = 200

// breakOne breaks the claim with a token, or the one that waits with an id, on behalf of the
// viewer.
func (h *Handler) breakOne(ctx context.Context, name, token, id, reason string, v Viewer) error {
	info, err := h.client.Show(ctx, name)
	if err != nil {
		return err
	}
	opts := holdfast.BreakOptions{Reason: reason}
	if v.Name != "" {
		opts.By = holdfast.Owner{User: v.Name, Program: "holdfast page"}
		opts.By.Host, _ = os.Hostname()
	}
	n, _ := strconv.ParseInt(token, 10, 64) // a waiter has none
	for _, c := range slices.Concat(info.Holders, info.Waiters) {
		if n > 0 && c.Token == n || n <= 0 && c.Token == 0 && c.FullID() == id {
			return h.client.BreakClaim(ctx, c, opts)
		}
	}
	return holdfast.ErrReleased
}

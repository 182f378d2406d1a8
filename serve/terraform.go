package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// A lockInfo is what Terraform and OpenTofu send about a lock on a state, and read about the one
// that is in the way.
type lockInfo struct {
	ID        string
	Operation string
	Info      string
	Who       string
	Version   string
	Created   string
	Path      string
}

// longestRun is how long the lock of a state lasts if its address does not say. Nothing beats
// for such a lock, so it ends by itself.
const longestRun = 2 * time.Hour

// lockState is LOCK, for a backend "http" with the lock_address /v1/terraform/NAME?for=DURATION.
func (h *Handler) lockState(w http.ResponseWriter, r *http.Request) {
	name, info, ok := h.stateOf(w, r, access.Take)
	if !ok {
		return
	}
	id := strings.ReplaceAll(info.ID, "-", "") // a random UUID
	if !isID(id) {
		h.refuse(w, r, "bad-request", "ID: a UUID in lower case")
		return
	}
	d := longestRun
	if s := r.URL.Query().Get("for"); s != "" {
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			h.refuse(w, r, "bad-request", "for: a duration such as 90m or 2h")
			return
		}
	}
	p := access.PrincipalOf(r.Context())
	operation := strings.ToLower(strings.TrimPrefix(info.Operation, "OperationType"))
	req := holdfast.HoldRequest{ID: id, Names: []string{name}, For: d, Reason: cut("terraform "+operation, 200), Client: p.Name,
		Labels: map[string]string{"id": info.ID, "operation": cut(info.Operation, 100)}}
	req.Owner.Program = "terraform"
	if req.Owner.User, req.Owner.Host, ok = strings.Cut(cut(info.Who, 200), "@"); !ok {
		req.Owner.Host = r.RemoteAddr
	}
	received := time.Now()
	hold, err := h.enter(r.Context(), req)
	if err == nil {
		err = late(hold, received)
	}
	var held *holdfast.HeldError
	switch {
	case errors.As(err, &held) && len(held.Holders) > 0:
		noteOf(r).problem = "held"
		h.answer(w, r, http.StatusLocked, infoOf(held.Holders[0]))
	case err != nil:
		h.fail(w, r, err)
	default:
		h.answer(w, r, http.StatusOK, members{})
	}
}

// infoOf is a holder as Terraform shows it; a holder that is not Terraform has its token for an ID.
func infoOf(c holdfast.Claim) lockInfo {
	info := lockInfo{ID: c.Labels["id"], Operation: c.Labels["operation"], Info: c.Reason, Who: c.Owner.String(), Created: c.Granted.UTC().Format(time.RFC3339)}
	if info.ID == "" {
		info.ID = strconv.FormatInt(c.Token, 10)
	}
	return info
}

// unlockState is UNLOCK. A force-unlock sends no ID: it is a break, and needs that verb.
func (h *Handler) unlockState(w http.ResponseWriter, r *http.Request) {
	name, info, ok := h.stateOf(w, r, access.Take)
	if !ok {
		return
	}
	p := access.PrincipalOf(r.Context())
	id := strings.ReplaceAll(info.ID, "-", "")
	var err error
	switch {
	case info.ID == "" && !p.May(access.Break, name):
		h.refuse(w, r, "forbidden", fmt.Sprintf("%s may not break %q, which force-unlock does", p.Name, name))
		return
	case info.ID == "":
		err = h.forceUnlock(r.Context(), name, p)
	case !isID(id):
		h.refuse(w, r, "bad-request", "ID: a UUID in lower case")
		return
	default:
		ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
		defer cancel()
		err = h.client.Leave(ctx, p.Name, id)
	}
	if err != nil && !errors.Is(err, holdfast.ErrReleased) {
		h.fail(w, r, err)
		return
	}
	h.answer(w, r, http.StatusOK, members{})
}

// forceUnlock breaks the claims that hold a name.
func (h *Handler) forceUnlock(ctx context.Context, name string, p *access.Principal) error {
	info, err := h.client.Show(ctx, name)
	if err != nil {
		return err
	}
	for _, c := range info.Holders {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*c.TTL+storeTimeout)
		err := h.client.BreakClaim(ctx, c, holdfast.BreakOptions{Reason: "terraform force-unlock", Now: c.Detached, // nobody is there to answer
			By: holdfast.Owner{User: p.Name, Host: h.host, Program: "holdfast serve"}})
		cancel()
		if err != nil && !errors.Is(err, holdfast.ErrReleased) {
			return err
		}
		h.log.Warn("a claim was broken", "name", name, "claim", c.ID, "token", c.Token, "principal", p.Name, "reason", "terraform force-unlock")
	}
	return nil
}

// stateOf reads a request for the lock of a state. Fields of later versions are ignored.
func (h *Handler) stateOf(w http.ResponseWriter, r *http.Request, v access.Verbs) (name string, info lockInfo, ok bool) {
	if name, ok = h.nameOf(w, r, v); !ok {
		return name, info, false
	}
	body, ok := h.body(w, r)
	if !ok {
		return name, info, false
	}
	var err error
	if len(body) > 0 {
		err = json.Unmarshal(body, &info)
	}
	if err != nil {
		h.refuse(w, r, "bad-request", "the body is not a LockInfo: "+said(err))
		return name, info, false
	}
	return name, info, true
}

// cut is as much of a text as fits.
func cut(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

package serve

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/asjson"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// A taking is the body of PUT /v1/holds/{id}.
type taking struct {
	Name    string            `json:"name"`
	Names   []string          `json:"names"`
	Wait    seconds           `json:"wait"`
	TTL     seconds           `json:"ttl"`
	For     seconds           `json:"for"`
	Shared  bool              `json:"shared"`
	Slots   int               `json:"slots"`
	Reason  string            `json:"reason"`
	Owner   holdfast.Owner    `json:"owner"`
	Labels  map[string]string `json:"labels"`
	OnClose string            `json:"on_close"` // lapse or release
}

// seconds is a duration as JSON has it here.
type seconds float64

const maxWait = seconds(1e7)

func (s seconds) duration() time.Duration {
	return time.Duration(float64(s) * float64(time.Second)).Round(time.Millisecond)
}

// rounded is a duration in seconds, rounded down.
func rounded(d time.Duration) float64 { return d.Truncate(time.Millisecond).Seconds() }

// A holdJSON is a hold as it is shown to its owner.
type holdJSON struct {
	ID       string     `json:"id"`
	State    string     `json:"state"` // held, waiting
	Locks    []lockJSON `json:"locks,omitempty"`
	Position int        `json:"position,omitempty"`
	TTL      float64    `json:"ttl"`
	Wait     *float64   `json:"wait,omitempty"`  // what is left of it
	Valid    *float64   `json:"valid,omitempty"` // see valid
	Detached bool       `json:"detached,omitempty"`
	Ends     *time.Time `json:"ends,omitempty"`
}

type lockJSON struct {
	Name  string `json:"name"`
	Mode  string `json:"mode"`
	Token int64  `json:"token"`
}

// valid is how long a client may believe in a hold, counted from before it sent the request that
// arrived at received. The beat on which the hold rests was sent a while later; the margin allows
// for the rates of both clocks. It is not known for a hold without beats whose store has no clock.
func valid(hold holdfast.Hold, received time.Time) (d time.Duration, known bool) {
	switch {
	case !hold.Beat.IsZero():
		d = hold.Beat.Sub(received) + hold.TTL
		return max(0, d-max(d/10, holdfast.Margin(hold.TTL))), true
	case !hold.Ends.IsZero():
		return max(0, hold.Ends.Sub(received)), true
	}
	return 0, false
}

// late returns an error if a hold can no longer be believed in when its answer is sent.
func late(hold holdfast.Hold, received time.Time) error {
	if d, known := valid(hold, received); hold.Held && known && d == 0 {
		return errors.New("the answer of the store came too late to be believed")
	}
	return nil
}

// onReceipt is how long an event that is sent now is valid when it arrives, at most a third of the
// TTL later.
func onReceipt(hold holdfast.Hold) time.Duration {
	if hold.Detached {
		return max(0, time.Until(hold.Ends)-hold.TTL/10)
	}
	return max(0, hold.TTL-holdfast.Margin(hold.TTL)-hold.TTL/3-time.Since(hold.Beat))
}

// show is a hold for its owner, without how long it is valid.
func show(hold holdfast.Hold) holdJSON {
	out := holdJSON{ID: hold.ID, State: "waiting", Position: hold.Position, TTL: rounded(hold.TTL), Detached: hold.Detached}
	if hold.Held {
		out.State, out.Position, out.Locks = "held", 0, locks(hold)
	}
	if hold.Detached && !hold.Ends.IsZero() {
		ends := hold.Ends.UTC().Round(time.Millisecond)
		out.Ends = &ends
	}
	return out
}

func locks(hold holdfast.Hold) (list []lockJSON) {
	for _, c := range hold.Claims {
		list = append(list, lockJSON{c.Name, c.Mode(), c.Token})
	}
	return list
}

// showValid is show with how long the hold is valid, given when the request was received.
func showValid(hold holdfast.Hold, received time.Time) holdJSON {
	out := show(hold)
	if d, known := valid(hold, received); known {
		v := rounded(d)
		out.Valid = &v
	}
	return out
}

// holdID is the id in a request's path. If it is not an id, the request has been answered.
func (h *Handler) holdID(w http.ResponseWriter, r *http.Request) (id string, ok bool) {
	id = r.PathValue("id")
	if !isID(id) {
		h.refuse(w, r, "bad-request", "id: 32 hexadecimal digits in lower case, as of: openssl rand -hex 16")
		return "", false
	}
	noteOf(r).hold = id[:8]
	return id, true
}

func isID(id string) bool {
	_, err := hex.DecodeString(id)
	return len(id) == 32 && err == nil && strings.ToLower(id) == id
}

// asked reads the body of a PUT. If it cannot be accepted, the request has been answered.
func (h *Handler) asked(w http.ResponseWriter, r *http.Request, id string) (t taking, req holdfast.HoldRequest, ok bool) {
	if !h.read(w, r, &t, false) {
		return t, req, false
	}
	no := func(field, format string, args ...any) (taking, holdfast.HoldRequest, bool) {
		h.sendNoted(w, r, problem("bad-request", field+": "+fmt.Sprintf(format, args...), members{"field": field}))
		return t, req, false
	}
	names := t.Names
	switch {
	case (t.Name == "") == (len(t.Names) == 0):
		return no("name", "one name, or several in the field names")
	case t.Name != "":
		names = []string{t.Name}
	case len(names) > maxNames:
		return no("names", "there are %d, at most %d", len(names), maxNames)
	}
	for _, d := range []struct {
		field string
		value seconds
	}{{"wait", t.Wait}, {"ttl", t.TTL}, {"for", t.For}} {
		if !(d.value >= 0 && d.value <= maxWait) {
			return no(d.field, "seconds, not below 0 and not above %.0f", float64(maxWait))
		}
	}
	if !slices.Contains([]string{"", "lapse", "release"}, t.OnClose) {
		return no("on_close", "lapse or release")
	}
	switch form := streamed(r); {
	case form != "" && t.For > 0:
		return no("for", "a hold that ends by itself needs no connection")
	case form != "" && t.OnClose == "" && r.Context().Value(doorKey{}) == doorUnix:
		t.OnClose = "release" // only the client, or its death, can close it
	}
	p := access.PrincipalOf(r.Context())
	for _, name := range names {
		if !p.May(access.Take, name) {
			h.refuse(w, r, "forbidden", fmt.Sprintf("%s may not take %q", p.Name, name))
			return t, req, false
		}
	}
	if t.Owner.User == "" {
		t.Owner.User = p.Name
	}
	if t.Owner.Host == "" {
		if t.Owner.Host, _, _ = net.SplitHostPort(r.RemoteAddr); t.Owner.Host == "" {
			t.Owner.Host = h.host // by the unix socket
		}
	}
	return t, holdfast.HoldRequest{ID: id, Names: names, TTL: t.TTL.duration(), For: t.For.duration(), Shared: t.Shared, Slots: t.Slots,
		Reason: t.Reason, Labels: t.Labels, Wait: t.Wait > 0, Owner: t.Owner, Client: p.Name}, true
}

// putHold enters, waits, and goes on.
func (h *Handler) putHold(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	id, ok := h.holdID(w, r)
	if !ok {
		return
	}
	t, req, ok := h.asked(w, r, id)
	if !ok {
		return
	}
	if req.Wait {
		done, ok := h.limits.wait(req.Client)
		if !ok {
			h.refuse(w, r, "too-many", fmt.Sprintf("at most %d of your requests may wait", maxWaiting))
			return
		}
		defer done()
	}
	hold, err := h.enter(r.Context(), req)
	if form := streamed(r); form != "" && err == nil {
		h.holdStream(w, r, form, t, req, hold, received)
		return
	}
	if err == nil && !hold.Held {
		hold, err = h.await(w, r, t, req, hold, received)
	}
	switch {
	case err != nil && r.Context().Err() != nil: // nobody reads it
	case err != nil:
		h.fail(w, r, err)
	case late(hold, received) != nil:
		h.fail(w, r, late(hold, received))
	case hold.Held:
		h.answer(w, r, http.StatusOK, showValid(hold, received))
	default:
		out := showValid(hold, received)
		left := rounded(max(0, t.Wait.duration()-time.Since(received)))
		out.Wait = &left
		h.answer(w, r, http.StatusAccepted, out)
	}
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request, status int, v any) {
	write(w, r, status, "application/json", v)
}

// enter is Enter with the timeout of a call to the store.
func (h *Handler) enter(ctx context.Context, req holdfast.HoldRequest) (holdfast.Hold, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return h.client.Enter(ctx, req)
}

// await keeps a hold beaten until it is held, its wait is over, or three TTLs have passed. The
// client gets an answer then, so that it notices when we are gone.
func (h *Handler) await(w http.ResponseWriter, r *http.Request, t taking, req holdfast.HoldRequest, hold holdfast.Hold, received time.Time) (holdfast.Hold, error) {
	http.NewResponseController(w).SetWriteDeadline(time.Time{})
	h.keeping.requests.Add(1)
	defer h.keeping.requests.Add(-1)
	wait, turn := t.Wait.duration(), 3*hold.TTL
	ctx, cancel := context.WithDeadline(r.Context(), received.Add(min(wait, turn)))
	defer cancel()
	defer context.AfterFunc(h.drain, cancel)()
	for next, err := range h.client.Follow(ctx, req.Client, req.ID) {
		if err != nil {
			return next, err
		}
		if hold = next; hold.Held {
			return hold, nil
		}
	}
	switch {
	case r.Context().Err() != nil:
		h.hungUp(hold)
		return hold, r.Context().Err()
	case wait <= turn && h.drain.Err() == nil:
		req.Wait = false
		return h.enter(r.Context(), req)
	}
	return hold, nil
}

// hungUp takes a waiting hold out of the line, unless its client goes on elsewhere. Where it may have
// gone on before, the next beat from there has to be waited for.
func (h *Handler) hungUp(hold holdfast.Hold) {
	h.after.Go(func() {
		wait := 2 * time.Second
		if !hold.Sole {
			wait = max(wait, hold.TTL/2)
		}
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-h.drain.Done(): // it may well go on at another replica: its place lapses if not
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		h.client.LeaveQueue(ctx, hold) // else it lapses
	})
}

// getHold shows a hold, without a beat.
func (h *Handler) getHold(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	id, ok := h.holdID(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	hold, err := h.client.Hold(ctx, access.PrincipalOf(ctx).Name, id)
	switch {
	case err != nil:
		h.fail(w, r, err)
	case hold.Detached:
		h.answer(w, r, http.StatusOK, showValid(hold, received))
	default:
		h.answer(w, r, http.StatusOK, show(hold))
	}
}

// deleteHold gives a hold back, or leaves the line.
func (h *Handler) deleteHold(w http.ResponseWriter, r *http.Request) {
	id, ok := h.holdID(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	if err := h.client.Leave(ctx, access.PrincipalOf(ctx).Name, id); err != nil {
		h.fail(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// beatHold keeps a hold, or extends a detached one.
func (h *Handler) beatHold(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	id, ok := h.holdID(w, r)
	if !ok {
		return
	}
	var body struct {
		For seconds `json:"for"`
	}
	if !h.read(w, r, &body, true) {
		return
	}
	if !(body.For >= 0 && body.For <= maxWait) {
		h.refuse(w, r, "bad-request", "for: seconds")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	var hold holdfast.Hold
	var err error
	if name := access.PrincipalOf(ctx).Name; body.For > 0 {
		hold, err = h.client.Extend(ctx, name, id, body.For.duration())
	} else if results, bad := h.client.Beat(ctx, name, id); bad != nil {
		err = bad
	} else {
		hold, err = results[0].Hold, results[0].Err
	}
	if err == nil {
		err = late(hold, received)
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	h.answer(w, r, http.StatusOK, showValid(hold, received))
}

// beatHolds keeps many holds with one call to the store.
func (h *Handler) beatHolds(w http.ResponseWriter, r *http.Request) {
	received := time.Now()
	var body struct {
		IDs []string `json:"ids"`
	}
	if !h.read(w, r, &body, false) {
		return
	}
	if len(body.IDs) == 0 || len(body.IDs) > maxBeats {
		h.refuse(w, r, "bad-request", fmt.Sprintf("ids: between 1 and %d", maxBeats))
		return
	}
	for _, id := range body.IDs {
		if !isID(id) {
			h.refuse(w, r, "bad-request", fmt.Sprintf("ids: %q is not 32 hexadecimal digits in lower case", id))
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	results, err := h.client.Beat(ctx, access.PrincipalOf(ctx).Name, body.IDs...)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	list := make([]any, len(results))
	for i, res := range results {
		if res.Err == nil {
			res.Err = late(res.Hold, received)
		}
		if res.Err != nil {
			p := h.problemOf(r, res.Err)
			p["id"] = res.ID
			list[i] = p
			continue
		}
		list[i] = struct {
			Status int `json:"status"`
			holdJSON
		}{http.StatusOK, showValid(res.Hold, received)}
	}
	h.answer(w, r, http.StatusOK, members{"holds": list})
}

// overMembers are the members of the problem "over".
func overMembers(e *holdfast.OverError) members {
	m := members{"why": string(e.Why)}
	if e.ID != "" {
		m["id"] = e.ID
	}
	if e.Name != "" {
		m["name"] = e.Name
	}
	return m
}

// heldProblem says who is in the way, to those who may look.
func (h *Handler) heldProblem(r *http.Request, e *holdfast.HeldError) members {
	p := access.PrincipalOf(r.Context())
	if !p.May(access.Look, e.Name) {
		return problem("held", fmt.Sprintf("%q is held by others", e.Name), members{"name": e.Name})
	}
	detail := fmt.Sprintf("%q is %s", e.Name, e.Error())
	return problem("held", detail, members{"name": e.Name, "holders": asjson.Claims(e.Holders), "waiting": len(e.Waiters)})
}

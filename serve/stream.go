package serve

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const (
	ndjson      = "application/x-ndjson"
	eventStream = "text/event-stream"
)

// streamed is the form of a stream, if the request wants one.
func streamed(r *http.Request) string {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			switch kind, _, _ := strings.Cut(part, ";"); strings.TrimSpace(kind) {
			case ndjson:
				return ndjson
			case eventStream:
				return eventStream
			}
		}
	}
	return ""
}

// A stream is an answer that goes on. A client that does not read it is cut off.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	form    string
}

func newStream(w http.ResponseWriter, form string) *stream {
	begin(w, form)
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return &stream{w, http.NewResponseController(w), form}
}

// send sends an event. An error means that nobody reads any more.
func (s *stream) send(event string, v members) error {
	var b strings.Builder
	if s.form == eventStream {
		b.WriteString("event: " + event + "\ndata: ")
	}
	all := members{"event": event}
	for name, value := range v {
		all[name] = value
	}
	if err := asjson.Encode(&b, all); err != nil {
		return err
	}
	if s.form == eventStream {
		b.WriteString("\n")
	}
	return s.write(b.String())
}

// idle sends something without meaning, so that a peer that is gone is noticed.
func (s *stream) idle() error {
	if s.form == eventStream {
		return s.write(":\n\n")
	}
	return s.write("\n")
}

func (s *stream) write(text string) error {
	patient(s.w)
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	err := s.control.Flush()
	if errors.Is(err, http.ErrNotSupported) {
		err = nil
	}
	s.control.SetWriteDeadline(time.Time{})
	return err
}

// holdStream keeps a hold by its connection: the hold is beaten while the connection is open.
func (h *Handler) holdStream(w http.ResponseWriter, r *http.Request, form string, t taking, req holdfast.HoldRequest, hold holdfast.Hold, received time.Time) {
	s := newStream(w, form)
	held, err := h.follow(s, r, t, req, hold, received)
	p := members(nil)
	if err != nil {
		p = h.problemOf(r, err)
		noteOf(r).problem = strings.TrimPrefix(p["type"].(string), "/problems/")
	}
	switch {
	case r.Context().Err() != nil || errors.Is(err, errUnread):
		h.closed(t, req, held)
	case err == nil: // the server drains
		s.send("again", members{"detail": "this replica ends; send the same request again"})
	case errors.Is(err, holdfast.ErrHeld):
		s.send("refused", p)
	case p["status"] == http.StatusGone:
		s.send("lost", p)
	default:
		s.send("again", p)
	}
}

var errUnread = errors.New("nobody reads the stream")

// follow sends a stream the events of a hold until it is over, its client has gone, or requests
// may no longer wait, which is no error. It returns the hold as it was last sent.
func (h *Handler) follow(s *stream, r *http.Request, t taking, req holdfast.HoldRequest, hold holdfast.Hold, received time.Time) (holdfast.Hold, error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.drain, cancel)()
	tell := teller{stream: s, keeping: &h.keeping}
	tell.keeping.connectionsWaiting.Add(1)
	defer tell.end()
	if tell.of(hold) != nil {
		return hold, errUnread
	}
	if !hold.Held {
		wait, over := context.WithDeadline(ctx, received.Add(t.Wait.duration()))
		defer over()
		for next, err := range h.client.Follow(wait, req.Client, req.ID) {
			if err != nil {
				return hold, err
			}
			if hold = next; tell.of(hold) != nil {
				return hold, errUnread
			}
			if hold.Held {
				break
			}
		}
		if ctx.Err() != nil {
			return hold, nil
		}
		if !hold.Held { // it has waited long enough
			req.Wait = false
			last, err := h.enter(ctx, req)
			if err != nil {
				return hold, err
			}
			if hold = last; tell.of(hold) != nil {
				return hold, errUnread
			}
		}
	}
	for next, err := range h.client.Follow(ctx, req.Client, req.ID) {
		if err != nil {
			return hold, err
		}
		if hold = next; tell.of(hold) != nil {
			return hold, errUnread
		}
	}
	return hold, nil
}

// closed handles the end of a hold's connection, by its client or by something in between.
func (h *Handler) closed(t taking, req holdfast.HoldRequest, hold holdfast.Hold) {
	switch {
	case t.OnClose == "release" && hold.Sole:
		h.after.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
			defer cancel()
			h.client.LeaveSole(ctx, req.Client, req.ID) // else it lapses
		})
	case !hold.Held:
		h.hungUp(hold)
	}
}

// A teller sends what is new about a hold.
type teller struct {
	*stream
	*keeping
	held     bool
	position int
	at       time.Time // of the last event
}

func (t *teller) of(hold holdfast.Hold) error {
	if hold.Held == t.held && hold.Position == t.position && time.Since(t.at) < hold.TTL/6 {
		return nil // nothing is new
	}
	t.at, t.position = time.Now(), hold.Position
	m := members{"id": hold.ID, "ttl": rounded(hold.TTL), "valid_on_receipt": rounded(onReceipt(hold))}
	switch {
	case !hold.Held:
		m["position"] = hold.Position
		return t.send("waiting", m)
	case t.held:
		return t.send("kept", m)
	}
	t.held = true
	t.connectionsWaiting.Add(-1)
	t.connectionsHeld.Add(1)
	m["locks"] = locks(hold)
	return t.send("held", m)
}

// end must be called when the connection no longer keeps its hold.
func (t *teller) end() {
	if t.held {
		t.connectionsHeld.Add(-1)
	} else {
		t.connectionsWaiting.Add(-1)
	}
}

package serve

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/holdfast-lock/holdfast/internal/asjson"
)

// A problemKind is a kind of problem as in RFC 9457. Every answer other than a success has one.
type problemKind struct {
	status  int
	title   string
	meaning string // for /problems/{type}
	do      string
}

var problemKinds = map[string]problemKind{
	"bad-request":     {400, "the request cannot be understood", "The field or the path that is named is not as it has to be.", "Mend the request."},
	"unauthenticated": {401, "who are you?", "The request does not prove who sends it, or proves it wrongly.", "Send the header Authorization: Bearer SECRET, or use the unix socket."},
	"forbidden":       {403, "not allowed", "Your line of the tokens file lacks the verb, or the names, that are named.", "Ask whoever keeps the tokens file."},
	"not-found":       {404, "not there", "There is no such path, or nothing of this name and token.", "Look at /v1/locks."},
	"method":          {405, "not with this method", "The path is there, with the methods of the header Allow.", "Use one of these methods."},
	"held":            {409, "held by others", "Others hold the lock, or wait before you.", "Wait for it (field wait), or leave it."},
	"over":            {410, "the hold is over", "It was released, was broken, died, or was never there; why says which. That is final.", "Stop the work that it protects. If there is still work, ask again with a new id."},
	"too-large":       {413, "too large", "The body is larger than 64 KiB.", "Send less at a time."},
	"media-type":      {415, "not JSON", "The body is not declared to be JSON.", "Send the header Content-Type: application/json."},
	"other-hold":      {422, "the id is that of another hold", "This id was used for other names or in another mode.", "Draw a new id for each hold: openssl rand -hex 16."},
	"too-many":        {429, "too many", "Too many requests of yours in a second, or too many that wait.", "Send it again after as many seconds as Retry-After says."},
	"fault":           {500, "a fault of ours", "The log of the server has more, under the fault's id.", "Send it again; report it if it comes again."},
	"unknown-outcome": {503, "outcome unknown", "The store did not answer in time. What was asked for may have been done, or not.", "Send the same request again, with the same id."},
}

// members are the members of a JSON object, such as a problem.
type members map[string]any

// problem makes the body of a kind of problem.
func problem(kind, detail string, more members) members {
	k := problemKinds[kind]
	m := members{"type": "/problems/" + kind, "title": k.title, "status": k.status}
	if detail != "" {
		m["detail"] = detail
	}
	for name, v := range more {
		m[name] = v
	}
	return m
}

// refuse answers with a problem, and returns its kind.
func refuse(w http.ResponseWriter, r *http.Request, kind, detail string) string {
	send(w, r, problem(kind, detail, nil))
	return kind
}

// send answers with a problem.
func send(w http.ResponseWriter, r *http.Request, p members) {
	status := p["status"].(int)
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="holdfast"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	write(w, r, status, "application/problem+json", p)
}

// showProblem is GET /problems/{type}: what a kind of problem means.
func (h *Handler) showProblem(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("type")
	k, ok := problemKinds[name]
	if !ok {
		refuse(w, r, "not-found", fmt.Sprintf("there is no problem %q", name))
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n\n%s\n%s\n", k.status, k.title, k.meaning, k.do)
	text(w, r, http.StatusOK, b.String())
}

// write answers with JSON.
func write(w http.ResponseWriter, r *http.Request, status int, contentType string, v any) {
	begin(w, contentType)
	w.WriteHeader(status)
	asjson.Encode(w, v) // the client may have gone
}

// text answers with plain text.
func text(w http.ResponseWriter, _ *http.Request, status int, s string) {
	begin(w, "text/plain; charset=utf-8")
	w.WriteHeader(status)
	w.Write([]byte(s))
}

// begin sets the headers that all answers have, and how long the client may take to read one.
func begin(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	patient(w)
}

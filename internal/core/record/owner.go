package record

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// An Owner says whose a claim is, for people: no decision depends on it. It is the Owner of
// the root package, field by field.
type Owner struct {
	Session string            `json:"session,omitempty"`
	Name    string            `json:"name,omitempty"`
	Host    string            `json:"host,omitempty"`
	PID     int               `json:"pid,omitempty"`
	User    string            `json:"user,omitempty"`
	Program string            `json:"program,omitempty"`
	Address string            `json:"address,omitempty"`
	Device  string            `json:"device,omitempty"`
	Started time.Time         `json:"started,omitzero"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// String is "user@host (pid 4711)", or "name (user@host, pid 4711)", or as much of it as is
// known.
func (o Owner) String() string {
	s, more := o.Host, []string(nil)
	if o.User != "" {
		s = o.User + "@" + s
	}
	switch {
	case o.Name != "" && s != "":
		s, more = o.Name, []string{s}
	case o.Name != "":
		s = o.Name
	case s == "":
		s = "session " + o.Session[:min(len(o.Session), 8)]
	}
	if o.PID != 0 {
		more = append(more, fmt.Sprintf("pid %d", o.PID))
	}
	if len(more) > 0 {
		s += " (" + strings.Join(more, ", ") + ")"
	}
	return s
}

// maxShown is the most bytes of JSON that an owner takes in an entry: MaxBreaks entries, with
// their reasons, fit into what MaxRecord leaves of a record.
const maxShown = 3000

// Bounded is the owner in at most maxShown bytes of JSON. Labels go first; name, host, user
// and pid stay.
func (o Owner) Bounded() Owner {
	fits := func() bool {
		text, err := json.Marshal(o)
		return err == nil && len(text) <= maxShown
	}
	if fits() {
		return o
	}
	if o.Labels = nil; fits() {
		return o
	}
	return Owner{Session: Cut(o.Session, 64), Name: Cut(o.Name, 130), Host: Cut(o.Host, 130), PID: o.PID, User: Cut(o.User, 130)} // six bytes each at most
}

// Cut is the text, shortened at its end to at most n bytes.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	const ellipsis = "…"
	for n -= len(ellipsis); n > 0 && !utf8.RuneStart(text[n]); {
		n--
	}
	return text[:n] + ellipsis
}

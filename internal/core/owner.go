package core

import (
	"fmt"
	"time"
)

// An Owner says whose a claim is, for people: nothing is decided on it. It is the Owner of
// the root package, field by field.
type Owner struct {
	Session string            `json:"session,omitempty"`
	Host    string            `json:"host,omitempty"`
	PID     int               `json:"pid,omitempty"`
	User    string            `json:"user,omitempty"`
	Program string            `json:"program,omitempty"`
	Address string            `json:"address,omitempty"`
	Device  string            `json:"device,omitempty"`
	Started time.Time         `json:"started,omitzero"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// String is "user@host (pid 4711)", or as much of it as is known.
func (o Owner) String() string {
	s := o.Host
	if o.User != "" {
		s = o.User + "@" + s
	}
	if s == "" {
		s = "session " + o.Session[:min(len(o.Session), 8)]
	}
	if o.PID != 0 {
		s += fmt.Sprintf(" (pid %d)", o.PID)
	}
	return s
}

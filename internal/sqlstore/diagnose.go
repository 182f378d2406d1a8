package sqlstore

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Report is what a store has to say about its database, for people.
type Report []driver.Finding

// Say adds a finding.
func (r *Report) Say(level driver.Level, subject, format string, args ...any) {
	*r = append(*r, driver.Finding{Level: level, Subject: subject, Text: fmt.Sprintf(format, args...)})
}

// Check adds a failure where there is an error, and what is good where there is none.
func (r *Report) Check(err error, subject, format string, args ...any) {
	if err != nil {
		r.Say(driver.Failure, subject, "%v", err)
		return
	}
	r.Say(driver.Good, subject, format, args...)
}

// A Danger is a setting of a server S that puts locks at risk, unless it is accepted by name.
type Danger[S any] struct {
	Name    string
	Subject string // "durability"
	There   func(S) bool
	Text    string // in which $x is the server's setting x
	Cure    string
}

// Dangers are those that a database knows.
type Dangers[S interface{ Setting(name string) string }] []Danger[S]

// Check refuses to accept what is not among them.
func (ds Dangers[S]) Check(allow []string) error {
	var names []string
	for _, d := range ds {
		names = append(names, d.Name)
	}
	return CheckAllowed(allow, names...)
}

// CheckAllowed refuses to accept a danger that is none of those with these names.
func CheckAllowed(allow []string, names ...string) error {
	slices.Sort(names)
	for _, a := range allow {
		if !slices.Contains(names, a) {
			return fmt.Errorf("cannot allow %q: it is none of %s", a, strings.Join(names, ", "))
		}
	}
	return nil
}

// Refuse returns the first danger of a server that is not accepted, as an error.
func (ds Dangers[S]) Refuse(server S, allow []string) error {
	for _, d := range ds {
		if d.There(server) && !slices.Contains(allow, d.Name) {
			return &driver.DangerError{Danger: d.Name, What: os.Expand(d.Text, server.Setting), Cure: d.Cure}
		}
	}
	return nil
}

// Report reports the dangers of a server, or what is good where there is none.
func (ds Dangers[S]) Report(r *Report, server S, allow []string, good string) {
	found := false
	for _, d := range ds {
		if !d.There(server) {
			continue
		}
		found = true
		text := os.Expand(d.Text, server.Setting)
		if slices.Contains(allow, d.Name) {
			r.Say(driver.Warning, d.Subject, "%s is accepted: %s", d.Name, text)
		} else {
			r.Say(driver.Failure, d.Subject, "%s. %s", text, d.Cure)
		}
	}
	if !found {
		r.Say(driver.Good, "durability", "%s", os.Expand(good, server.Setting))
	}
}

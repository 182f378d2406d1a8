package sqlstore

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
)

// Facts are what is known of a server, by name: its settings, and what else was asked for.
type Facts map[string]string

// Is tells whether a fact is one of the values, which are in capital letters. One that is not
// known is none.
func (f Facts) Is(name string, values ...string) bool {
	v, ok := f[name]
	return ok && slices.Contains(values, strings.ToUpper(v))
}

// Int is a fact as a number; 0 if it is none.
func (f Facts) Int(name string) int64 {
	n, _ := strconv.ParseInt(f[name], 10, 64)
	return n
}

// Expand puts facts into a text in place of $name.
func (f Facts) Expand(text string) string {
	return os.Expand(text, func(name string) string { return f[name] })
}

// Is is a condition: whether a fact is one of the values, see Facts.Is.
func Is(name string, values ...string) func(Facts) bool {
	return func(f Facts) bool { return f.Is(name, values...) }
}

// A Danger is what a server may be that puts locks at risk, unless it is accepted by name.
// Without a name it is never accepted.
type Danger struct {
	Name    string
	Subject string // "durability"
	There   func(Facts) bool
	Text    string // in which $x is the fact x
	Cure    string
	Err     error // of one without a name, in place of Text
	Writes  bool  // one without a name matters only to who writes, as all that have one do
}

// Dangers are those that a database knows.
type Dangers []Danger

// Check refuses to accept what is not among them.
func (ds Dangers) Check(allow []string) error {
	var names []string
	for _, d := range ds {
		if d.Name != "" {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	for _, a := range allow {
		if !slices.Contains(names, a) {
			return fmt.Errorf("cannot allow %q: it is none of %s", a, strings.Join(names, ", "))
		}
	}
	return nil
}

// Unfit is the first danger of a server that is never accepted, as an error, for who only reads
// or not.
func (ds Dangers) Unfit(server Facts, readOnly bool) error {
	for _, d := range ds {
		if d.Name == "" && !(readOnly && d.Writes) && d.There(server) {
			return cmp.Or(d.Err, errors.New(server.Expand(d.Text)))
		}
	}
	return nil
}

// Refuse returns the first danger of a server that is not accepted, as an error.
func (ds Dangers) Refuse(server Facts, allow []string, readOnly bool) error {
	if err := ds.Unfit(server, readOnly); err != nil || readOnly {
		return err
	}
	for _, d := range ds {
		if d.Name != "" && d.There(server) && !slices.Contains(allow, d.Name) {
			return &driver.DangerError{Danger: d.Name, What: server.Expand(d.Text), Cure: d.Cure}
		}
	}
	return nil
}

// Report reports the dangers of a server that may be accepted, or what is good where there is none.
func (ds Dangers) Report(r *driver.Findings, server Facts, allow []string, good string) {
	found := false
	for _, d := range ds {
		if d.Name == "" || !d.There(server) {
			continue
		}
		found = true
		text := server.Expand(d.Text)
		if slices.Contains(allow, d.Name) {
			r.Say(driver.Warning, d.Subject, "%s is accepted: %s", d.Name, text)
		} else {
			r.Say(driver.Failure, d.Subject, "%s. %s", text, d.Cure)
		}
	}
	if !found {
		r.Say(driver.Good, "durability", "%s", server.Expand(good))
	}
}

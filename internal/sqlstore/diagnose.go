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

// Facts are what is known about a server, by name: its settings, and whatever else was asked.
type Facts map[string]string

// Is tells whether a fact is one of the values, which are in capital letters. An unknown fact is
// none of them.
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

// A Danger is a property of a server that puts locks at risk. It can be accepted by its name;
// one without a name never is.
type Danger struct {
	Name    string
	Subject string // "durability"
	There   func(Facts) bool
	Text    string // in which $x is the fact x
	Cure    string
	Err     error // without a name: in place of Text
	Writes  bool  // without a name: it matters only to writers, as dangers with a name do
}

// Dangers are those of one kind of database.
type Dangers []Danger

// Check refuses names that are not among them.
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

// Unfit returns the first danger of a server that is never accepted, as an error. With readOnly
// it leaves out those that matter only to writers.
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

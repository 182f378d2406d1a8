package explore

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"strings"
)

// Start is the world with which a search begins: New, and then what Setup.After says.
func (s Setup) Start() (*World, error) { return s.follow(New(s), s.After) }

// follow goes a way from a world, to its end or to the first world with which something is
// wrong.
func (s Setup) follow(w *World, way []string) (*World, error) {
	for _, step := range way {
		if w.bad != "" {
			break
		}
		var to *World
		var others []string
		s.Next(w, func(what string, _ bool, v *World) {
			if others = append(others, what); what == step {
				to = v
			}
		})
		if to == nil {
			return w, fmt.Errorf("%q is not possible at %v, but: %s", step, w, strings.Join(others, "; "))
		}
		w = to
	}
	return w, nil
}

// Replay goes a way from the beginning, and returns what is wrong then; "": nothing.
func (s Setup) Replay(way ...string) (found string, err error) {
	w, err := s.Start()
	if err == nil {
		w, err = s.follow(w, way)
	}
	switch {
	case err != nil:
		return "", err
	case w.bad != "":
		return w.bad, nil
	case s.blocked(w):
		return Blocked, nil
	}
	return "", nil
}

// blocked says whether no world can follow, without faults, in which all is done.
func (s Setup) blocked(w *World) bool {
	seed, e := maphash.MakeSeed(), newEncoder(s)
	seen := make(map[uint64]bool)
	for todo := []*World{w}; len(todo) > 0; {
		w := todo[len(todo)-1]
		if todo = todo[:len(todo)-1]; s.Done(w) {
			return false
		}
		s.Next(w, func(_ string, fault bool, v *World) {
			h := maphash.Bytes(seed, e.world(v))
			if !fault && !seen[h] {
				seen[h] = true
				todo = append(todo, v)
			}
		})
	}
	return true
}

// GoTest is a test for this package that fails as the search did. It is to be pasted into a
// file there.
func (s Setup) GoTest(r Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "// %s.\nfunc TestFound(t *testing.T) {\n\treplay(t, %s,\n", r.Found, s.source())
	for _, what := range r.Way {
		fmt.Fprintf(&b, "\t\t%q,\n", what)
	}
	b.WriteString("\t)\n}\n")
	return b.String()
}

// source is the Setup as Go.
func (s Setup) source() string {
	var fields []string
	s.Limit = 0
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			fields = append(fields, fmt.Sprintf("%s: %#v", v.Type().Field(i).Name, f.Interface()))
		}
	}
	return "Setup{" + strings.Join(fields, ", ") + "}"
}

package explore

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Start is the world with which a search begins: New, and then what Setup.After says.
func (s Setup) Start() (*World, error) { return s.follow(New(s), s.After) }

// follow takes a way from a world, to its end or to the first world in which something is
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

// Replay takes a way from the beginning, and returns what is wrong at its end; "": nothing.
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

// blocked says whether no world in which all is done can follow without faults.
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

// GoTest is a test that fails as the search did, to be pasted into a test file of this
// package.
func (s Setup) GoTest(r Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "// %s.\nfunc TestFound(t *testing.T) {\n\treplay(t, %s,\n", r.Found, s.source())
	for _, what := range r.Way {
		fmt.Fprintf(&b, "\t\t%q,\n", what)
	}
	b.WriteString("\t)\n}\n")
	return b.String()
}

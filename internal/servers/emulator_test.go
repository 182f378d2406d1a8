//go:build linux

package servers

import "testing"

// An emulator that was killed is empty, and has its database again once it answers.
func TestEmulators(t *testing.T) {
	for _, k := range Kinds {
		if k.Emulator == "" {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			s := k.Server(t, &Options{})
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := s.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if one, two := s.Database(t), s.Database(t); one == two || one == s.URL {
				t.Errorf("got %s and %s", one, two)
			}
			if left := working(s.Dir); len(left) != 1 {
				t.Errorf("processes %v work in %s, want one", left, s.Dir)
			}
		})
	}
}

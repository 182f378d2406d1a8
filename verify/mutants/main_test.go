package main

import "testing"

// The table fits the sources: each text to be replaced is there once.
func TestFits(t *testing.T) {
	seen := make(map[string]bool)
	for _, table := range tables {
		for _, m := range table.mutants {
			if _, err := m.mutated("../.."); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
			if seen[m.name] {
				t.Errorf("there are two mutants %q", m.name)
			}
			seen[m.name] = true
		}
	}
}

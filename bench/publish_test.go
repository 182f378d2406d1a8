package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The charts and tables of the pages are those of the results that are kept, so that no number on
// them was written by hand.
func TestPublished(t *testing.T) {
	files, err := filepath.Glob("results/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no results are kept", err)
	}
	r, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/performance.md")
	if err != nil {
		t.Skip(err) // where the module is alone
	}
	filled, err := r.fill(string(page))
	if err != nil {
		t.Fatal(err)
	}
	if filled != string(page) {
		t.Error("the tables of docs/performance.md are others: go run ./bench -docs docs bench/results/*.json")
	}
	charts := r.charts()
	if len(charts) < 4 {
		t.Errorf("there are only %d charts", len(charts))
	}
	for _, c := range charts {
		for _, p := range palettes {
			svg, err := c.draw(&p)
			if err != nil {
				t.Fatal(err)
			}
			name := "../docs/pictures/bench-" + c.file + "-" + p.name + ".svg"
			if kept, err := os.ReadFile(name); err != nil || string(kept) != string(svg) {
				t.Errorf("%s is another picture (%v): go run ./bench -docs docs bench/results/*.json", name, err)
			}
		}
	}
}

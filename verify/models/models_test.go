package models_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/verify/ledger"
	"github.com/holdfast-lock/holdfast/verify/models"
)

var (
	full  = flag.Bool("full", false, "search the models of medium size as well, which takes minutes")
	trace = flag.Int("trace", 4, "of the way to a violation show so many last steps; 0: all")
)

// TestModels searches what is quick, and with -full what is of medium size.
func TestModels(t *testing.T) {
	run(t, models.Quick)
	if *full {
		run(t, models.Medium)
	}
}

func run(t *testing.T, size models.Size) {
	for _, c := range models.Cases() {
		if c.Size == size {
			t.Run(c.Model+"/"+c.World, func(t *testing.T) { search(t, c) })
		}
	}
}

func search(t *testing.T, c models.Case) {
	settings, violations := c.World, 0
	if c.Must != "" {
		settings, violations = "must fail: "+settings, 1
	}
	line := ledger.Begin("models", c.Model, settings)
	r := c.Run()
	result := "holds"
	if r.Found != "" {
		result = r.Found
	}
	t.Logf("| %s | %s | %d | %d | %d | %.1f s | %s |", c.Model, c.World, r.States, r.Transitions, r.Depth, r.Seconds, result)
	way := r.Trace
	if c.Must != "" && *trace > 0 && len(way) > *trace {
		way = append([]string{fmt.Sprintf("(%d steps before)", len(way)-*trace)}, way[len(way)-*trace:]...)
	}
	if len(way) > 0 {
		t.Logf("\n    %s", strings.Join(way, "\n    "))
	}
	switch {
	case r.Found != c.Must:
		t.Errorf("found %q, want %q", r.Found, c.Must)
	case c.Must == "" && !r.Complete:
		t.Error("not all states were searched")
	default:
		if err := line.End(r.States, violations); err != nil {
			t.Error(err)
		}
	}
}

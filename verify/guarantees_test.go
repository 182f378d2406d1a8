package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/holdfast-lock/holdfast/verify/ledger"
)

var cited = regexp.MustCompile("`(sim|models|chaos|histories|mutants) ([a-zA-Z ]+)`")

// What the page on guarantees gives as evidence is in the ledger, without a promise broken since
// the last time that one was: what had broken it was mended.
func TestEvidence(t *testing.T) {
	text, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := ledger.Read("LEDGER.tsv")
	if err != nil {
		t.Fatal(err)
	}
	found := cited.FindAllStringSubmatch(string(text), -1)
	if len(found) < 20 {
		t.Fatalf("only %d pieces of evidence are found", len(found))
	}
	for _, c := range found {
		since := lines
		for i, l := range lines {
			if c[1] != "models" && l.Violations > 0 && ledger.Total(lines[i:i+1], c[1], c[2]).Count > 0 { // of models some have to fail
				since = lines[i+1:]
			}
		}
		if ledger.Total(since, c[1], c[2]).Count == 0 {
			t.Errorf("%s: there is no such line in the ledger, or none since a promise was broken", c[0])
		}
	}
}

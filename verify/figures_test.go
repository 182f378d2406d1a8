package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/holdfast-lock/holdfast/verify/ledger"
)

// docs/testing.md has the figures of the ledger, and no others.
func TestFigures(t *testing.T) {
	path, want, err := withTable()
	if err != nil {
		t.Fatal(err)
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, want) {
		t.Errorf("the table in %s is not that of the ledger: go run ./verify ledger --write (%v)", path, err)
	}
}

func TestTable(t *testing.T) {
	got := table([]ledger.Line{
		{Layer: "sim", Count: 1500},
		{Layer: "sim", Count: 1_000_000, Violations: 1},
		{Layer: "models", Store: "core", Settings: "X X", Count: 70},
		{Layer: "models", Store: "core", Settings: "X X", Count: 70},
		{Layer: "models", Store: "core", Settings: "must fail: no version", Count: 10, Violations: 1},
		{Layer: "models", Store: "core", Settings: "must fail: no floor", Count: 10},
		{Layer: "chaos", Store: "etcd", Count: 3},
		{Layer: "chaos", Store: "mysql", Count: 4},
		{Layer: "mutants", Store: "core", Settings: "found by tests 8", Count: 10, Violations: 2},
		{Layer: "mutants", Store: "core", Settings: "found by tests 11", Count: 11},
		{Layer: "mutants", Store: "sql", Settings: "found by tests 2", Count: 3, Violations: 1},
		{Layer: "something else", Count: 4},
	})
	const want = `| How many | What | Where | Went wrong |
|---|---|---|---|
| 1,001,500 | simulated worlds |  | 1 |
| 70 | states of models, all searched |  | 0 |
| 2 | models that are broken on purpose, or are as others wrote them, and must fail |  | 1 |
| 7 | episodes of faults on real servers | mysql 4, etcd 3 | 0 |
| 14 | mutants: rules taken out one at a time, which the tests must notice | core 11, sql 3 | 1 |
`
	if got != want {
		t.Errorf("have\n%s\nwant\n%s", got, want)
	}
}

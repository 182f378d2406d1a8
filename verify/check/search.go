package check

import (
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
)

// patience bounds a search; one that is not decided is no violation.
const patience = 5 * time.Second

// Searches counts the searches for an order of a history, and Undecided those of
// them that were given up: they have found nothing, and prove nothing.
var Searches, Undecided atomic.Int64

func linearizable(m porcupine.Model, ops []porcupine.Operation) bool {
	Searches.Add(1)
	verdict := porcupine.CheckOperationsTimeout(m, ops, patience)
	if verdict == porcupine.Unknown {
		Undecided.Add(1)
	}
	return verdict != porcupine.Illegal
}

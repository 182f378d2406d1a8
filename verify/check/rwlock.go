package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type lockOp struct {
	hold Hold
	end  bool
}

// holders is a state as porcupine wants it, comparable: "token/slots " of each
// holder in the order of tokens, and the highest exclusive token given.
type holders struct {
	inside string
	last   int64
}

// RWLock checks C4: the grants of each name and their ends, in some order that
// agrees with real time, are those of one lock which lets in who fits and whose
// tokens grow.
func RWLock(holds []Hold) (found []Violation) {
	for name, hs := range byName(holds) {
		var ops []porcupine.Operation
		hs = slices.DeleteFunc(hs, func(h Hold) bool { return h.Void || h.Ended < h.Granted }) // those were never believed in
		slices.SortFunc(hs, func(a, b Hold) int { return cmp.Compare(a.Token, b.Token) })
		var ended time.Duration // all that have a smaller token
		for i, h := range hs {
			// An exclusive holder comes after each of those: with its token before it
			// they could not come in, nor it beside them. This only shortens the search.
			asked := h.Asked
			if h.Slots == 1 && ended <= h.Granted {
				asked = max(asked, ended)
			}
			ended = max(ended, h.Ended)
			ops = append(ops,
				porcupine.Operation{ClientId: i, Input: lockOp{h, false}, Call: int64(asked), Return: int64(h.Granted)},
				porcupine.Operation{ClientId: i, Input: lockOp{h, true}, Call: int64(h.Ended), Return: int64(h.Ended)})
		}
		if !linearizable(lockModel, ops) {
			found = append(found, violation("C4", "the holders of %q are in no order those of a lock: %v", name, hs))
		}
	}
	return found
}

var lockModel = porcupine.Model{
	Init: func() any { return holders{} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(holders), input.(lockOp)
		inside := strings.Fields(s.inside)
		me := fmt.Sprintf("%020d/%d", op.hold.Token, op.hold.Slots)
		i, in := slices.BinarySearch(inside, me)
		switch {
		case op.end && !in:
			return false, s
		case op.end:
			inside = slices.Delete(inside, i, i+1)
		case in || op.hold.Token <= s.last || !goesIn(op.hold.Slots, inside):
			return false, s
		default:
			inside = slices.Insert(inside, i, me)
			if op.hold.Slots == 1 {
				s.last = op.hold.Token
			}
		}
		s.inside = strings.Join(inside, " ")
		return true, s
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

func goesIn(slots int, inside []string) bool {
	n := len(inside) + 1
	for _, h := range inside {
		var token int64
		var m int
		fmt.Sscanf(h, "%d/%d", &token, &m)
		if m != 0 && n > m {
			return false
		}
	}
	return slots == 0 || n <= slots
}

package check

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// An Access is a read of, or a fenced write to, a resource.
type Access struct {
	Client       int
	Call, Return time.Duration
	Read         bool
	Value        int64 // written, or read
	Token        int64
	Shared       bool // the token is not of an exclusive holder
	Refused      bool // the write was; false: it was taken
	// Strict: the fence refuses by tokens alone, so it may refuse only a token
	// that is too old. A fence that also asks the lock itself may refuse more.
	Strict bool
}

type register struct{ any, exclusive, value int64 }

// Register checks C3. A history without reads proves little: a stale write
// can then always be said to have come first.
func Register(name string, history []Access) []Violation {
	ops := make([]porcupine.Operation, len(history))
	for i, a := range history {
		ops[i] = porcupine.Operation{ClientId: a.Client, Input: a, Call: int64(a.Call), Return: int64(a.Return)}
	}
	if !linearizable(registerModel, ops) {
		return []Violation{violation("C3", "the accesses to %q are in no order those of a fenced register: %+v", name, history)}
	}
	return nil
}

var registerModel = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		r, a := state.(register), input.(Access)
		if a.Read {
			return a.Value == r.value, r
		}
		limit := r.any
		if a.Shared {
			limit = r.exclusive
		}
		switch old := a.Token < limit; {
		case a.Refused:
			return old || !a.Strict, r
		case old:
			return false, r
		}
		r.value, r.any = a.Value, max(r.any, a.Token)
		if !a.Shared {
			r.exclusive = max(r.exclusive, a.Token)
		}
		return true, r
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// patience bounds a search; one that is not decided is no violation.
const patience = 5 * time.Second

func linearizable(m porcupine.Model, ops []porcupine.Operation) bool {
	return porcupine.CheckOperationsTimeout(m, ops, patience) != porcupine.Illegal
}

package check

import (
	"fmt"
	"math"
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
	// Unknown: whoever wrote has no answer. The write was taken, or will be, or
	// never will.
	Unknown bool
	// Strict: the fence refuses by tokens alone, so it may refuse only a token
	// that is too old. A fence that also asks the lock itself may refuse more.
	Strict bool
}

type register struct{ any, exclusive, value int64 }

// Register checks C3. A history without reads proves little: a stale write
// can then always be said to have come first.
func Register(name string, history []Access) []Violation {
	var ops []porcupine.Operation
	for _, a := range settle(history) {
		op := porcupine.Operation{ClientId: a.Client, Input: a, Call: int64(a.Call), Return: int64(a.Return)}
		if a.Unknown {
			op.Return = math.MaxInt64
		}
		ops = append(ops, op)
	}
	if !linearizable(registerModel, ops) {
		return []Violation{violation("C3", "the accesses to %q are in no order those of a fenced register: %+v", name, history)}
	}
	return nil
}

// settle decides of writes without an answer what the others tell. Who has read
// a value, which is only written once, knows that the write was taken. What
// nobody has read may as well not have been, unless somebody was refused for it.
func settle(history []Access) (settled []Access) {
	seen := make(map[int64]time.Duration) // when the first answer was there that had this value
	refused := false
	for _, a := range history {
		if at, ok := seen[a.Value]; a.Read && (!ok || a.Return < at) {
			seen[a.Value] = a.Return
		}
		refused = refused || a.Refused && a.Strict
	}
	for _, a := range history {
		if a.Unknown {
			at, taken := seen[a.Value]
			if !taken && !refused {
				continue
			}
			if taken {
				a.Unknown, a.Refused, a.Return = false, false, max(at, a.Call)
			}
		}
		settled = append(settled, a)
	}
	return settled
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
		case a.Unknown && old: // so is one that comes after all else
			return true, r
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

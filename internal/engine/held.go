package engine

import (
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Held is the error of a request with others in the way: a HeldError made of records.
type Held struct {
	C                  *Engine
	Name               string
	Holders            []record.Claim              // in order of their grant
	Waiters            []record.Claim              // those who wait before us, first come first
	Looks              map[string]base.SessionRead // of their sessions; nil: they were not read
	Self, Locked, Full bool
	Err                error // nil, or what ended the wait
}

func (h *Held) Is(target error) bool { return target == base.ErrHeld }

func (h *Held) Unwrap() error { return h.Err }

func (h *Held) Error() string { return "held" }

// sessions are the sessions of the claims in the way.
func (h *Held) sessions() (ids []string) {
	for _, claims := range [][]record.Claim{h.Holders, h.Waiters} {
		for _, cl := range claims {
			ids = append(ids, cl.Session)
		}
	}
	return ids
}

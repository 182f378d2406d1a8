package driver

import (
	"errors"
	"fmt"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Fence checks a token against a lock record, for the writers of stores, who
// call it with the record as it was read inside the user's transaction after
// the row was locked against CompareAndSwap. last is the number that the store
// keeps beside the record (0 at first), and next is what it has to keep from
// now on. It returns an error that is ErrLost if the token does not hold name.
//
// The number is for hand-offs inside a process, where one exclusive claim has
// many tokens: an older holder of the claim may not write behind a newer one.
func (r Record) Fence(name string, token, last int64) (next int64, err error) {
	rec, err := record.DecodeLock(r.Value, record.Version(r.Version))
	if err != nil {
		return last, fmt.Errorf("fence %q: %w", name, err)
	}
	for _, h := range rec.Holders {
		if !h.Has(record.Token(token)) {
			continue
		}
		if h.Slots != 1 || h.Tokens() == 1 {
			return last, nil
		}
		if token < last {
			break
		}
		return token, nil
	}
	return last, &fenceError{name, token}
}

// ErrNothingFenced is what a store's Fence returns if it is called without a lock: the transaction
// would commit whoever holds what.
var ErrNothingFenced = errors.New("fence: called without a lock, so nothing would be fenced")

// StoreOf is the store of a lock as the fence of its package needs it, or that of the store that it
// wraps. kind is for the error of a lock in another kind of store, whose fence says nothing of this
// database.
func StoreOf[S any](l interface {
	Name() string
	Store() Store
}, kind string) (S, error) {
	s, ok := Find[S](l.Store())
	if !ok {
		return s, fmt.Errorf("fence %q: the lock was taken in a store that is not %s but a %T; fence it there", l.Name(), kind, l.Store())
	}
	return s, nil
}

type fenceError struct {
	name  string
	token int64
}

func (e *fenceError) Is(target error) bool { return target == record.ErrLost }

func (e *fenceError) Error() string {
	return fmt.Sprintf("fence %q: token %d no longer holds it; roll back", e.name, e.token)
}

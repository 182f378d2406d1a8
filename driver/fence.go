package driver

import (
	"errors"
	"fmt"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Fence checks a token against a lock record. A store calls it with the record
// as read inside the user's transaction, after it has locked the row against
// CompareAndSwap. last is the number that the store keeps beside the record
// (0 at first); next is the number that it has to keep from now on. Fence
// returns an error that is ErrLost if the token does not hold name.
//
// The number is for hand-offs inside a process, where one exclusive claim has
// many tokens: an older holder of the claim must not write after a newer one.
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
// would commit no matter who holds which lock.
var ErrNothingFenced = errors.New("fence: called without a lock, so nothing would be fenced")

// StoreOf returns the store of a lock, or the store wrapped in it, as the type S that a package's
// fence needs. kind describes S in the error for a lock in another kind of store, whose own fence
// says nothing about this database.
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

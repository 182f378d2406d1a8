package sqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Lock is a *holdfast.Lock.
type Lock interface {
	Name() string
	Token() int64
	Store() driver.Store
	FenceFailed(ctx context.Context, err error) error
}

// Fence calls fence for each lock with the store where it was taken, which has to be an S or to
// embed one. kind describes S in errors.
func Fence[S any, L Lock](ctx context.Context, locks []L, kind string, fence func(s S, name string, token int64) error) error {
	if len(locks) == 0 {
		return driver.ErrNothingFenced
	}
	for _, l := range locks {
		s, err := storeOf[S](l, kind)
		if err != nil {
			return err
		}
		if err := fence(s, l.Name(), l.Token()); err != nil {
			return l.FenceFailed(ctx, err)
		}
	}
	return nil
}

func storeOf[S any](l Lock, kind string) (S, error) {
	if in, ok := driver.Find[interface{ self() any }](l.Store()); ok {
		if s, ok := in.self().(S); ok {
			return s, nil
		}
	}
	return driver.StoreOf[S](l, kind)
}

func (s *Store) self() any { return s.Self }

var (
	errNoLock        = errors.New("there is no such lock in the database of this transaction: the lock was taken in another one")
	errNoTransaction = errors.New("the transaction has ended already: a statement in it commits by itself, as those that change tables do")
)

// Fenced is what an error of the fence in the database means for the lock.
func (c *Codes) Fenced(name string, token int64, err error) error {
	switch c.Meaning(err) {
	case Lost:
		_, err := driver.Record{}.Fence(name, token, 0)
		return err
	case NoLock, Missing:
		err = errNoLock
	case NoTransaction:
		err = errNoTransaction
	}
	if err != nil {
		return fmt.Errorf("fence %q: %w", name, err)
	}
	return nil
}

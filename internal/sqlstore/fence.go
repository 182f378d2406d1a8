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

// Fence has fence check each lock in the tables where it was taken, which are those of a store S, as
// kind calls it.
func Fence[S interface{ TablesOf() Tables }, L Lock](ctx context.Context, locks []L, kind string, fence func(t Tables, name string, token int64) error) error {
	if len(locks) == 0 {
		return driver.ErrNothingFenced
	}
	for _, l := range locks {
		s, err := driver.StoreOf[S](l, kind)
		if err != nil {
			return err
		}
		if err := fence(s.TablesOf(), l.Name(), l.Token()); err != nil {
			return l.FenceFailed(ctx, err)
		}
	}
	return nil
}

// TablesOf is the tables of the store.
func (s *Store) TablesOf() Tables { return s.Tables }

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

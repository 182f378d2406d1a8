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

// Fence has fence check each lock in the tables where it was taken.
func Fence[L Lock](ctx context.Context, locks []L, fence func(t Tables, name string, token int64) error) error {
	if len(locks) == 0 {
		return driver.ErrNothingFenced
	}
	for _, l := range locks {
		t := Tables{Prefix: DefaultPrefix}
		if s, ok := l.Store().(interface{ tables() Tables }); ok {
			t = s.tables()
		}
		if err := fence(t, l.Name(), l.Token()); err != nil {
			return l.FenceFailed(ctx, err)
		}
	}
	return nil
}

func (s *Store) tables() Tables { return s.Tables }

var (
	errNoLock        = errors.New("no such lock in this database; was it taken through another store?")
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

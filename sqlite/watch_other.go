//go:build !unix

package sqlite

import (
	"context"
	"errors"

	"github.com/holdfast-lock/holdfast/driver"
)

type listing struct{}

// Watch implements driver.Watcher, where there are named pipes.
func (s *Store) Watch(context.Context, []string, func(driver.Notification)) error {
	return errors.New("waiters poll: SQLite cannot wake them on this system")
}

func (w *wakes) tellOthers([]driver.Notification) {}

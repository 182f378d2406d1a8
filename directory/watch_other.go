//go:build !linux

package directory

import (
	"context"
	"errors"

	"github.com/holdfast-lock/holdfast/driver"
)

const watchable = false

// Watch implements driver.Watcher on Linux; elsewhere waiters poll.
func (s *Store) Watch(ctx context.Context, _ []string, _ func(driver.Notification)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.New("waiters poll: only on Linux does the kernel tell of changes")
}

func (s *Store) sweepWakes() {}

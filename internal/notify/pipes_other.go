//go:build !unix

package notify

import (
	"context"
	"errors"

	"github.com/holdfast-lock/holdfast/driver"
)

type listing struct{}

// Watch is driver.Watcher's on systems with named pipes; here it fails.
func (b *Board) Watch(context.Context, func(driver.Notification)) error {
	return errors.New("waiters poll: nobody can wake them on this system")
}

func (b *Board) tellOthers([]driver.Notification) {}

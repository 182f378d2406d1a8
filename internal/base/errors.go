package base

import (
	"errors"
	"fmt"

	"github.com/holdfast-lock/holdfast/driver"
)

// The errors of package holdfast with the same names.
var (
	ErrHeld     = errors.New("held")
	ErrReleased = errors.New("released")
	ErrClosed   = errors.New("the client is closed")
	ErrReadOnly = errors.New("this client only looks (Options.ReadOnly)")
)

// NoAnswer is the error of a request whose call was not answered.
func NoAnswer(err error) error {
	if driver.Busy(err) || errors.Is(err, driver.ErrClosed) {
		return err
	}
	return fmt.Errorf("the store does not answer: %w", err)
}

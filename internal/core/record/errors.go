package record

import "errors"

// ErrLost is the cause of a lock that was held and no longer is, without Release. Package
// holdfast exports it; it is here so that a store's fence returns the same error.
var ErrLost = errors.New("lost")

package memory

import (
	"context"

	"github.com/holdfast-lock/holdfast/driver"
)

// Kind is a store in memory, by a URL: memory: is a new one each time.
var Kind = &driver.Kind{
	Name: "memory", Schemes: []string{"memory"}, Form: "memory:", Example: "memory:",
	Settings: []string{"allow"},
	Open: func(context.Context, *driver.Location) (driver.Store, func() error, error) {
		return New(), func() error { return nil }, nil
	},
}

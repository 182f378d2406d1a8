// Command holdfast-spanner is holdfast with a client for Spanner. It is not called by
// name: holdfast becomes it when the store is in a Spanner database.
package main

import (
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/command"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/spanner"
)

func main() { command.Main([]*driver.Kind{spanner.Kind}) }

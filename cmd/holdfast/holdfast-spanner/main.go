// Command holdfast-spanner is holdfast with a client for Spanner. It is not called by
// name: holdfast becomes it when the store is in a Spanner database.
package main

import (
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/command"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/engine"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/spanner"
)

func main() { command.Main(map[string]engine.Engine{"spanner": spanner.Engine}) }

// Package hold has the verbs of holdfast that take locks: run, elect, acquire, extend, release, and
// those of states, whose writers hold one.
package hold

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

// Verbs make the verbs of the package.
var Verbs = []func(*cli.App) *cobra.Command{runVerb, electVerb, acquireVerb, extendVerb, releaseVerb, stateVerb, cacheVerb}

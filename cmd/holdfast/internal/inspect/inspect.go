// Package inspect has the verbs of holdfast that show who holds what, and break it.
package inspect

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

// Verbs make the verbs of the package.
var Verbs = []func(*cli.App) *cobra.Command{listVerb, topVerb, showVerb, watchVerb, historyVerb, breakVerb}

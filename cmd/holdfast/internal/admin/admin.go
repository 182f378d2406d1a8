// Package admin has the verbs of holdfast by which a store is set up, checked, swept and served.
package admin

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

// Verbs make the verbs of the package.
var Verbs = []func(*cli.App) *cobra.Command{configVerb, schemaVerb, sweepVerb, claimsVerb, doctorVerb, serveVerb}

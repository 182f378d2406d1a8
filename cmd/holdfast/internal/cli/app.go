// Package cli is what all verbs of the command share: its store, its failures and exit statuses,
// its log, and its words for a terminal.
package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// An App is one call of the command, as its verb sees it.
type App struct {
	Args  []string // of the process
	Store string
	Log   EventLog
}

// VerbOf returns the words between holdfast and the arguments.
func VerbOf(c *cobra.Command) string { return strings.TrimPrefix(c.CommandPath(), "holdfast ") }

// OneName is the argument check of verbs that take one name.
func OneName(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return Usage("%s: which name? holdfast %s NAME; see: holdfast %[1]s --help", c.Name(), c.Name())
	case len(args) > 1:
		return Usage("%s: one name, not %d; quote a name that has spaces", c.Name(), len(args))
	}
	return nil
}

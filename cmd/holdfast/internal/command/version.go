package command

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

// version is set by the release; if it is empty, the module's is shown.
var version string

func versionVerb() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Long: "usage: holdfast version\n\nPrints the version of this program and of Go.\n\nexample:\n  holdfast version\n",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := fmt.Print(versionText()); err != nil {
				return cli.CannotWrite(err)
			}
			return nil
		},
	}
}

func versionText() string {
	v := version
	if info, ok := debug.ReadBuildInfo(); ok && v == "" {
		v = info.Main.Version
	}
	if v == "" {
		v = "(devel)"
	}
	return fmt.Sprintf("holdfast %s (%s/%s, %s)\n", v, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

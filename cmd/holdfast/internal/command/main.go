// Package command is the command holdfast, shared by all programs that run it.
package command

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-lock/holdfast/driver"
)

// Main runs the command. A guard never gets here (see package guard). own are the stores that it
// can open, others the programs that it becomes for the rest. A process without others is itself
// such a program.
func Main(own []*driver.Kind, others ...cli.Program) {
	if cli.Kinds, cli.Others = own, others; len(cli.Others) == 0 {
		if small := cli.Beside("holdfast"); small != "" {
			guard.Program = small
		}
	}
	os.Exit(run(os.Args[1:]))
}

// run is the command without the process around it; it returns the exit status.
func run(args []string) (status int) {
	defer func() {
		if r := recover(); r != nil {
			cli.Say("a fault of ours: %v; please report it", cli.Escape(fmt.Sprint(r)))
			if os.Getenv("HOLDFAST_DEBUG") != "" {
				os.Stderr.Write(debug.Stack())
			}
			status = cli.ExitFault
		}
	}()
	root := newRoot(args)
	root.SetArgs(args)
	return cli.StatusOf(root.Execute())
}

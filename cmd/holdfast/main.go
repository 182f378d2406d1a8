// Command holdfast runs commands under locks that live in the database you
// already run, and shows, breaks and checks those locks.
//
//	holdfast run nightly -- ./backup.sh
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
)

func main() {
	guard.Main()
	os.Exit(Main(os.Args[1:]))
}

// Main is the command without the process around it; it returns the exit status.
func Main(args []string) (status int) {
	defer func() {
		if r := recover(); r != nil {
			say("a fault of ours: %v; please report it", escape(fmt.Sprint(r)))
			if os.Getenv("HOLDFAST_DEBUG") != "" {
				os.Stderr.Write(debug.Stack())
			}
			status = exitFault
		}
	}()
	root := newRoot(args)
	root.SetArgs(args)
	return statusOf(root.Execute())
}

// The command verify puts Holdfast through what its tests put it through, for as
// long as one likes, on the stores that one names.
//
//	go run ./verify                                      says what there is
//	go run ./verify chaos --store postgres --minutes 10
package main

import (
	"fmt"
	"os"
)

const help = `usage: go run ./verify COMMAND

commands:
  chaos     real processes and real servers under faults, judged
  release   all that is run before a release, for a day or two; resumable
  ledger    what verify/LEDGER.tsv comes to

examples:
  go run ./verify chaos --store postgres --minutes 10
  go run ./verify chaos --store all --minutes 70           ten on each of seven
  go run ./verify chaos --store etcd --only "leader" --minutes 5
  go run ./verify chaos --judge FILE                       a history that was kept
  go run ./verify release --hours 8                        go on with it tonight
  go run ./verify chaos --help
`

func main() {
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
	}
	switch command {
	case "chaos":
		os.Exit(chaos(os.Args[2:]))
	case "ledger":
		os.Exit(figures(os.Args[2:]))
	case "release":
		os.Exit(release(os.Args[2:]))
	case "", "help", "-h", "-help", "--help":
		fmt.Print(help)
	default:
		fmt.Fprintf(os.Stderr, "verify: there is no command %q\n\n%s", command, help)
		os.Exit(64)
	}
}

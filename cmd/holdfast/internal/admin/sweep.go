package admin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const sweepHelp = `usage: holdfast sweep [--json]

Removes what is left over in the store: claims and sessions of processes that have
died, records of free names, and rows that have held nothing for a while (10 minutes
with a TTL of 15s). Running programs do this by themselves every few minutes, and run,
acquire and release sometimes do it as they exit. sweep does it at once, and prints
what it did. It is safe at any time, from any number of hosts.

Sessions that seem dead are watched first, for two TTLs at most.

{flags}

example:
  holdfast sweep --store "$HOLDFAST_STORE"

exit status: 0; 64 usage; 69 store
`

func sweepVerb(a *cli.App) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "sweep", Short: "Remove what the dead have left", Long: sweepHelp, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return sweep(c.Context(), a, asJSON) }}
	c.Flags().BoolVar(&asJSON, "json", false, "one object with the counts")
	return c
}

func sweep(ctx context.Context, a *cli.App, asJSON bool) error {
	s, err := a.Open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	if !asJSON {
		defer time.AfterFunc(2*time.Second, func() {
			cli.Say("still sweeping: there are many names, or a session seems dead and is watched for its TTL")
		}).Stop()
	}
	done, err := s.Sweep(ctx)
	if err != nil {
		return s.Unusable(err, "")
	}
	if asJSON {
		err = asjson.Encode(os.Stdout, struct {
			Dead     int `json:"dead"`
			Claims   int `json:"claims"`
			Sessions int `json:"sessions"`
			Names    int `json:"names"`
			Rows     int `json:"rows"`
		}(done))
	} else {
		_, err = fmt.Println(sweptWords(done))
	}
	if err != nil {
		return cli.CannotWrite(err)
	}
	return nil
}

// sweptWords says what a sweep has done.
func sweptWords(s holdfast.Swept) string {
	var parts []string
	add := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, many))
		}
	}
	add(s.Claims, "claim of a dead session", "claims of dead sessions")
	add(s.Sessions, "dead session", "dead sessions")
	add(s.Names, "record of a free name", "records of free names")
	add(s.Rows, "empty row", "empty rows")
	text := "nothing to remove"
	if len(parts) > 0 {
		text = "removed " + strings.Join(parts, ", ")
	}
	if s.Dead > 0 {
		text += fmt.Sprintf("; found dead: %d", s.Dead)
	}
	return text
}

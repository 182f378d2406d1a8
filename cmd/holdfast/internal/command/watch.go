package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const watchHelp = `usage: holdfast watch [--json] NAME

Shows who holds a name now, and then a line for each change until Ctrl-C.

{flags}

examples:
  holdfast watch deploy
  holdfast watch --json scheduler | jq -r '.holders[0].owner.host'

exit status: 128+n ended by signal n; 64 usage; 69 store
`

func watchVerb(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "watch NAME", Short: "Show each change of a name", Long: watchHelp,
		Args: oneName, ValidArgsFunction: a.completeNames,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one object per line, as list; durations in seconds")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.watch(orBackground(c.Context()), args[0], asJSON)
	}
	return c
}

func (a *app) watch(ctx context.Context, name string, asJSON bool) error {
	if name == "" || len(name) > 255 {
		return checkName(name)
	}
	s, err := a.look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	var before holdfast.Info
	silent := false
	for info, err := range s.Watch(ctx, name) {
		stamp := time.Now().Format(time.TimeOnly)
		switch {
		case err != nil && !silent && before.Name == "":
			return s.unusable(err, "")
		case err != nil:
			if !silent {
				say("%s  the store does not answer: %s", stamp, s.Redact(err.Error()))
			}
			silent = true
			continue
		case asJSON:
			err = asjson.Encode(os.Stdout, asjson.Of(info))
		default:
			_, err = fmt.Printf("%s  %s\n", stamp, change(before, info))
		}
		if errors.Is(err, syscall.EPIPE) {
			return nil
		}
		if err != nil {
			return cannotWrite(err)
		}
		before, silent = info, false
	}
	return nil
}

// change says what is new of a name.
func change(before, now holdfast.Info) string {
	var parts []string
	if before.Name != "" {
		for _, b := range now.Breaks[:max(0, min(len(now.Breaks), len(now.Breaks)-len(before.Breaks)))] {
			parts = append(parts, fmt.Sprintf("%s was broken by %s: %s", shortWho(b.Was), shortWho(b.By), escape(b.Reason)))
		}
	}
	for _, c := range now.Holders {
		if c.Dead {
			parts = append(parts, shortWho(c.Owner)+" is dead")
		}
	}
	var holders []string
	for _, c := range now.Holders {
		if !c.Dead {
			h := fmt.Sprintf("%s%s, token %d", who(c.Owner), heldFor(c), c.Token)
			if c.Suspected {
				h += fmt.Sprintf(", suspected: last beat %s ago", brief(max(0, c.BeatAge)))
			}
			holders = append(holders, h)
		}
	}
	if len(holders) > 0 {
		parts = append(parts, "held by "+strings.Join(holders, " and "))
	} else {
		parts = append(parts, "free")
	}
	if n := len(now.Waiters); n > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting", n))
	}
	return strings.Join(parts, "; ")
}

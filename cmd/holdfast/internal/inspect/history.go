package inspect

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const historyHelp = `usage: holdfast history [flags] [NAME]

Shows the last holds of NAME, newest first: who held it from when and for how long,
how long it had waited, and how it ended (released, lost, taken over, broken,
expired). Without NAME: the last hold of each name. A hold that lasted and waited
for less than a second, and ended well, is only counted.

A program records its ended holds after its next heartbeat, or when it exits, so those
of the last seconds may be missing. How many holds are kept: holdfast config get history

{flags}

examples:
  holdfast history nightly
  holdfast history --json nightly | jq -r '.holds[] | select(.end != "released")'

exit status: 0; 64 usage; 69 store
`

func historyVerb(a *cli.App) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "history [NAME]", Short: "Show the last holds of a name", Long: historyHelp, ValidArgsFunction: a.CompleteNames,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usage("history: one name, not %d", len(args))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one object per name and line; durations in seconds")
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return histories(c.Context(), a, asJSON)
		}
		return history(c.Context(), a, args[0], asJSON)
	}
	return c
}

func history(ctx context.Context, a *cli.App, name string, asJSON bool) error {
	if name == "" || len(name) > driver.MaxName {
		return cli.CheckName(name)
	}
	s, err := a.Look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	h, err := s.History(ctx, name)
	if err != nil {
		return s.Unusable(err, "")
	}
	if asJSON {
		if err := asjson.Encode(os.Stdout, asjson.OfHistory(h)); err != nil {
			return cli.CannotWrite(err)
		}
		return nil
	}
	var t cli.Table
	if len(h.Holds) > 0 {
		t = append(t, pastHead)
	}
	for _, p := range h.Holds {
		t = append(t, pastCells(p))
	}
	if err := t.Write(os.Stdout, cli.LimitOf(os.Stdout)); err != nil {
		return cli.CannotWrite(err)
	}
	if _, err := os.Stdout.WriteString(describeHistory(h)); err != nil {
		return cli.CannotWrite(err)
	}
	if len(h.Holds) == 0 && h.Others.Count == 0 {
		return sayNoHistory(ctx, s, h)
	}
	return nil
}

// sayNoHistory says why nothing is shown.
func sayNoHistory(ctx context.Context, s *cli.Session, h holdfast.History) error {
	holds, err := s.StoreHistory(ctx)
	switch {
	case err != nil:
		return s.Unusable(err, "")
	case holds == 0:
		cli.Say("%s keeps no history: %s", s.Target, cli.Hint("config set history 32"))
	case h.Name == "":
		cli.Say("no hold has ended yet in %s", s.Target)
	default:
		cli.Say("no hold of %s has ended yet in %s", cli.Quote(h.Name), s.Target)
	}
	return nil
}

// histories shows the last hold of each name.
func histories(ctx context.Context, a *cli.App, asJSON bool) error {
	s, err := a.Look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	t := cli.Table{append([]string{"NAME"}, pastHead...)}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush() // what was read before an error
	var counted int64
	for h, err := range s.Histories(ctx, "") {
		if err != nil {
			return s.Unusable(err, "")
		}
		if asJSON {
			if err := asjson.Encode(out, asjson.OfHistory(h)); err != nil {
				return cli.CannotWrite(err)
			}
			continue
		}
		counted += h.Others.Count
		if len(h.Holds) == 0 {
			continue
		}
		t = append(t, append([]string{cli.Escape(h.Name)}, pastCells(h.Holds[0])...))
	}
	switch {
	case asJSON:
		if err := out.Flush(); err != nil {
			return cli.CannotWrite(err)
		}
		return nil
	case len(t) == 1 && counted > 0:
		cli.Say("no hold is listed in %s: of the %d that have ended only sums are kept; see: %s", s.Target, counted, cli.Hint("history NAME"))
		return nil
	case len(t) == 1:
		return sayNoHistory(ctx, s, holdfast.History{})
	}
	if err := t.Write(os.Stdout, cli.LimitOf(os.Stdout)); err != nil {
		return cli.CannotWrite(err)
	}
	return nil
}

var pastHead = []string{"FROM", "HELD", "WAITED", "OWNER", "TOKEN", "ENDED", "REASON"}

func pastCells(p holdfast.PastHold) []string {
	from, held := "?", "?"
	if !p.From.IsZero() {
		from, held = p.From.Local().Format(time.DateTime), cli.Whole(max(p.To.Sub(p.From), 0))
	}
	return []string{from, held, cli.Whole(p.Waited), owner(p.Owner), fmt.Sprint(p.Token), endText(p), cli.Escape(p.Reason)}
}

// endText says how a hold ended.
func endText(p holdfast.PastHold) string {
	s := cli.Escape(p.End)
	if p.By.Host != "" || p.By.Name != "" {
		s += " by " + cli.Who(p.By)
	}
	if p.Why != "" {
		s += ": " + cli.Escape(p.Why)
	}
	return s
}

// describeHistory is what a history has besides its holds.
func describeHistory(h holdfast.History) string {
	var b strings.Builder
	if o := h.Others; o.Count > 0 {
		more := ""
		if len(h.Holds) > 0 {
			more = " more"
		}
		fmt.Fprintf(&b, "%d%s, held for %s and waited for %s in all\n", o.Count, more, cli.Brief(o.Held), cli.Brief(o.Waited))
	}
	if s := h.Success; s != nil {
		fmt.Fprintf(&b, "last success %s ago, %s by %s, token %d\n", cli.Brief(s.Ago), s.At.Local().Format(time.DateTime), cli.Who(s.By), s.Token)
	}
	return b.String()
}

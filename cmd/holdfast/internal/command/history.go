package command

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const historyHelp = `usage: holdfast history [flags] [NAME]

Shows the last holds of NAME, newest first: who held it from when and for how long,
how long it had waited, and how it ended (released, lost, taken over, broken,
expired). Without NAME: the last hold of each name. A hold that lasted and waited
for less than a second, and ended well, is only counted.

A program writes what has ended behind its next heartbeat or as it ends, so the last
seconds may be missing. How many holds are kept: holdfast config get history

{flags}

examples:
  holdfast history nightly
  holdfast history --json nightly | jq -r '.holds[] | select(.end != "released")'

exit status: 0; 64 usage; 69 store
`

func historyVerb(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "history [NAME]", Short: "Show the last holds of a name", Long: historyHelp, ValidArgsFunction: a.completeNames,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("history: one name, not %d", len(args))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one object per name and line; durations in seconds")
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return a.histories(orBackground(c.Context()), asJSON)
		}
		return a.history(orBackground(c.Context()), args[0], asJSON)
	}
	return c
}

func (a *app) history(ctx context.Context, name string, asJSON bool) error {
	if name == "" || len(name) > 255 {
		return checkName(name)
	}
	s, err := a.look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	h, err := s.History(ctx, name)
	if err != nil {
		return s.unusable(err, "")
	}
	if asJSON {
		if err := asjson.Encode(os.Stdout, asjson.OfHistory(h)); err != nil {
			return cannotWrite(err)
		}
		return nil
	}
	table := aligned(os.Stdout)
	if len(h.Holds) > 0 {
		pastHead(table)
	}
	for _, p := range h.Holds {
		pastRow(table, "", p)
	}
	table.Flush()
	if _, err := os.Stdout.WriteString(describeHistory(h)); err != nil {
		return cannotWrite(err)
	}
	if len(h.Holds) == 0 && h.Others.Count == 0 {
		return s.sayNoHistory(ctx, h)
	}
	return nil
}

// sayNoHistory says at a terminal why nothing is shown.
func (s *session) sayNoHistory(ctx context.Context, h holdfast.History) error {
	if !isTerminal(os.Stdout) {
		return nil
	}
	holds, err := s.StoreHistory(ctx)
	switch {
	case err != nil:
		return s.unusable(err, "")
	case holds == 0:
		say("%s keeps no history: holdfast config set history 32", s.target)
	case h.Name == "":
		say("no hold has ended yet in %s", s.target)
	default:
		say("no hold of %s has ended yet in %s", quote(h.Name), s.target)
	}
	return nil
}

// histories shows the last hold of each name.
func (a *app) histories(ctx context.Context, asJSON bool) error {
	s, err := a.look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	table := aligned(os.Stdout)
	n := 0
	for h, err := range s.Histories(ctx, "") {
		if err != nil {
			table.Flush()
			return s.unusable(err, "")
		}
		if asJSON {
			if err := asjson.Encode(os.Stdout, asjson.OfHistory(h)); err != nil {
				return cannotWrite(err)
			}
			continue
		}
		if len(h.Holds) == 0 {
			continue
		}
		if n++; n == 1 {
			pastHead(table, "NAME")
		}
		if pastRow(table, escape(h.Name)+"\t", h.Holds[0]); n%256 == 0 {
			table.Flush()
		}
	}
	if err := table.Flush(); err != nil {
		return cannotWrite(err)
	}
	if n == 0 && !asJSON {
		return s.sayNoHistory(ctx, holdfast.History{})
	}
	return nil
}

func pastHead(table *tabwriter.Writer, first ...string) {
	fmt.Fprintln(table, strings.Join(append(first, "FROM", "HELD", "WAITED", "OWNER", "TOKEN", "ENDED", "REASON"), "\t"))
}

func pastRow(table *tabwriter.Writer, first string, p holdfast.PastHold) {
	from, held := "?", "?"
	if !p.Granted.IsZero() {
		from, held = p.Granted.Local().Format(time.DateTime), whole(max(p.Ended.Sub(p.Granted), 0))
	}
	fmt.Fprintf(table, "%s%s\t%s\t%s\t%s\t%d\t%s\t%s\n", first, from, held, whole(p.Waited), owner(p.Owner), p.Token, endText(p), escape(p.Reason))
}

// endText says how a hold ended.
func endText(p holdfast.PastHold) string {
	s := escape(p.End)
	if p.By.Host != "" || p.By.Name != "" {
		s += " by " + who(p.By)
	}
	if p.Why != "" {
		s += ": " + escape(p.Why)
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
		fmt.Fprintf(&b, "%d%s, held for %s and waited for %s in all\n", o.Count, more, brief(o.Held), brief(o.Waited))
	}
	if s := h.Success; s != nil {
		fmt.Fprintf(&b, "last success %s ago, %s by %s, token %d\n", brief(s.Ago), s.At.Local().Format(time.DateTime), who(s.By), s.Token)
	}
	return b.String()
}

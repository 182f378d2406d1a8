package command

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
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
			return a.histories(c.Context(), asJSON)
		}
		return a.history(c.Context(), args[0], asJSON)
	}
	return c
}

func (a *app) history(ctx context.Context, name string, asJSON bool) error {
	if name == "" || len(name) > driver.MaxName {
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
	var t table
	if len(h.Holds) > 0 {
		t = append(t, pastHead)
	}
	for _, p := range h.Holds {
		t = append(t, pastCells(p))
	}
	if err := t.write(os.Stdout, limitOf(os.Stdout)); err != nil {
		return cannotWrite(err)
	}
	if _, err := os.Stdout.WriteString(describeHistory(h)); err != nil {
		return cannotWrite(err)
	}
	if len(h.Holds) == 0 && h.Others.Count == 0 {
		return s.sayNoHistory(ctx, h)
	}
	return nil
}

// sayNoHistory says why nothing is shown.
func (s *session) sayNoHistory(ctx context.Context, h holdfast.History) error {
	holds, err := s.StoreHistory(ctx)
	switch {
	case err != nil:
		return s.unusable(err, "")
	case holds == 0:
		say("%s keeps no history: %s", s.target, hint("config set history 32"))
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
	t := table{append([]string{"NAME"}, pastHead...)}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush() // what was read before an error
	var counted int64
	for h, err := range s.Histories(ctx, "") {
		if err != nil {
			return s.unusable(err, "")
		}
		if asJSON {
			if err := asjson.Encode(out, asjson.OfHistory(h)); err != nil {
				return cannotWrite(err)
			}
			continue
		}
		counted += h.Others.Count
		if len(h.Holds) == 0 {
			continue
		}
		t = append(t, append([]string{escape(h.Name)}, pastCells(h.Holds[0])...))
	}
	switch {
	case asJSON:
		if err := out.Flush(); err != nil {
			return cannotWrite(err)
		}
		return nil
	case len(t) == 1 && counted > 0:
		say("no hold is listed in %s: of the %d that have ended only sums are kept; see: %s", s.target, counted, hint("history NAME"))
		return nil
	case len(t) == 1:
		return s.sayNoHistory(ctx, holdfast.History{})
	}
	if err := t.write(os.Stdout, limitOf(os.Stdout)); err != nil {
		return cannotWrite(err)
	}
	return nil
}

var pastHead = []string{"FROM", "HELD", "WAITED", "OWNER", "TOKEN", "ENDED", "REASON"}

func pastCells(p holdfast.PastHold) []string {
	from, held := "?", "?"
	if !p.From.IsZero() {
		from, held = p.From.Local().Format(time.DateTime), whole(max(p.To.Sub(p.From), 0))
	}
	return []string{from, held, whole(p.Waited), owner(p.Owner), fmt.Sprint(p.Token), endText(p), escape(p.Reason)}
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

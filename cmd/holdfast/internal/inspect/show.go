package inspect

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const showHelp = `usage: holdfast show [-q] [--json] NAME

Shows who holds a name and since when, with which token and why, when it was last
heard of, who waits in which order, and who broke it before. A free name is no
error.

{flags}

examples:
  holdfast show deploy
  holdfast show --json deploy | jq '.holders[0].token'
  holdfast show -q deploy && echo "somebody deploys"

exit status: 0; with -q 0 held, 1 free, or the next who asks has it at once; 64 usage;
69 store
`

func showVerb(a *cli.App) *cobra.Command {
	var asJSON, quiet bool
	c := &cobra.Command{
		Use: "show NAME", Short: "Show who holds a name and who waits for it", Long: showHelp,
		Args: cli.OneName, ValidArgsFunction: a.CompleteNames,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as an object; durations in seconds")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show nothing; the exit status says whether it is held")
	c.RunE = func(c *cobra.Command, args []string) error {
		return show(c.Context(), a, args[0], quiet, asJSON)
	}
	return c
}

func show(ctx context.Context, a *cli.App, name string, quiet, asJSON bool) error {
	if name == "" || len(name) > driver.MaxName {
		return cli.CheckName(name)
	}
	s, err := a.Look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	info, err := s.Show(ctx, name)
	if err != nil {
		return s.Unusable(err, "")
	}
	if quiet {
		if !slices.ContainsFunc(info.Holders, func(c holdfast.Claim) bool { return !c.Dead }) {
			return &cli.Failure{Status: cli.ExitNo}
		}
		return nil
	}
	if asJSON {
		err = asjson.Encode(os.Stdout, asjson.Of(info))
	} else {
		_, err = io.WriteString(os.Stdout, describeInfo(info))
	}
	if err != nil {
		return cli.CannotWrite(err)
	}
	return nil
}

// describeInfo is what show shows of a name.
func describeInfo(info holdfast.Info) string {
	var b strings.Builder
	name := cli.Escape(info.Name)
	if len(info.Holders)+len(info.Waiters) == 0 {
		fmt.Fprintf(&b, "%s is free", name)
		if len(info.Breaks) > 0 {
			fmt.Fprintf(&b, "; last broken %s", breakText(info.Breaks[0]))
		}
		b.WriteString("\n")
		return b.String()
	}
	b.WriteString(name + "   ")
	var what []string
	if len(info.Holders) > 0 {
		mode := info.Holders[0].Mode()
		if n := len(info.Holders); n > 1 {
			mode += fmt.Sprintf(", %d holders", n)
		}
		what = append(what, mode)
	} else {
		what = append(what, "free in a moment")
	}
	if n := len(info.Waiters); n > 0 {
		what = append(what, fmt.Sprintf("%d waiting", n))
	}
	fmt.Fprintln(&b, strings.Join(what, ", "))
	for _, c := range info.Holders {
		since := ""
		if !c.Granted.IsZero() {
			since = " for " + sinceText(c)
		}
		fmt.Fprintf(&b, "  held by   %s%s, token %d%s\n", owner(c.Owner), since, c.Token, because(c))
		fmt.Fprintf(&b, "            %s%s%s\n", beatLine(c), waitedText(c), retriesText(c))
		details(&b, c)
		if c.Collecting != "" {
			fmt.Fprintf(&b, "            has %s names of a set\n", cli.Escape(c.Collecting))
		}
	}
	for _, c := range info.Waiters {
		mode := ""
		if c.Slots != 1 {
			mode = c.Mode() + ", "
		}
		fmt.Fprintf(&b, "  waiting   %s for %s, %sclaim %s%s\n", owner(c.Owner), sinceText(c), mode, cli.Escape(c.ID), because(c))
		if c.Dead || c.Suspected || c.Retries > 1 {
			fmt.Fprintf(&b, "            %s%s\n", beatLine(c), retriesText(c))
		}
		details(&b, c)
	}
	for _, br := range info.Breaks {
		fmt.Fprintf(&b, "  broken    %s\n", breakText(br))
	}
	return b.String()
}

// owner names an owner, with the program.
func owner(o holdfast.Owner) string {
	s := cli.Who(o)
	if p := cli.Escape(o.Program); p != "" {
		if strings.HasSuffix(s, ")") {
			s = strings.TrimSuffix(s, ")") + ", " + p + ")"
		} else {
			s += " (" + p + ")"
		}
	}
	return s
}

// details writes the lines of a claim that say where its owner is, and its labels.
func details(b *strings.Builder, c holdfast.Claim) {
	var at []string
	if c.Owner.Address != "" {
		at = append(at, "address "+cli.Escape(c.Owner.Address))
	}
	if c.Owner.Device != "" {
		at = append(at, "device "+cli.Escape(c.Owner.Device))
	}
	if len(at) > 0 {
		fmt.Fprintf(b, "            %s\n", strings.Join(at, ", "))
	}
	for _, labels := range []map[string]string{c.Owner.Labels, c.Labels} {
		if len(labels) > 0 {
			fmt.Fprintf(b, "            %s\n", cli.LabelsText(labels))
		}
	}
}

// sinceText is how long a claim has held, or has waited.
func sinceText(c holdfast.Claim) string {
	switch {
	case c.Token == 0:
		return cli.Whole(c.Waited)
	case c.Granted.IsZero():
		return "?"
	}
	return cli.Whole(time.Since(c.Granted))
}

// waitedText is how long a claim had waited, if that was long.
func waitedText(c holdfast.Claim) string {
	if c.Waited < time.Second {
		return ""
	}
	return "; had waited " + cli.Brief(c.Waited)
}

func because(c holdfast.Claim) string {
	if c.Reason == "" {
		return ""
	}
	return ": " + cli.Escape(c.Reason)
}

// beatLine says whether a claim's session lives, as far as can be known.
func beatLine(c holdfast.Claim) string {
	switch {
	case over(c):
		return "its time is over: goes to the next who asks"
	case c.Dead:
		return "dead: goes to the next who asks"
	case c.Kept:
		return "kept until " + c.KeptUntil.Format(time.TimeOnly) + ": it was released, and the name stays shut"
	case c.Detached:
		return "nothing renews it: " + beatText(c)
	case c.BeatAge < 0 && c.Silent:
		return fmt.Sprintf("silent for longer than its TTL of %s, by its own clock: goes to the next who waits, unless it answers", cli.Brief(c.TTL))
	case c.BeatAge < 0:
		return fmt.Sprintf("gone %s after its last beat", cli.Brief(c.TTL))
	}
	s := fmt.Sprintf("last beat %s ago", cli.Brief(c.BeatAge))
	if !c.KeptUntil.IsZero() {
		s += ", shut until " + c.KeptUntil.Format(time.TimeOnly) + " at least"
	} else if c.BeatAge >= c.TTL {
		s += ", longer than its TTL: goes to the next who waits, unless it answers"
	} else if c.Suspected || c.BeatAge > c.TTL/2 {
		s += fmt.Sprintf(", gone in %s at the latest unless it answers", cli.Brief(max(0, c.TTL-c.BeatAge)))
	}
	if c.Suspected && c.SuspectedBy != "" {
		s += "; asked by " + cli.Escape(c.SuspectedBy)
	}
	return s
}

// retriesText mentions writes that lost to others' before the claim was in. A
// single one is how the claim found that it has to wait.
func retriesText(c holdfast.Claim) string {
	if c.Retries <= 1 {
		return ""
	}
	return fmt.Sprintf("; %d of its writes lost before it was in", c.Retries)
}

func breakText(b holdfast.BrokenClaim) string {
	how := ""
	if b.Now {
		how = " with --now"
	}
	was := cli.Who(b.Was)
	if b.Token != 0 {
		was += fmt.Sprintf(", token %d", b.Token)
	} else {
		was += ", waiting"
	}
	return fmt.Sprintf("%s by %s%s: %s (was %s)", b.At.Local().Format("2006-01-02 15:04"), cli.ShortWho(b.By), how, cli.Escape(b.Reason), was)
}

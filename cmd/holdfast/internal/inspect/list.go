package inspect

import (
	"bufio"
	"cmp"
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
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const listHelp = `usage: holdfast list [flags] [PREFIX]

Lists the names in use, or those that begin with PREFIX: who holds them, who
waits, since when, why, and how long ago each was last heard of. At a terminal
lines are cut to its width.

  held, waiting   as it should be
  detached        taken with acquire: nothing renews it, it ends by itself
  kept            released, and kept shut until the time shown (run --at-least)
  suspected       one who waits has asked it for a heartbeat
  dead?           nothing was heard of it for its TTL; one who asks finds out
  dead            goes to the next who asks
  ended           as dead, but nobody died: the time of a detached one is over

{flags}

examples:
  holdfast list
  holdfast list 'tenant/'
  holdfast list --state held --older-than 1h --sort for
  holdfast list --json | jq -r 'select(.waiters | length > 0) | .name'

exit status: 0; 64 usage; 69 store
`

// A listing is what list is asked for.
type listing struct {
	prefix       string
	sel          selection
	sort         string
	asJSON, wide bool
}

func listVerb(a *cli.App) *cobra.Command {
	var l listing
	c := &cobra.Command{
		Use: "list [PREFIX]", Short: "List the names in use", Long: listHelp, ValidArgsFunction: a.CompleteNames,
		Args: onePrefix,
	}
	c.Flags().BoolVar(&l.asJSON, "json", false, "one object per name and line; durations in seconds")
	c.Flags().BoolVar(&l.wide, "wide", false, "with tokens, claims, programs, addresses and labels")
	selectFlags(c, &l.sel)
	sortFlag(c, &l.sort)
	c.RunE = func(c *cobra.Command, args []string) error {
		l.prefix = strings.Join(args, "")
		if err := cmp.Or(l.sel.check(), checkSort(l.sort)); err != nil {
			return cli.Usage("list: %v", err)
		}
		return list(c.Context(), a, &l)
	}
	return c
}

// onePrefix is the argument check of verbs that take a prefix, or none.
func onePrefix(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return cli.Usage("%s: one prefix, not %d; quote it so that the shell leaves it alone", c.Name(), len(args))
	}
	return nil
}

// selectFlags adds the flags that say which claims are meant.
func selectFlags(c *cobra.Command, sel *selection) {
	f := c.Flags()
	f.StringVar(&sel.owner, "owner", "", "of this `NAME` of an owner, user, or user@host")
	f.StringVar(&sel.host, "host", "", "of this `HOST`")
	f.StringVar(&sel.state, "state", "", "in this `STATE`: "+strings.Join(states, ", "))
	f.Var(&sel.olderThan, "older-than", "held, or waiting, for longer than `DUR`")
	c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
}

func sortFlag(c *cobra.Command, by *string) {
	c.Flags().StringVar(by, "sort", "name", "`KEY`: "+strings.Join(orders, ", ")+" (most waiters first)")
	c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp))
}

func checkSort(by string) error {
	if !slices.Contains(orders, by) {
		return fmt.Errorf("--sort %s: one of %s", cli.Quote(by), strings.Join(orders, ", "))
	}
	return nil
}

func list(ctx context.Context, a *cli.App, l *listing) error {
	s, err := a.Look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	t, out := cli.Table{heading(l.wide)}, bufio.NewWriter(os.Stdout)
	found := false
	show := func(rows []row) {
		found = found || len(rows) > 0
		if l.asJSON {
			err = cmp.Or(err, writeRows(out, rows))
			return
		}
		for _, r := range rows {
			t = append(t, r.cells(l.wide))
		}
	}
	var rows []row
	each := func(some []row) { rows = append(rows, some...) }
	if l.sort == "name" { // rows come in that order, and are shown while more are loaded
		each = show
	}
	failed := eachName(ctx, s, l.prefix, &l.sel, each)
	sortRows(rows, l.sort)
	show(rows)
	if found && !l.asJSON {
		err = t.Write(out, cli.LimitOf(os.Stdout))
	}
	err = cmp.Or(err, out.Flush())
	switch {
	case err != nil:
		return cli.CannotWrite(err)
	case failed != nil:
		return s.Unusable(failed, "")
	case !found && !l.asJSON:
		cli.Say("%s", l.nothing(s.Target))
	}
	return nil
}

// nothing says that there is nothing, and where.
func (l *listing) nothing(t cli.Target) string {
	text := "no name"
	if l.prefix != "" {
		text += " that begins with " + cli.Quote(l.prefix)
	}
	if text += " is in use in " + t.String(); !l.sel.all() {
		text += " by such claims"
	}
	return text
}

// rowsOf returns the claims in the store that a selection admits, and why some may be missing.
func rowsOf(ctx context.Context, s *cli.Session, prefix string, sel *selection) (rows []row, err error) {
	err = eachName(ctx, s, prefix, sel, func(some []row) { rows = append(rows, some...) })
	return rows, err
}

// eachName calls f with the rows of each name, and returns why some may be missing.
func eachName(ctx context.Context, s *cli.Session, prefix string, sel *selection, f func([]row)) (err error) {
	for info, failed := range s.List(ctx, prefix) {
		if failed != nil {
			err = cmp.Or(err, failed)
			continue
		}
		f(addRows(nil, &info, sel))
	}
	return err
}

func tableOf(rows []row, wide bool) cli.Table {
	t := cli.Table{heading(wide)}
	for _, r := range rows {
		t = append(t, r.cells(wide))
	}
	return t
}

// writeRows writes the names of rows as JSON, each with those of its claims that are in rows.
func writeRows(w io.Writer, rows []row) error {
	infos := make(map[*holdfast.Info]*holdfast.Info)
	var order []*holdfast.Info
	for _, r := range rows {
		some := infos[r.info]
		if some == nil {
			some = &holdfast.Info{Name: r.info.Name, Version: r.info.Version, Breaks: r.info.Breaks}
			infos[r.info] = some
			order = append(order, some)
		}
		if r.place == 0 {
			some.Holders = append(some.Holders, *r.claim)
		} else {
			some.Waiters = append(some.Waiters, *r.claim)
		}
	}
	for _, info := range order {
		if err := asjson.Encode(w, asjson.Of(*info)); err != nil {
			return err
		}
	}
	return nil
}

// beatText is when a claim's session was last heard of.
func beatText(c holdfast.Claim) string {
	switch {
	case c.Kept:
		if left := time.Until(c.KeptUntil); left > 0 {
			return "ends in " + cli.Whole(left)
		}
		return "ended"
	case c.BeatAge < 0:
		return "?"
	case c.Detached:
		left := c.TTL - holdfast.Margin(c.TTL) - c.BeatAge
		if left <= 0 {
			return "ended"
		}
		return "ends in " + cli.Whole(left)
	}
	return cli.Whole(c.BeatAge) + " ago"
}

package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const listHelp = `usage: holdfast list [flags] [PREFIX]

Lists the names in use, or those that begin with PREFIX: who holds them, who
waits, since when, why, and how long ago each was last heard of.

{flags}

examples:
  holdfast list
  holdfast list 'tenant/'
  holdfast list --json | jq -r 'select(.waiters | length > 0) | .name'

exit status: 0; 64 usage; 69 store
`

func listVerb(a *app) *cobra.Command {
	var asJSON, wide bool
	c := &cobra.Command{
		Use: "list [PREFIX]", Short: "List the names in use", Long: listHelp, ValidArgsFunction: a.completeNames,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("list: one prefix, not %d; quote it so that the shell leaves it alone", len(args))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one object per name and line; durations in seconds")
	c.Flags().BoolVar(&wide, "wide", false, "with tokens, claims, programs, addresses and labels")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.list(orBackground(c.Context()), strings.Join(args, ""), asJSON, wide)
	}
	return c
}

func (a *app) list(ctx context.Context, prefix string, asJSON, wide bool) error {
	s, err := a.look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	table := aligned(os.Stdout)
	n := 0
	for info, err := range s.List(ctx, prefix) {
		if err != nil {
			table.Flush()
			return s.unusable(err, "")
		}
		if asJSON {
			if err := asjson.Encode(os.Stdout, asjson.Of(info)); err != nil {
				return cannotWrite(err)
			}
			continue
		}
		if n++; n == 1 {
			row(table, wide, []string{"NAME", "MODE", "STATE", "OWNER", "PID", "FOR", "LAST BEAT"},
				[]string{"WAITED", "TOKEN", "CLAIM", "PROGRAM", "ADDRESS", "DEVICE", "LABELS"}, "REASON")
		}
		for _, c := range info.Holders {
			claimRow(table, wide, info.Name, c, 0)
		}
		for i, c := range info.Waiters {
			claimRow(table, wide, info.Name, c, i+1)
		}
		if n%256 == 0 {
			table.Flush()
		}
	}
	if err := table.Flush(); err != nil {
		return cannotWrite(err)
	}
	if n == 0 && !asJSON && isTerminal(os.Stdout) {
		if prefix != "" {
			say("no name that begins with %s is in use in %s", quote(prefix), s.target)
		} else {
			say("no name is in use in %s", s.target)
		}
	}
	return nil
}

func cannotWrite(err error) error { return fail(exitFault, "cannot write to standard output: %v", err) }

// aligned is a table whose lines do not end in blanks.
func aligned(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(&trimmed{w: w}, 0, 0, 2, ' ', 0)
}

type trimmed struct {
	w      io.Writer
	blanks int // not yet written
}

func (t *trimmed) Write(p []byte) (int, error) {
	var out []byte
	for _, b := range p {
		switch b {
		case ' ':
			t.blanks++
			continue
		case '\n':
			t.blanks = 0
		}
		out = append(append(out, strings.Repeat(" ", t.blanks)...), b)
		t.blanks = 0
	}
	_, err := t.w.Write(out)
	return len(p), err
}

func row(table *tabwriter.Writer, wide bool, cells, more []string, reason string) {
	if wide {
		cells = append(cells, more...)
	}
	fmt.Fprintln(table, strings.Join(append(cells, reason), "\t"))
}

func claimRow(table *tabwriter.Writer, wide bool, name string, c holdfast.Claim, place int) {
	state := "held"
	reason := escape(c.Reason)
	add := func(note string) { reason = strings.TrimSpace(reason + " (" + note + ")") }
	switch {
	case c.Dead:
		state = "dead"
		add("goes to the next who asks")
	case place > 0:
		state = ordinal(place) + " waiting"
	case c.Suspected:
		state = "suspected"
		if c.SuspectedBy != "" {
			add("asked for a beat by " + escape(c.SuspectedBy))
		}
	}
	if c.Collecting != "" {
		add("has " + escape(c.Collecting) + " names")
	}
	if checkName(name) != nil {
		add("written by another program: ours refuses such names")
	}
	beat := beatText(c)
	pid := ""
	if c.Owner.PID != 0 {
		pid = fmt.Sprint(c.Owner.PID)
	}
	token := ""
	if c.Token != 0 {
		token = fmt.Sprint(c.Token)
	}
	row(table, wide, []string{escape(name), c.Mode(), state, shortWho(c.Owner), pid, sinceText(c), beat},
		[]string{whole(c.Waited), token, escape(c.ID), escape(c.Owner.Program), escape(c.Owner.Address), escape(c.Owner.Device), labelsText(c.Labels)}, reason)
}

// beatText is when a claim's session was last heard of.
func beatText(c holdfast.Claim) string {
	switch {
	case c.BeatAge < 0:
		return "?"
	case c.Detached:
		left := c.TTL - holdfast.Margin(c.TTL) - c.BeatAge
		if left <= 0 {
			return "ended"
		}
		return "ends in " + whole(left)
	}
	return whole(c.BeatAge) + " ago"
}

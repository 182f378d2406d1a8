package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const watchHelp = `usage: holdfast watch [--json] NAME
       holdfast watch [--json] --prefix PREFIX

Shows who holds a name now, and then a line for each change until Ctrl-C: when, how
a hold ended, who has it now and why, and how many wait. What came and went between
two looks (a second apart, with --prefix) is not shown; see history.

  released    given back by its holder
  broken      by whom, and why
  taken over  its holder was dead
  expired     taken with acquire: its time was over

{flags}

examples:
  holdfast watch deploy
  holdfast watch --prefix deploy/
  holdfast watch --json scheduler | jq -r '.holders[0].owner.host'

exit status: 128+n ended by signal n; 64 usage; 69 store
`

func watchVerb(a *cli.App) *cobra.Command {
	var asJSON bool
	var prefix string
	c := &cobra.Command{
		Use: "watch NAME", Short: "Show each change of a name", Long: watchHelp,
		ValidArgsFunction: a.CompleteNames,
		Args: func(c *cobra.Command, args []string) error {
			if !c.Flags().Changed("prefix") {
				return cli.OneName(c, args)
			}
			if len(args) > 0 {
				return cli.Usage("watch: a name or --prefix PREFIX, not both")
			}
			return nil
		},
	}
	c.Flags().StringVar(&prefix, "prefix", "", "all names that begin with `PREFIX`, or with '' all")
	c.Flags().BoolVar(&asJSON, "json", false, "one object per line, as list, with time and ended; durations in seconds")
	c.RunE = func(c *cobra.Command, args []string) error {
		if c.Flags().Changed("prefix") {
			return watch(c.Context(), a, asJSON, true, func(ctx context.Context, s *cli.Session) iter.Seq2[holdfast.Info, error] {
				return watchAll(ctx, s, prefix)
			})
		}
		if name := args[0]; name == "" || len(name) > driver.MaxName {
			return cli.CheckName(name)
		}
		return watch(c.Context(), a, asJSON, false, func(ctx context.Context, s *cli.Session) iter.Seq2[holdfast.Info, error] {
			return s.Watch(ctx, args[0])
		})
	}
	return c
}

// watch shows what changes yields, each with its name if names is set.
func watch(ctx context.Context, a *cli.App, asJSON, names bool, changes func(context.Context, *cli.Session) iter.Seq2[holdfast.Info, error]) error {
	s, err := a.Look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	known := make(map[string]holdfast.Info)
	begun, silent := false, false
	for info, err := range changes(ctx, s) {
		now := time.Now()
		var ends []ending
		if before, ok := known[info.Name]; ok && err == nil {
			ends = endings(ctx, s, before, info)
		}
		switch {
		case err != nil && !begun:
			return s.Unusable(err, "")
		case err != nil:
			if !silent {
				cli.Say("%s  the store does not answer: %s", now.Format(time.TimeOnly), s.Redact(err.Error()))
			}
			silent = true
			continue
		case asJSON:
			err = writeChange(now, info, ends)
		default:
			name := ""
			if names {
				name = cli.Escape(info.Name) + "  "
			}
			_, err = fmt.Printf("%s  %s%s\n", now.Format(time.TimeOnly), name, change(info, ends))
		}
		if errors.Is(err, syscall.EPIPE) {
			return nil
		}
		if err != nil {
			return cli.CannotWrite(err)
		}
		begun, silent = true, false
		if known[info.Name] = info; len(info.Holders)+len(info.Waiters) == 0 && names {
			delete(known, info.Name)
		}
	}
	return nil
}

// watchAll yields all names that begin with a prefix, and then each that has changed, until
// ctx ends. It reads them each second: a database notifies of one name at a time.
func watchAll(ctx context.Context, s *cli.Session, prefix string) iter.Seq2[holdfast.Info, error] {
	return func(yield func(holdfast.Info, error) bool) {
		last := make(map[string]string)
		for {
			gone := maps.Clone(last)
			for info, err := range s.List(ctx, prefix) {
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					clear(gone)
					if !yield(info, err) {
						return
					}
					continue
				}
				delete(gone, info.Name)
				if sum := sumOf(info); sum != last[info.Name] {
					if last[info.Name] = sum; !yield(info, nil) {
						return
					}
				}
			}
			for _, name := range slices.Sorted(maps.Keys(gone)) {
				info, err := s.Show(ctx, name)
				if ctx.Err() != nil || !yield(info, err) {
					return
				}
				delete(last, name)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}
}

// sumOf sums up a name: it differs if the name has changed.
func sumOf(info holdfast.Info) string {
	var b strings.Builder
	for _, c := range slices.Concat(info.Holders, info.Waiters) {
		fmt.Fprintf(&b, "%s %d %v %v %v %v;", c.ID, c.Token, c.Suspected, c.Silent, c.Dead, c.Kept)
	}
	return b.String()
}

// An ending is how a hold ended.
type ending struct {
	claim holdfast.Claim
	how   string // as in the history of a name
	by    holdfast.Owner
	why   string
}

// endings returns the holds of a name that ended between two looks.
func endings(ctx context.Context, s *cli.Session, before, now holdfast.Info) (ends []ending) {
	for _, c := range before.Holders {
		if slices.ContainsFunc(now.Holders, func(h holdfast.Claim) bool { return h.ID == c.ID }) {
			continue
		}
		e := ending{claim: c, how: "released"}
		broken := slices.IndexFunc(now.Breaks, func(b holdfast.BrokenClaim) bool { return b.Token == c.Token })
		switch {
		case broken >= 0:
			b := now.Breaks[broken]
			e.how, e.by, e.why = "broken", b.By, b.Reason
		case c.Detached && !c.Ends.IsZero() && time.Now().After(c.Ends.Add(-time.Second)):
			e.how = "expired"
		case c.Dead:
			e.how = "taken over"
		default:
			if session, ok, err := s.Session(ctx, c.Owner.Session); err == nil && ok && session.Dead && !session.Detached {
				e.how, e.why = "taken over", session.Why
			}
		}
		ends = append(ends, e)
	}
	return ends
}

// text says how a hold ended.
func (e ending) text() string {
	whose := cli.ShortWho(e.claim.Owner)
	switch e.how {
	case "broken":
		return fmt.Sprintf("broken by %s: %s (was %s)", cli.ShortWho(e.by), cli.Escape(e.why), whose)
	case "expired":
		return "expired: the time of " + whose + " was over"
	case "taken over":
		return "taken over: " + whose + " was dead"
	}
	return fmt.Sprintf("released by %s%s", whose, strings.Replace(cli.HeldFor(e.claim), " for ", " after ", 1))
}

// change says what is new about a name.
func change(now holdfast.Info, ends []ending) string {
	var parts, holders []string
	kept := false
	for _, e := range ends {
		parts = append(parts, e.text())
	}
	for _, c := range now.Holders {
		switch {
		case over(c):
			parts = append(parts, "the time of "+cli.ShortWho(c.Owner)+" is over")
			continue
		case c.Dead:
			parts = append(parts, cli.ShortWho(c.Owner)+" is dead")
			continue
		case c.Kept:
			kept = true
			parts = append(parts, cli.KeptBy(c))
			continue
		}
		h := fmt.Sprintf("%s%s, token %d", cli.Who(c.Owner), cli.HeldFor(c), c.Token)
		if c.Suspected {
			h += fmt.Sprintf(", suspected: last beat %s ago", cli.Brief(max(0, c.BeatAge)))
		} else if c.Silent {
			h += ", silent for longer than its TTL"
		}
		holders = append(holders, h+because(c))
	}
	switch {
	case len(holders) > 0:
		parts = append(parts, "held by "+strings.Join(holders, " and "))
	case !kept:
		parts = append(parts, "free")
	}
	if n := len(now.Waiters); n > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting", n))
	}
	return strings.Join(parts, "; ")
}

// writeChange writes a change as JSON.
func writeChange(now time.Time, info holdfast.Info, ends []ending) error {
	line := asjson.Change{Time: now.UTC().Round(time.Millisecond), Info: asjson.Of(info)}
	for _, e := range ends {
		end := asjson.Ended{Token: e.claim.Token, Owner: e.claim.Owner, End: e.how, Why: e.why}
		if e.how == "broken" {
			end.By = &e.by
		}
		line.Ended = append(line.Ended, end)
	}
	return asjson.Encode(os.Stdout, line)
}

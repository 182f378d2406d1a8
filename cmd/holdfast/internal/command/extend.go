package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
)

const extendHelp = `usage: holdfast extend NAME --token N --for DUR

Makes a lock of acquire end DUR from now, and prints the new end. The lock of a running
program is refused, because the program renews its lock itself.

{flags}

example:
  holdfast extend deploy --token "$token" --for 10m

exit status: 0; 1 it had ended, or cannot be extended; 64 usage; 69 store
`

func extendVerb(a *app) *cobra.Command {
	var token int64
	var d span
	c := &cobra.Command{
		Use: "extend NAME --token N --for DUR", Short: "Have a lock taken with acquire end later", Long: extendHelp,
		Args: oneName, ValidArgsFunction: a.completeNames,
	}
	c.Flags().Int64Var(&token, "token", 0, "`N` is what acquire printed")
	c.Flags().Var(&d, "for", "the lock ends `DUR` from now, at least 1s: 90s, 10m, or plain seconds")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case token <= 0 || !d.set:
			return usage("extend: needs the --token that acquire printed, and --for, as in: holdfast extend %s --token 1795228270551913 --for 10m", escape(args[0]))
		case d.Duration < holdfast.MinTTL || d.Duration > holdfast.MaxTTL:
			return usage("extend: --for %v is not between %v and %v", d.Duration, holdfast.MinTTL, holdfast.MaxTTL)
		}
		if err := checkName(args[0]); err != nil {
			return err
		}
		return a.extend(c.Context(), args[0], token, d.Duration)
	}
	return c
}

func (a *app) extend(ctx context.Context, name string, token int64, d time.Duration) error {
	s, err := a.open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	claim, err := s.ExtendToken(ctx, name, token, d)
	switch {
	case errors.Is(err, holdfast.ErrNoSuchHold):
		return fail(exitNo, "%s: token %d does not hold it, and is not known to have", quote(name), token)
	case errors.Is(err, holdfast.ErrReleased):
		return fail(exitNo, "%s with token %d had ended: what was done since was not protected", quote(name), token)
	case err != nil:
		if info, e := s.Show(ctx, name); e == nil {
			for _, c := range info.Holders {
				if c.Token == token && !c.Detached {
					return fail(exitNo, "%s with token %d belongs to a running program, %s, which renews it itself", quote(name), token, who(c.Owner))
				}
			}
		}
		return s.unusable(err, "")
	}
	ends := claim.Ends
	if ends.IsZero() { // the store has no clock
		ends = time.Now().Add(d)
	}
	if _, err := fmt.Printf("%s\n", ends.Format(time.RFC3339)); err != nil {
		return cannotWrite(err)
	}
	return nil
}

package hold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

const extendHelp = `usage: holdfast extend NAME --token N --for DUR

Makes a lock of acquire end DUR from now, and prints the new end. The lock of a running
program is refused, because the program renews its lock itself.

{flags}

example:
  holdfast extend deploy --token "$token" --for 10m

exit status: 0; 1 it had ended, or cannot be extended; 64 usage; 69 store
`

func extendVerb(a *cli.App) *cobra.Command {
	var token int64
	var d cli.Span
	c := &cobra.Command{
		Use: "extend NAME --token N --for DUR", Short: "Have a lock taken with acquire end later", Long: extendHelp,
		Args: cli.OneName, ValidArgsFunction: a.CompleteNames,
	}
	c.Flags().Int64Var(&token, "token", 0, "`N` is what acquire printed")
	c.Flags().Var(&d, "for", "the lock ends `DUR` from now, at least 1s: 90s, 10m, or plain seconds")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case token <= 0 || !d.Given:
			return cli.Usage("extend: needs the --token that acquire printed, and --for, as in: holdfast extend %s --token 1795228270551913 --for 10m", cli.Escape(args[0]))
		case d.Duration < holdfast.MinTTL || d.Duration > holdfast.MaxTTL:
			return cli.Usage("extend: --for %v is not between %v and %v", d.Duration, holdfast.MinTTL, holdfast.MaxTTL)
		}
		if err := cli.CheckName(args[0]); err != nil {
			return err
		}
		return extend(c.Context(), a, args[0], token, d.Duration)
	}
	return c
}

func extend(ctx context.Context, a *cli.App, name string, token int64, d time.Duration) error {
	s, err := a.Open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	claim, err := s.ExtendToken(ctx, name, token, d)
	switch {
	case errors.Is(err, holdfast.ErrNoSuchHold):
		return cli.Fail(cli.ExitNo, "%s: token %d does not hold it, and is not known to have", cli.Quote(name), token)
	case errors.Is(err, holdfast.ErrReleased):
		return cli.Fail(cli.ExitNo, "%s with token %d had ended: what was done since was not protected", cli.Quote(name), token)
	case err != nil:
		if info, e := s.Show(ctx, name); e == nil {
			for _, c := range info.Holders {
				if c.Token == token && !c.Detached {
					return cli.Fail(cli.ExitNo, "%s with token %d belongs to a running program, %s, which renews it itself", cli.Quote(name), token, cli.Who(c.Owner))
				}
			}
		}
		return s.Unusable(err, "")
	}
	ends := claim.Ends
	if ends.IsZero() { // the store has no clock
		ends = time.Now().Add(d)
	}
	if _, err := fmt.Printf("%s\n", ends.Format(time.RFC3339)); err != nil {
		return cli.CannotWrite(err)
	}
	return nil
}

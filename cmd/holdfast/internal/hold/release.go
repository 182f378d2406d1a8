package hold

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

const releaseHelp = `usage: holdfast release NAME --token N

Gives back a lock that was taken with acquire. Says nothing if all is well. The
lock of a running program is refused: see break.

{flags}

example:
  holdfast release deploy --token "$token"

exit status: 0; 1 it had ended before, or is not to be released; 64 usage; 69 store
`

func releaseVerb(a *cli.App) *cobra.Command {
	var token int64
	c := &cobra.Command{
		Use: "release NAME --token N", Short: "Give back a lock taken with acquire", Long: releaseHelp,
		Args: cli.OneName, ValidArgsFunction: a.CompleteNames,
	}
	c.Flags().Int64Var(&token, "token", 0, "`N` is what acquire printed")
	c.RunE = func(c *cobra.Command, args []string) error {
		if token <= 0 {
			return cli.Usage("release: needs the --token that acquire printed, as in: holdfast release %s --token 1795228270551913", cli.Escape(args[0]))
		}
		if err := cli.CheckName(args[0]); err != nil {
			return err
		}
		return release(c.Context(), a, args[0], token)
	}
	return c
}

func release(ctx context.Context, a *cli.App, name string, token int64) error {
	s, err := a.Open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	err = s.ReleaseToken(ctx, name, token)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, holdfast.ErrNoSuchHold):
		return cli.Fail(cli.ExitNo, "%s: token %d does not hold it, and is not known to have", cli.Quote(name), token)
	case errors.Is(err, holdfast.ErrReleased):
		return cli.Fail(cli.ExitNo, "%s with token %d had ended: what was done since was not protected", cli.Quote(name), token)
	}
	if info, e := s.Show(ctx, name); e == nil {
		for _, c := range info.Holders {
			if c.Token == token && !c.Detached {
				return cli.Fail(cli.ExitNo, "%s with token %d belongs to a running program, %s: it gives it back itself; to end it: %s",
					cli.Quote(name), token, cli.Who(c.Owner), cli.Hint("break %s --token %d --reason WHY", cli.ShellWord(name), token))
			}
		}
	}
	return s.Unusable(err, "")
}

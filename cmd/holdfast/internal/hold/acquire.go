package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

const acquireHelp = `usage: holdfast acquire --for DUR [flags] NAME

Takes a lock for DUR, for scripts that cannot be wrapped by run, and prints its
token. Nothing renews it: after DUR it ends by itself, even if the script is still at
work. Use run where you can.

{flags}

examples:
  token=$(holdfast acquire --for 10m deploy) || exit
  ./deploy.sh
  holdfast release deploy --token "$token"

exit status: 0; 1 not obtained; 128+n ended by signal n while waiting;
64 usage; 69 store; 70 a fault of ours
`

func acquireVerb(a *cli.App) *cobra.Command {
	var w wish
	var d cli.Span
	var quiet bool
	c := &cobra.Command{
		Use: "acquire --for DUR NAME", Short: "Take a lock that ends by itself", Long: acquireHelp,
		Args: cli.OneName, ValidArgsFunction: a.CompleteNames,
	}
	w.flags(c.Flags())
	c.Flags().Var(&d, "for", "hold it for `DUR`: 90s, 10m, or plain seconds; at least 1s")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case !d.Given:
			return cli.Usage("acquire: for how long? As in: holdfast acquire --for 10m %s", cli.Escape(args[0]))
		case d.Duration < holdfast.MinTTL || d.Duration > holdfast.MaxTTL:
			return cli.Usage("--for %v is not between %v and %v", d.Duration, holdfast.MinTTL, holdfast.MaxTTL)
		}
		if err := cli.CheckName(args[0]); err != nil {
			return err
		}
		opts, err := w.options(c.Flags())
		if err != nil {
			return err
		}
		return acquireFor(c.Context(), a, args[0], d.Duration, &w, quiet, opts)
	}
	return c
}

func acquireFor(ctx context.Context, a *cli.App, name string, d time.Duration, w *wish, quiet bool, opts []holdfast.Option) error {
	r := newRunner(nil, []string{name}, nil)
	r.signals = catch(r.shared)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.endOnSignal(cancel)()
	q := newQueue(r.names, quiet)
	s, err := a.Open(ctx, &holdfast.Options{Owner: holdfast.Owner{Name: w.owner, Program: "holdfast acquire"}})
	if err != nil {
		return err
	}
	defer s.Close()
	q.watch(s.Client)
	a.Log.Requested(r.names, w.reason)
	claim, err := s.AcquireFor(ctx, name, d, opts...)
	q.stop()
	if err != nil {
		if errors.Is(err, holdfast.ErrHeld) && ctx.Err() == nil {
			return notObtained(err, r.names, w, q, cli.ExitNo)
		}
		return orSignal(ctx, s.Unusable(err, ""))
	}
	if _, err := fmt.Println(claim.Token); err != nil {
		s.ReleaseToken(context.WithoutCancel(ctx), name, claim.Token)
		return cli.Fail(cli.ExitFault, "cannot print the token (%v), so %s was given back", err, cli.Quote(name))
	}
	if !quiet && cli.IsTerminal(os.Stderr) {
		cli.Say("holding %s until %s, then it ends by itself; give it back with: %s",
			cli.Quote(name), claim.Ends.Format(time.TimeOnly), cli.Hint("release %s --token %d", cli.ShellWord(name), claim.Token))
	}
	return nil
}

package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
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

func acquireVerb(a *app) *cobra.Command {
	var w wish
	var d span
	var quiet bool
	c := &cobra.Command{
		Use: "acquire --for DUR NAME", Short: "Take a lock that ends by itself", Long: acquireHelp,
		Args: oneName, ValidArgsFunction: a.completeNames,
	}
	w.flags(c.Flags())
	c.Flags().Var(&d, "for", "hold it for `DUR`: 90s, 10m, or plain seconds; at least 1s")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case !d.set:
			return usage("acquire: for how long? As in: holdfast acquire --for 10m %s", escape(args[0]))
		case d.Duration < holdfast.MinTTL:
			return usage("--for %v is below %v", d.Duration, holdfast.MinTTL)
		}
		if err := checkName(args[0]); err != nil {
			return err
		}
		opts, err := w.options(c.Flags())
		if err != nil {
			return err
		}
		return a.acquire(c.Context(), args[0], d.Duration, &w, quiet, opts)
	}
	return c
}

func (a *app) acquire(ctx context.Context, name string, d time.Duration, w *wish, quiet bool, opts []holdfast.Option) error {
	r := newRunner(nil, []string{name}, nil)
	r.signals = catch(r.shared)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.endOnSignal(cancel)()
	q := newQueue(r.names, quiet)
	s, err := a.open(ctx, &holdfast.Options{Owner: holdfast.Owner{Name: w.owner, Program: "holdfast acquire"}})
	if err != nil {
		return err
	}
	defer s.Close()
	q.watch(s.Client)
	a.log.requested(r.names, w.reason)
	claim, err := s.AcquireFor(ctx, name, d, opts...)
	q.stop()
	if err != nil {
		if errors.Is(err, holdfast.ErrHeld) && ctx.Err() == nil {
			return notObtained(err, r.names, w, q, exitNo)
		}
		return orSignal(ctx, s.unusable(err, ""))
	}
	if _, err := fmt.Println(claim.Token); err != nil {
		s.ReleaseToken(context.WithoutCancel(ctx), name, claim.Token)
		return fail(exitFault, "cannot print the token (%v), so %s was given back", err, quote(name))
	}
	if !quiet && isTerminal(os.Stderr) {
		say("holding %s until %s, then it ends by itself; give it back with: %s",
			quote(name), claim.Ends.Format(time.TimeOnly), hint("release %s --token %d", shellWord(name), claim.Token))
	}
	return nil
}

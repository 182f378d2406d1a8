package hold

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
)

const electHelp = `usage: holdfast elect [flags] NAME -- CMD [ARG...]

Stands for election and runs CMD while it leads. When CMD ends, elect ends with
its status; when the seat is lost, CMD is stopped before another can lead, and
elect stands again.

{flags}

Signals, environment and files of CMD are as with run.

examples:
  holdfast elect scheduler -- ./serve
  holdfast watch scheduler           who leads

exit status: CMD's; 128+n killed by signal n; 64 usage; 69 store;
70 a fault of ours; 126, 127 CMD cannot be run
`

func electVerb(a *cli.App) *cobra.Command {
	var l lease
	var w wish
	c := &cobra.Command{
		Use: "elect [flags] NAME -- CMD [ARG...]", Short: "Run a command while elected leader", Long: electHelp,
		ValidArgsFunction: a.CompleteNames,
	}
	l.flags(c.Flags(), "this candidate's own lease, at least 1s; else the store's (15s)",
		"from TERM to KILL, before another can lead (TTL/5)", "say nothing but of losses")
	w.shown(c.Flags(), "show `TEXT` to the other candidates")
	c.RunE = func(c *cobra.Command, args []string) error {
		w.slots = 1
		names, argv, err := splitArgs(c, args, "nightly -- ./backup.sh", cli.CheckName)
		if err == nil && len(names) > 1 {
			err = cli.Usage("elect: one name before --, not %d", len(names))
		}
		if err == nil {
			err = l.check()
		}
		if err != nil {
			return err
		}
		opts, err := w.options(c.Flags())
		if err != nil {
			return err
		}
		return elect(c.Context(), a, names[0], argv, &l, w.owner, opts)
	}
	return c
}

// A candidate stands for election, and runs a command while it leads.
type candidate struct {
	name, path string
	argv       []string
	l          *lease
	r          *runner
	client     *holdfast.Client
	cancel     context.CancelCauseFunc

	q    *queue
	stop func() // of endOnSignal

	over  bool // there is nothing more to stand for
	ended error
}

func elect(ctx context.Context, a *cli.App, name string, argv []string, l *lease, owner string, opts []holdfast.Option) error {
	path, t, err := toRun(a, argv[0])
	if err != nil {
		return err
	}
	c := &candidate{name: name, path: path, argv: argv, l: l, r: newRunner(argv, []string{name}, l)}
	c.r.signals = catch(c.r.shared)
	c.r.again, c.r.log = true, &a.Log
	ctx, c.cancel = context.WithCancelCause(ctx)
	defer c.cancel(nil)
	c.stop = c.r.endOnSignal(c.cancel)
	defer func() { c.stop() }()
	client, closeAll, err := clientOn(ctx, t, &holdfast.Options{
		TTL:   l.ttl.Duration,
		Owner: holdfast.Owner{Name: owner, Program: "holdfast elect"},
		Trace: (&holdfast.Trace{Heartbeat: c.r.beat, Shortened: c.r.shortened, Lost: c.r.lostOne}).And(a.Log.Trace(t)),
	})
	if err != nil {
		return err
	}
	defer closeAll()
	c.client = client
	ttl, err := client.StoreTTL(ctx)
	if err != nil {
		return orSignal(ctx, t.Unusable(err, nothingRun))
	}
	if !l.ttl.Given {
		if err := l.checkKillAfter(ttl); err != nil {
			return err
		}
	}
	c.wait()
	a.Log.Requested([]string{name}, "")
	err = c.stand(ctx, t, opts)
	c.q.stop()
	switch {
	case c.over:
		return c.ended
	case err == nil:
		return nil
	}
	return orSignal(ctx, t.Unusable(err, nothingRun))
}

// wait begins to report the queue.
func (c *candidate) wait() {
	c.q = newQueue(c.r.names, c.l.quiet)
	c.q.lead = true
	c.q.watch(c.client)
}

// stand stands until the command has ended by itself, or ctx ends; a store that does not answer
// is asked again.
func (c *candidate) stand(ctx context.Context, t cli.Target, opts []holdfast.Option) error {
	for told := false; ; {
		err := c.client.Election(c.name, opts...).Run(ctx, c.lead)
		if c.over || err == nil || ctx.Err() != nil || errors.Is(err, holdfast.ErrClosed) {
			return err
		}
		if isLost(err) {
			continue // stopped in time, so that Run knows of no loss
		}
		// The store has answered before: it will again.
		if !told && !c.l.quiet {
			cli.Say("the store does not answer: %s; standing for %s again when it does", t.Redact(err.Error()), cli.Quote(c.name))
		}
		told = true
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// lead runs the command.
func (c *candidate) lead(_ context.Context, lock *holdfast.Lock) error {
	c.q.stop()
	c.stop()
	g, err := guard.Start(c.path, c.argv, environment())
	if err != nil {
		c.over, c.ended = true, cli.Fail(cli.ExitFault, "%v", err)
		return c.ended
	}
	defer g.Close()
	c.r.mu.Lock()
	c.r.guard = g
	c.r.mu.Unlock()
	c.r.started = func() {
		if !c.l.quiet {
			cli.Say("leading %s, token %d: started %s", cli.Quote(c.name), lock.Token(), cli.Escape(c.argv[0]))
		}
	}
	err = c.r.hold([]*holdfast.Lock{lock})
	c.r.settle()
	if isLost(err) && c.r.asked == nil {
		cli.Say("%s", err)
		c.stop = c.r.endOnSignal(c.cancel)
		c.wait()
		return err // we stand again
	}
	c.over, c.ended = true, err
	c.cancel(nil)
	return err
}

func isLost(err error) bool {
	var f *cli.Failure
	return errors.As(err, &f) && f.Status == cli.ExitLost
}

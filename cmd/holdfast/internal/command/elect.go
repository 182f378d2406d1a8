package command

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
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

func electVerb(a *app) *cobra.Command {
	var l lease
	var w wish
	c := &cobra.Command{
		Use: "elect [flags] NAME -- CMD [ARG...]", Short: "Run a command while elected leader", Long: electHelp,
		ValidArgsFunction: a.completeNames,
	}
	l.flags(c.Flags(), "this candidate's own lease, at least 1s; else the store's (15s)",
		"from TERM to KILL, before another can lead (TTL/5)", "say nothing but of losses")
	w.shown(c.Flags(), "show `TEXT` to the other candidates")
	c.RunE = func(c *cobra.Command, args []string) error {
		w.slots = 1
		names, argv, err := splitArgs(c, args, "nightly -- ./backup.sh", checkName)
		if err == nil && len(names) > 1 {
			err = usage("elect: one name before --, not %d", len(names))
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
		return a.elect(orBackground(c.Context()), names[0], argv, &l, w.owner, opts)
	}
	return c
}

func (a *app) elect(ctx context.Context, name string, argv []string, l *lease, owner string, opts []holdfast.Option) error {
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	t, err := parseStore(a.store)
	if err != nil {
		return err
	}
	if err := guardable(); err != nil {
		return err
	}
	r := newRunner(argv, []string{name}, l)
	r.again, r.log = true, &a.log
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := r.endOnSignal(cancel)
	defer func() { stop() }()
	h, err := t.open(ctx)
	if err != nil {
		return orSignal(ctx, t.unusable(err, "; nothing was run"))
	}
	defer h.Close()
	var q *queue
	begin := func() *queue {
		q := newQueue(r.names, l.quiet)
		q.lead = true
		return q
	}
	client, err := holdfast.New(h.store, &holdfast.Options{
		TTL:   l.ttl.Duration,
		Owner: holdfast.Owner{Name: owner, Program: "holdfast elect"},
		Trace: (&holdfast.Trace{Heartbeat: r.beat, Shortened: r.shortened, Lost: r.lostOne}).And(a.log.trace(t)),
	})
	if err != nil {
		return usage("%s", strings.TrimPrefix(err.Error(), "holdfast: "))
	}
	defer client.Close()
	ttl, err := client.StoreTTL(ctx)
	if err == nil && !l.ttl.set {
		if err := l.checkKillAfter(ttl); err != nil {
			return err
		}
	}
	if err != nil {
		return orSignal(ctx, t.unusable(err, "; nothing was run"))
	}
	q = begin()
	q.watch(client)
	a.log.requested([]string{name}, "")
	var ended error
	finished := false
	lead := func(_ context.Context, lock *holdfast.Lock) error {
		q.stop()
		stop()
		g, err := guard.Start(path, argv, environment())
		if err != nil {
			finished, ended = true, fail(exitFault, "%v", err)
			return ended
		}
		defer g.Close()
		r.mu.Lock()
		r.guard = g
		r.mu.Unlock()
		r.started = func() {
			if !l.quiet {
				say("leading %s, token %d: started %s", quote(name), lock.Token(), escape(argv[0]))
			}
		}
		ended = r.hold([]*holdfast.Lock{lock})
		r.settle()
		if isLost(ended) && r.asked == nil {
			say("%s", ended)
			stop = r.endOnSignal(cancel)
			q = begin()
			q.watch(client)
			return ended // we stand again
		}
		finished = true
		cancel(nil)
		return ended
	}
	for told := false; ; {
		err = client.Election(name, opts...).Run(ctx, lead)
		if finished || err == nil || ctx.Err() != nil || errors.Is(err, holdfast.ErrClosed) {
			break
		}
		if isLost(err) {
			continue // stopped in time, so that Run knows of no loss
		}
		// The store has answered before: it will again.
		if !told && !l.quiet {
			say("the store does not answer: %s; standing for %s again when it does", t.Redact(err.Error()), quote(name))
		}
		told = true
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	q.stop()
	switch {
	case finished:
		return ended
	case err == nil:
		return nil
	}
	return orSignal(ctx, t.unusable(err, "; nothing was run"))
}

func isLost(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.status == exitLost
}

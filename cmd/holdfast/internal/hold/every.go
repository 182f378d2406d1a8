package hold

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

// every is the flag that makes a command run once per period.
type every struct{ cli.Span }

func (e *every) check(names []string, w *wish) error {
	switch {
	case !e.Given:
		return nil
	case e.Duration < time.Second || e.Duration > holdfast.MaxTTL:
		return cli.Usage("--every %v is not between 1s and %v", e.Duration, holdfast.MaxTTL)
	case len(names) > 1 || w.shared || w.slots > 1:
		return cli.Usage("--every is of one name, and of one holder at a time")
	}
	return nil
}

// due returns an error if the last success was too recent; the error says when it was, and whose.
func (e *every) due(ctx context.Context, client *holdfast.Client, name string, code int, quiet bool) error {
	if !e.Given {
		return nil
	}
	h, err := client.History(ctx, name)
	if err != nil {
		return err
	}
	least := e.Duration - e.Duration/10
	if s := h.Success; s != nil && s.Ago < least {
		if quiet {
			return cli.Fail(code, "")
		}
		return cli.Fail(code, "%s succeeded %s ago, by %s: it is due again in %s; nothing was run",
			cli.Quote(name), cli.Brief(s.Ago), cli.Who(s.By), cli.Brief(least-s.Ago))
	}
	return nil
}

// succeeded records a success, so that the next in line sees it.
func (e *every) succeeded(ctx context.Context, lock *holdfast.Lock, t cli.Target) {
	if !e.Given {
		return
	}
	if err := lock.Succeeded(context.WithoutCancel(ctx)); err != nil {
		cli.Say("%s has succeeded, but that is not recorded, so the next run does not wait for its time: %s", cli.Quote(lock.Name()), t.Redact(err.Error()))
	}
}

// orUnusable returns err if it is a Failure with its own exit status, else the store's failure.
func orUnusable(t cli.Target, err error, consequence string) error {
	var f *cli.Failure
	if errors.As(err, &f) {
		return f
	}
	return t.Unusable(err, consequence)
}

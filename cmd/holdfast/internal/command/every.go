package command

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// every is the flag by which a command runs once per period.
type every struct{ span }

func (e *every) check(names []string, w *wish) error {
	switch {
	case !e.set:
		return nil
	case e.Duration < time.Second || e.Duration > holdfast.MaxTTL:
		return usage("--every %v is not between 1s and %v", e.Duration, holdfast.MaxTTL)
	case len(names) > 1 || w.shared || w.slots > 1:
		return usage("--every is of one name, and of one holder at a time")
	}
	return nil
}

// due says whether the last success was long enough ago; the error tells when it was, and whose.
func (e *every) due(ctx context.Context, client *holdfast.Client, name string, code int, quiet bool) error {
	if !e.set {
		return nil
	}
	h, err := client.History(ctx, name)
	if err != nil {
		return err
	}
	least := e.Duration - e.Duration/10
	if s := h.Success; s != nil && s.Ago < least {
		if quiet {
			return fail(code, "")
		}
		return fail(code, "%s succeeded %s ago, by %s: it is due again in %s; nothing was run",
			quote(name), brief(s.Ago), who(s.By), brief(least-s.Ago))
	}
	return nil
}

// succeeded records a success, so that the next in line sees it.
func (e *every) succeeded(ctx context.Context, lock *holdfast.Lock, t target) {
	if !e.set {
		return
	}
	if err := lock.Succeeded(context.WithoutCancel(ctx)); err != nil {
		say("%s has succeeded, but that is not recorded, so the next run does not wait for its time: %s", quote(lock.Name()), t.Redact(err.Error()))
	}
}

// orUnusable is an error that says itself with which status to exit, or that of a store.
func (t target) orUnusable(err error, consequence string) error {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return t.unusable(err, consequence)
}

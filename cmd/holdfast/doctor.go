package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-lock/holdfast/sqlite"
)

const doctorHelp = `usage: holdfast doctor

Checks the store and this machine by using them: takes a lock under a name of its
own, hands it over, and gives it back.

  ok      as it should be
  slow    nothing is unsafe, but waiting takes longer than it need
  FAIL    a promise cannot be kept, or nothing works; the line says what to do

example:
  holdfast --store sqlite:/srv/app/app.db doctor

exit status: 0 ok or slow; 1 FAIL; 64 usage
`

func doctorVerb(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check the store and this machine", Long: doctorHelp,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.doctor(orBackground(c.Context())) },
	}
}

// A checkup collects findings.
type checkup struct {
	table  *tabwriter.Writer
	failed bool
}

func (d *checkup) ok(what, format string, args ...any)   { d.line("ok", what, format, args) }
func (d *checkup) slow(what, format string, args ...any) { d.line("slow", what, format, args) }
func (d *checkup) fail(what, format string, args ...any) {
	d.failed = true
	d.line("FAIL", what, format, args)
}

func (d *checkup) line(state, what, format string, args []any) {
	fmt.Fprintf(d.table, "%s\t%s\t%s\n", state, what, fmt.Sprintf(format, args...))
}

func (a *app) doctor(ctx context.Context) error {
	t, err := parseStore(a.store)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	d := &checkup{table: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)}
	d.examine(ctx, t)
	if err := d.table.Flush(); err != nil {
		return cannotWrite(err)
	}
	if d.failed {
		return &failure{exitNo, ""}
	}
	return nil
}

func (d *checkup) examine(ctx context.Context, t target) {
	h, err := t.open(ctx)
	if err != nil {
		d.fail("store", "%s: %s", t, t.redact(err.Error()))
		return
	}
	defer h.Close()
	client, err := holdfast.New(h.store, nil)
	if err != nil {
		d.fail("store", "%s: %s", t, t.redact(err.Error()))
		return
	}
	defer client.Close()
	ttl, took, err := answer(ctx, client)
	if err != nil {
		d.fail("store", "%s: %s", t, t.redact(err.Error()))
		return
	}
	d.ok("store", "%s, answers in %s", t, took.Round(10*time.Microsecond))
	d.schema(ctx, t)
	d.durability(t)
	if !d.locks(ctx, client, t) {
		return
	}
	d.handOver(ctx, h.store, client)
	d.ok("ttl", "%s: so long may a holder be silent; change it with: holdfast config set ttl DUR", brief(ttl))
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		d.fail("run", "there is no /proc: what a command starts and leaves behind cannot be found and ended")
	} else if g, err := guard.Start("/proc/self/exe", []string{"holdfast"}, nil); err != nil {
		d.fail("run", "%v", err)
	} else {
		g.Close()
		for range g.Events() {
		}
		d.ok("run", "commands can be guarded")
	}
}

// answer reads the setting a few times and returns it, and the best time.
func answer(ctx context.Context, client *holdfast.Client) (ttl, best time.Duration, err error) {
	best = time.Hour
	for range 5 {
		begin := time.Now()
		if ttl, err = client.StoreTTL(ctx); err != nil {
			return 0, 0, err
		}
		best = min(best, time.Since(begin))
	}
	return ttl, best, nil
}

func (d *checkup) schema(ctx context.Context, t target) {
	if t.scheme != "sqlite" {
		return
	}
	if err := sqlite.Verify(ctx, t.rest); err != nil {
		d.fail("schema", "%s", t.redact(err.Error()))
		return
	}
	d.ok("schema", "as it should be")
}

func (d *checkup) durability(t target) {
	switch {
	case t.scheme == "memory":
		d.ok("durability", "none: it is gone with this process (good for trying things out)")
	case slices.Contains(t.allow, "async-commit"):
		d.ok("durability", "async-commit is accepted: after a power cut a token may repeat")
	default:
		d.ok("durability", "each grant is on disk before it is told")
	}
	if slices.Contains(t.allow, "network-fs") {
		d.ok("file system", "network-fs is accepted: if its locks fail, so do ours")
	}
}

// locks takes a lock and gives it back.
func (d *checkup) locks(ctx context.Context, client *holdfast.Client, t target) bool {
	begin := time.Now()
	lock, err := client.TryAcquire(ctx, holdfast.JoinName("holdfast doctor", rand.Text()), holdfast.Reason("holdfast doctor"))
	if err != nil {
		d.fail("locks", "%s", t.redact(err.Error()))
		return false
	}
	first := time.Since(begin)
	proof := lock.Proof()
	begin = time.Now()
	if err := lock.Release(ctx); err != nil {
		d.fail("locks", "%s", t.redact(err.Error()))
		return false
	}
	d.ok("locks", "taken in %s, given back in %s", first.Round(10*time.Microsecond), time.Since(begin).Round(10*time.Microsecond))
	if proof != nil {
		d.ok("same host", "deaths seen at once through %s", escape(filepath.Dir(proof.Name())))
	} else {
		d.slow("same host", "no directory for proofs of death: after a crash others wait for the TTL. Set XDG_RUNTIME_DIR to a directory of yours, on a local disk")
	}
	return true
}

// handOver measures how long it takes from a release to the next holder, in
// another session.
func (d *checkup) handOver(ctx context.Context, store holdfast.Store, client *holdfast.Client) {
	name := holdfast.JoinName("holdfast doctor", rand.Text())
	best := time.Hour
	for range 3 {
		took, err := handOver(ctx, store, client, name)
		if err != nil {
			d.fail("wake-ups", "%s", escape(redactURL(err.Error())))
			return
		}
		best = min(best, took)
	}
	if best > 50*time.Millisecond {
		d.slow("wake-ups", "waiters poll: a hand-over took %s", brief(best))
		return
	}
	d.ok("wake-ups", "a hand-over takes %s", best.Round(10*time.Microsecond))
}

func handOver(ctx context.Context, store holdfast.Store, client *holdfast.Client, name string) (time.Duration, error) {
	joined := make(chan struct{}, 1)
	other, err := holdfast.New(store, &holdfast.Options{Trace: &holdfast.Trace{Waiting: func(string) {
		select {
		case joined <- struct{}{}:
		default:
		}
	}}})
	if err != nil {
		return 0, err
	}
	defer other.Close()
	lock, err := client.Acquire(ctx, name)
	if err != nil {
		return 0, err
	}
	type result struct {
		at  time.Time
		err error
	}
	got := make(chan result, 1)
	go func() {
		next, err := other.Acquire(ctx, name)
		got <- result{time.Now(), err}
		if err == nil {
			next.Release(ctx)
		}
	}()
	select {
	case <-joined:
	case r := <-got:
		if r.err == nil {
			r.err = errors.New("two holders at once of " + name)
		}
		return 0, r.err
	}
	begin := time.Now()
	if err := lock.Release(ctx); err != nil {
		return 0, err
	}
	r := <-got
	return r.at.Sub(begin), r.err
}

package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const doctorHelp = `usage: holdfast doctor [--read-only] [--json]

Checks the store and this machine by using them: takes a lock under a name of its
own, hands it over, and gives it back. The store says what the database's settings
put at risk.

  ok      as it should be
  warn    it works, but it is slower than it need be, or there is a danger, which the
          line names
  FAIL    a promise cannot be kept, or nothing works; the line says what to do

{flags}

examples:
  holdfast --store sqlite:/srv/app/app.db doctor
  holdfast --store postgres://app@db/shop doctor
  holdfast doctor --json | jq -r 'select(.level != "ok") | .subject'

exit status: 0 ok or warn; 1 FAIL; 64 usage
`

func doctorVerb(a *cli.App) *cobra.Command {
	var asJSON, readOnly bool
	c := &cobra.Command{
		Use: "doctor", Short: "Check the store and this machine", Long: doctorHelp,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return doctor(c.Context(), a, readOnly, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one object per line: level (ok, warn, fail), subject, text")
	c.Flags().BoolVar(&readOnly, "read-only", false, "look, and take no lock: for a role that may only read")
	return c
}

// A checkup collects findings.
type checkup struct {
	findings []driver.Finding
}

func (d *checkup) ok(subject, format string, args ...any) {
	d.add(driver.Good, subject, format, args)
}

func (d *checkup) warn(subject, format string, args ...any) {
	d.add(driver.Warning, subject, format, args)
}

func (d *checkup) fail(subject, format string, args ...any) {
	d.add(driver.Failure, subject, format, args)
}

func (d *checkup) add(level driver.Level, subject, format string, args []any) {
	d.findings = append(d.findings, driver.Finding{Level: level, Subject: subject, Text: fmt.Sprintf(format, args...)})
}

// about reports whether there is a finding on a subject.
func (d *checkup) about(subject string) bool {
	return slices.ContainsFunc(d.findings, func(f driver.Finding) bool { return f.Subject == subject })
}

func (d *checkup) failed() bool {
	return slices.ContainsFunc(d.findings, func(f driver.Finding) bool { return f.Level >= driver.Failure })
}

var levels = map[driver.Level]string{driver.Good: "ok", driver.Warning: "warn", driver.Failure: "FAIL"}

func (d *checkup) write(w io.Writer, asJSON bool) error {
	if asJSON {
		for _, f := range d.findings {
			if err := asjson.Encode(w, asjson.OfFinding(f)); err != nil {
				return err
			}
		}
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range d.findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", levels[f.Level], f.Subject, f.Text)
	}
	return table.Flush()
}

func doctor(ctx context.Context, a *cli.App, readOnly, asJSON bool) error {
	t, err := cli.ParseStore(a.Store)
	if err != nil {
		return err
	}
	t.ReadOnly = readOnly
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	d := &checkup{}
	var f *cli.Failure
	if err := d.examine(ctx, t); errors.As(err, &f) {
		return err // the URL is at fault
	} else if err != nil {
		d.fail("store", "%s: %s", t, t.Cause(err))
	}
	if err := d.write(os.Stdout, asJSON); err != nil {
		return cli.CannotWrite(err)
	}
	if d.failed() {
		return &cli.Failure{Status: cli.ExitNo}
	}
	return nil
}

// examine collects the findings. It returns an error if the store cannot be used.
func (d *checkup) examine(ctx context.Context, t cli.Target) error {
	h, err := t.Open(ctx)
	if grants := t.Grants(err); grants != nil && !t.ReadOnly {
		d.fail("rights", "%s; its owner grants it: %s To check what a role needs that only looks: %s", t.Cause(err), strings.Join(grants, " "), cli.Hint("doctor --read-only"))
		t.ReadOnly = true // check what a reader can check
		h, err = t.Open(ctx)
	}
	if err != nil {
		return err
	}
	defer h.Close()
	client, err := holdfast.New(h.Store, &holdfast.Options{ReadOnly: t.ReadOnly})
	if err != nil {
		return err
	}
	defer client.Close()
	ttl, took, err := answer(ctx, client)
	if err != nil {
		return err
	}
	d.ok("store", "%s, answers in %s", t, took.Round(10*time.Microsecond))
	d.encryption(t)
	d.diagnose(ctx, h.Store, t)
	d.schema(ctx, t)
	d.durability(t)
	if !t.ReadOnly && d.locks(ctx, client, t) {
		d.handOver(ctx, h.Store, client, t)
	}
	d.ok("ttl", "%s: a holder that misses heartbeats for this long is presumed dead; change it with: %s", cli.Brief(ttl), cli.Hint("config set ttl DUR"))
	if !t.ReadOnly {
		d.run()
	}
	return nil
}

// diagnose asks the store for findings about its database.
func (d *checkup) diagnose(ctx context.Context, store driver.Store, t cli.Target) {
	s, ok := driver.Find[driver.Diagnoser](store)
	if !ok {
		return
	}
	findings, err := s.Diagnose(ctx)
	if err != nil {
		d.fail("settings", "%s", t.Cause(err))
	}
	for _, f := range findings {
		f.Subject, f.Text = cli.Escape(f.Subject), cli.WithHints(t.Redact(f.Text))
		d.findings = append(d.findings, f)
	}
}

// run checks whether commands can be guarded.
func (d *checkup) run() {
	g, err := guard.Start("/proc/self/exe", []string{"holdfast"}, nil)
	if err != nil {
		d.fail("run", "%v", err)
		return
	}
	g.Close()
	for range g.Events() {
	}
	box, root := guard.Boxed(), os.Geteuid() == 0
	switch {
	case guard.Limits() != "":
		d.ok("run", "commands can be guarded, by their process group: %s", guard.Limits())
	case box != "":
		d.ok("run", "commands can be guarded, each in a control group of its own in %s", cli.Escape(box))
	case guard.Hides():
		d.warn("run", "commands can be guarded, but /proc hides what other users run (hidepid): what sudo and other set-uid programs start "+
			"is neither seen nor killed, and keeps the lock until it ends. No control group may be made here (in a systemd unit: Delegate=yes)")
	case !root:
		d.ok("run", "commands can be guarded; what sudo and other set-uid programs start cannot be killed by this user, and keeps the lock until it ends")
	default:
		d.ok("run", "commands can be guarded")
	}
}

// answer reads the store's TTL a few times. It returns the TTL and the shortest time that took.
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

func (d *checkup) schema(ctx context.Context, t cli.Target) {
	if t.Kind.Verify == nil || d.about("schema") {
		return
	}
	if err := t.Kind.Verify(ctx, t.Location); err != nil {
		d.fail("schema", "%s", t.Cause(err))
		return
	}
	d.ok("schema", "as it should be")
}

func (d *checkup) durability(t cli.Target) {
	switch {
	case d.about("durability"):
	case t.Scheme == "memory":
		d.ok("durability", "none: it is gone with this process (good for trying things out)")
	default:
		d.ok("durability", "each grant is on disk before it is reported")
	}
}

// locks takes a lock and gives it back.
func (d *checkup) locks(ctx context.Context, client *holdfast.Client, t cli.Target) bool {
	begin := time.Now()
	lock, err := client.TryAcquire(ctx, holdfast.JoinName("holdfast doctor", rand.Text()), holdfast.Reason("holdfast doctor"))
	if err != nil {
		d.fail("locks", "%s", t.Cause(err))
		return false
	}
	first := time.Since(begin)
	proof := lock.Proof()
	begin = time.Now()
	if err := lock.Release(ctx); err != nil {
		d.fail("locks", "%s", t.Cause(err))
		return false
	}
	d.ok("locks", "taken in %s, given back in %s", first.Round(10*time.Microsecond), time.Since(begin).Round(10*time.Microsecond))
	if proof != nil {
		d.ok("same host", "deaths seen at once through %s", cli.Escape(filepath.Dir(proof.Name())))
	} else {
		d.warn("same host", "no directory for proofs of death: after a crash others wait for the TTL. Set XDG_RUNTIME_DIR to a directory of yours, on a local disk")
	}
	return true
}

// handOver measures the time from a release to the next grant, in another session.
func (d *checkup) handOver(ctx context.Context, store driver.Store, client *holdfast.Client, t cli.Target) {
	name := holdfast.JoinName("holdfast doctor", rand.Text())
	best := time.Hour
	for range 3 {
		took, err := handOver(ctx, store, client, name)
		if err != nil {
			d.fail("hand-over", "%s", t.Cause(err))
			return
		}
		best = min(best, took)
	}
	if best > 50*time.Millisecond {
		d.warn("hand-over", "waiters poll: from a release to the next holder it took %s", cli.Brief(best))
		return
	}
	d.ok("hand-over", "the next holder has it %s after a release", best.Round(10*time.Microsecond))
}

func handOver(ctx context.Context, store driver.Store, client *holdfast.Client, name string) (time.Duration, error) {
	joined := make(chan struct{}, 1)
	other, err := holdfast.New(store, &holdfast.Options{Trace: &holdfast.Trace{Queued: func(context.Context, holdfast.Event) {
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

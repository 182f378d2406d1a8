package hold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

const runHelp = `usage: holdfast run [flags] NAME... -- CMD [ARG...]

Runs CMD while holding all names; waits in line for them. The lease is renewed
for as long as CMD runs. If it cannot be, CMD and all it started are ended before
the lock can go to another, also if holdfast itself is killed or stopped. What CMD
has others start (systemd-run, docker run, at, ssh) is not ended.

{flags}

CMD is run as it is, without a shell, with the files it is given; signals are
passed on. It finds HOLDFAST_NAME, HOLDFAST_TOKEN (of the first name) and
HOLDFAST_LOCKS (JSON: each name's token) in its environment, and one more open
file with a high number: by it this host knows that the lock is still in use.
What CMD leaves running is ended before the lock is released. What cannot be killed
(sudo and other set-uid programs unless you are root, what hangs in the kernel) keeps
the lock until it ends; a second signal gives up on it, and then the lock stays
held until its lease has ended.

With --every CMD runs only if its last success (exit status 0) was longer ago; else
nothing is run, and the exit status is that of "not obtained". It may be up to 10 % of
DUR early, so that a job that cron starts a little earlier than yesterday still runs.
The success is on the store's disk before the lock is given back, and counted by the
store's clock where it has one: hosts that start the job at the same time run it once.

If holdfast and its guard (hf-guard) are both killed, or both stopped, what CMD
started runs on. In a pid namespace of its own CMD dies with its guard:
  holdfast run nightly -- unshare --pid --fork --kill-child --mount-proc ./backup.sh
On macOS and FreeBSD CMD has a process group of its own. What leaves that (setsid,
timeout, a daemon) is not ended there, and does not keep the lock.

examples:
  holdfast run nightly -- ./backup.sh
  holdfast run -n nightly -- ./backup.sh
  holdfast run -n --at-least 50s nightly -- ./backup.sh
  holdfast run --slots 3 api -- ./call.sh
  holdfast run --every 24h nightly -- ./backup.sh
  holdfast run accounts/1 accounts/2 -- ./move.sh
  holdfast run nightly -- sh -c 'dump | gzip > backup.gz'

exit status: CMD's; 128+n killed by signal n; 1 not obtained; 64 usage;
69 store; 70 a fault of ours; 75 lost while running; 126, 127 CMD cannot be run
`

// A wish is how a lock is asked for: the flags that several verbs share.
type wish struct {
	shared bool
	slots  int
	noWait bool
	wait   cli.Span
	reason string
	labels labels
	owner  string
}

func (w *wish) flags(f *pflag.FlagSet) {
	f.BoolVarP(&w.shared, "shared", "s", false, "together with other shared holders")
	f.IntVar(&w.slots, "slots", 1, "up to `N` at a time")
	f.BoolVarP(&w.noWait, "no-wait", "n", false,
		"do not wait: exit 1 if held. (A holder who seems to be dead is watched for half a TTL; where the store has no clock, for a TTL.)")
	f.VarP(&w.wait, "wait", "w", "wait at most `DUR` (0 is -n): 90s, 10m, or plain seconds")
	w.shown(f, "show `TEXT` to those who wait")
}

// shown are the flags whose values others see.
func (w *wish) shown(f *pflag.FlagSet, reason string) {
	f.StringVar(&w.reason, "reason", "", reason)
	f.Var(&w.labels, "label", "show `KEY=VALUE` with the claim; as often as there are labels, 1 KiB in all")
	f.StringVar(&w.owner, "owner", os.Getenv(cli.OwnerVariable), "`NAME` of this process to others, such as a pod or a node; else $"+cli.OwnerVariable)
}

// labels are those of --label, each of which has one.
type labels map[string]string

func (l *labels) String() string { return cli.LabelsText(*l) }

func (l *labels) Type() string { return "KEY=VALUE" }

func (l *labels) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return fmt.Errorf("%s is no label: write KEY=VALUE", cli.Quote(text))
	}
	if *l == nil {
		*l = make(labels)
	}
	(*l)[key] = value
	return nil
}

// size is how many bytes they take as JSON.
func (l labels) size() int {
	text, err := json.Marshal(l)
	if err != nil || len(l) == 0 {
		return 0
	}
	return len(text)
}

// options checks the flags against each other.
func (w *wish) options(f *pflag.FlagSet) (opts []holdfast.Option, err error) {
	switch {
	case w.shared && f.Changed("slots"):
		return nil, cli.Usage("-s and --slots exclude each other: shared is any number")
	case w.slots < 1:
		return nil, cli.Usage("--slots %d: at least 1", w.slots)
	case w.slots > 1<<30:
		return nil, cli.Usage("--slots %d: at most %d", w.slots, 1<<30)
	case w.noWait && w.wait.Given:
		return nil, cli.Usage("-n and -w exclude each other: -n is -w 0")
	case len(w.reason) > 200:
		return nil, cli.Usage("--reason has %d bytes, at most 200", len(w.reason))
	case w.labels.size() > 1024:
		return nil, cli.Usage("--label: the labels take %d bytes as JSON, at most 1024", w.labels.size())
	case len(w.owner) > 255:
		return nil, cli.Usage("--owner has %d bytes, at most 255", len(w.owner))
	}
	if w.shared {
		opts = append(opts, holdfast.Shared())
	} else if w.slots > 1 {
		opts = append(opts, holdfast.Slots(w.slots))
	}
	if w.noWait || w.wait.Given {
		opts = append(opts, holdfast.MaxWait(w.wait.Duration))
	}
	if w.reason != "" {
		opts = append(opts, holdfast.Reason(w.reason))
	}
	if len(w.labels) > 0 {
		opts = append(opts, holdfast.Labels(w.labels))
	}
	return opts, nil
}

// A lease is the flags of verbs that keep a lock.
type lease struct {
	ttl, killAfter cli.Span
	atLeast, grace cli.Span // of run
	quiet          bool
}

func (l *lease) flags(f *pflag.FlagSet, ttl, killAfter, quiet string) {
	f.Var(&l.ttl, "ttl", ttl)
	f.Var(&l.killAfter, "kill-after", killAfter)
	f.BoolVarP(&l.quiet, "quiet", "q", false, quiet)
}

func (l *lease) check() error {
	if l.ttl.Given && l.ttl.Duration < holdfast.MinTTL {
		return cli.Usage("--ttl %v is below %v", l.ttl.Duration, holdfast.MinTTL)
	}
	if l.ttl.Duration > holdfast.MaxTTL {
		return cli.Usage("--ttl %v is above %v", l.ttl.Duration, holdfast.MaxTTL)
	}
	if d := l.atLeast.Duration; l.atLeast.Given && (d < holdfast.MinTTL || d > holdfast.MaxTTL) {
		return cli.Usage("--at-least %v is not between %v and %v", d, holdfast.MinTTL, holdfast.MaxTTL)
	}
	if l.grace.Duration > holdfast.MaxTTL {
		return cli.Usage("--grace %v is above %v", l.grace.Duration, holdfast.MaxTTL)
	}
	if l.ttl.Given {
		return l.checkKillAfter(l.ttl.Duration)
	}
	return nil
}

// checkKillAfter refuses a value that would stop the command between two heartbeats that are on
// time: they come each third of the TTL.
func (l *lease) checkKillAfter(ttl time.Duration) error {
	if l.killAfter.Given && l.killAfter.Duration > ttl/3 {
		return cli.Usage("--kill-after %s is too long for a lease of %s, which is renewed each %s: at most that, or a longer --ttl",
			cli.Brief(l.killAfter.Duration), cli.Brief(ttl), cli.Brief(ttl/3))
	}
	return nil
}

// A job is what run is asked to run, and under which locks.
type job struct {
	names, argv []string
	opts        []holdfast.Option
	wish
	lease
	every every
	code  int // exit status if the locks are not obtained
}

func runVerb(a *cli.App) *cobra.Command {
	j := job{code: cli.ExitNo}
	c := &cobra.Command{
		Use: "run [flags] NAME... -- CMD [ARG...]", Short: "Run a command while holding a lock", Long: runHelp,
		ValidArgsFunction: a.CompleteNames,
	}
	j.wish.flags(c.Flags())
	j.lease.flags(c.Flags(), "this run's own lease, at least 1s; else the store's (15s)",
		"from TERM to KILL, before the lease can go to another; a fifth of the lease, at most a third", "say nothing of our own, neither while waiting nor if it is not obtained")
	c.Flags().Var(&j.atLeast, "at-least", "keep NAME shut for `DUR` after the grant, also if CMD ends or dies earlier: a job of several hosts' crontabs runs once")
	c.Flags().Var(&j.grace, "grace", "keep NAME shut for `DUR` more if the lock is lost or broken, or holdfast dies")
	c.Flags().Var(&j.every.Span, "every", "run only if the last success was `DUR` ago or longer, less 10 %")
	c.Flags().IntVarP(&j.code, "exit-code", "E", cli.ExitNo, "exit status `N` when not obtained")
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		if j.names, j.argv, err = splitArgs(c, args, "nightly -- ./backup.sh", cli.CheckName); err != nil {
			return err
		}
		if err := j.check(c.Flags()); err != nil {
			return err
		}
		return runJob(c.Context(), a, &j)
	}
	return c
}

// check checks the flags against each other, and makes options of them.
func (j *job) check(f *pflag.FlagSet) (err error) {
	if j.code < 0 || j.code > 255 {
		return cli.Usage("-E %d: an exit status is 0 to 255", j.code)
	}
	if j.opts, err = j.options(f); err != nil {
		return err
	}
	if err := j.lease.check(); err != nil {
		return err
	}
	if j.atLeast.Given {
		if len(j.names) > 1 {
			return cli.Usage("--at-least is for one name, and there are %d", len(j.names))
		}
		j.opts = append(j.opts, holdfast.MinHold(j.atLeast.Duration))
	}
	return j.every.check(j.names, &j.wish)
}

// splitArgs splits NAME... -- CMD [ARG...]. Its errors show the example.
func splitArgs(c *cobra.Command, args []string, example string, check func(string) error) (names, argv []string, err error) {
	verb := cli.VerbOf(c)
	dash := c.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) < 2:
		return nil, nil, cli.Usage("%s: needs a name and a command, as in: holdfast %s %s", verb, verb, example)
	case dash < 0:
		names, command := splitGuess(args)
		return nil, nil, noDashes(verb, names, command)
	case dash == 0:
		return nil, nil, cli.Usage("%s: no name before --, as in: holdfast %s %s", verb, verb, example)
	case dash == len(args):
		_, command, _ := strings.Cut(example, " -- ")
		return nil, nil, cli.Usage("%s: no command after --, as in: holdfast %s %s -- %s", verb, verb, cli.Escape(args[0]), command)
	}
	for _, name := range args[:dash] {
		if err := check(name); err != nil {
			return nil, nil, err
		}
	}
	return args[:dash], args[dash:], nil
}

// splitGuess takes a command line without "--" for a name and a command.
func splitGuess(args []string) (names []string, command string) {
	if len(args) < 2 {
		return args, ""
	}
	return args[:1], strings.Join(args[1:], " ")
}

// NoDashes returns the error for a command line in which a flag of the command was taken for one
// of ours, because there is no "--" between them; nil if that is not what happened.
func NoDashes(c *cobra.Command) error {
	names, command := splitGuess(c.Flags().Args())
	switch verb := cli.VerbOf(c); {
	case verb == "cache" && len(names) > 0:
		return cacheDashes(c.Flag("state").Value.String())
	case command != "" && (verb == "run" || verb == "elect" || verb == "state write"):
		return noDashes(verb, names, command)
	}
	return nil
}

func noDashes(verb string, names []string, command string) error {
	return cli.Usage("%s: put -- before the command: holdfast %s %s -- %s", verb, verb, cli.Escape(strings.Join(names, " ")), cli.Escape(command))
}

// nothingRun is added to errors of the store that come before a command is started.
const nothingRun = "; nothing was run"

func runJob(ctx context.Context, a *cli.App, j *job) error {
	path, t, err := toRun(a, j.argv[0])
	if err != nil {
		return err
	}
	// The guard starts while we get the lock.
	r := newRunner(j.argv, j.names, &j.lease)
	r.log = &a.Log
	ready, over := r.startGuard(path, environment())
	defer over()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := r.endOnSignal(cancel)
	defer stop()
	q := newQueue(j.names, j.quiet)
	client, closeAll, err := clientOn(ctx, t, &holdfast.Options{
		TTL:   j.ttl.Duration,
		Grace: j.grace.Duration,
		Owner: holdfast.Owner{Name: j.owner, Program: "holdfast run"},
		Trace: (&holdfast.Trace{Heartbeat: r.beat, Shortened: r.shortened, Lost: r.lostOne, Queued: q.joined}).And(a.Log.Trace(t)),
	})
	if err != nil {
		return err
	}
	defer closeAll()
	if err := j.mayWait(ctx, client, t); err != nil {
		stop()
		return orSignal(ctx, err)
	}
	q.watch(client)
	a.Log.Requested(j.names, j.reason)
	locks, release, err := acquire(ctx, client, j.names, j.opts)
	q.stop()
	stop()
	if err != nil {
		if errors.Is(err, holdfast.ErrHeld) && ctx.Err() == nil {
			return notObtained(err, j.names, &j.wish, q, j.code)
		}
		return orSignal(ctx, t.Unusable(err, nothingRun))
	}
	if err := ready(); err != nil {
		return cli.Fail(cli.ExitFault, "%v%s", err, nothingRun)
	}
	if err := j.due(ctx, client, t); err != nil {
		return orSignal(ctx, err)
	}
	q.done(locks)
	if err = r.hold(locks); err == nil {
		j.every.succeeded(ctx, locks[0], t)
	}
	ended, done := context.WithCancel(ctx)
	done()
	release(ended) // closeAll waits for the answer
	if e := closeAll(); e != nil && err == nil {
		cli.Say("%s has ended, but %s may not have been given back: %s", cli.Escape(j.argv[0]), cli.QuoteAll(j.names), t.Redact(e.Error()))
	}
	return err
}

// toRun finds the program and the store of a verb that runs a command.
func toRun(a *cli.App, program string) (path string, t cli.Target, err error) {
	if path, err = lookUp(program); err != nil {
		return "", t, err
	}
	if t, err = cli.ParseStore(a.Store); err != nil {
		return "", t, err
	}
	return path, t, guardable()
}

// clientOn opens a store and a client on it. closeAll closes both, once, and returns the error
// of the client.
func clientOn(ctx context.Context, t cli.Target, opts *holdfast.Options) (client *holdfast.Client, closeAll func() error, err error) {
	h, err := t.Open(ctx)
	if err != nil {
		return nil, nil, orSignal(ctx, t.Unusable(err, nothingRun))
	}
	client, err = holdfast.New(h.Store, opts)
	if err != nil {
		h.Close()
		return nil, nil, cli.Usage("%s", strings.TrimPrefix(err.Error(), "holdfast: "))
	}
	return client, sync.OnceValue(func() error {
		defer h.Close()
		return client.Close()
	}), nil
}

// mayWait says why a job cannot wait for its locks.
func (j *job) mayWait(ctx context.Context, client *holdfast.Client, t cli.Target) error {
	if j.killAfter.Given && !j.ttl.Given {
		ttl, err := client.StoreTTL(ctx)
		if err != nil {
			return t.Unusable(err, nothingRun)
		}
		if err := j.checkKillAfter(ttl); err != nil {
			return err
		}
	}
	if err := j.due(ctx, client, t); err != nil { // else it would wait in line for that
		return err
	}
	return withinItself(ctx, client, j.names, &j.wish)
}

// due says why it is too early for a job.
func (j *job) due(ctx context.Context, client *holdfast.Client, t cli.Target) error {
	err := j.every.due(ctx, client, j.names[0], j.code, j.quiet)
	if err == nil {
		return nil
	}
	return orUnusable(t, err, nothingRun)
}

// acquire takes the locks on all names, and returns them with the function that gives them back.
func acquire(ctx context.Context, client *holdfast.Client, names []string, opts []holdfast.Option) ([]*holdfast.Lock, func(context.Context) error, error) {
	if len(names) == 1 {
		lock, err := client.Acquire(ctx, names[0], opts...)
		if err != nil {
			return nil, nil, err
		}
		return []*holdfast.Lock{lock}, lock.Release, nil
	}
	set, err := client.AcquireAll(ctx, names, opts...)
	if err != nil {
		return nil, nil, err
	}
	return set.Locks(), set.Release, nil
}

// orSignal is err, or the signal that ended ctx.
func orSignal(ctx context.Context, err error) error {
	var k *cli.Killed
	if errors.As(context.Cause(ctx), &k) {
		return k
	}
	return err
}

// withinItself refuses to wait for a lock of the run above this one: each would wait for the other.
func withinItself(ctx context.Context, client *holdfast.Client, names []string, w *wish) error {
	var above map[string]int64
	if w.noWait || w.wait.Given {
		return nil // such a wait ends by itself, and says who is in the way
	}
	if json.Unmarshal([]byte(os.Getenv("HOLDFAST_LOCKS")), &above) != nil {
		return nil
	}
	for _, name := range names {
		token, ok := above[name]
		if !ok {
			continue
		}
		info, err := client.Show(ctx, name)
		if err != nil {
			return nil // acquire will say why
		}
		for _, c := range info.Holders {
			if c.Token == token && (c.Slots == 1 || !w.shared && w.slots == 1) {
				return cli.Usage("%s is held by the holdfast run that this one runs under (token %d), which would wait for it without end", cli.Quote(name), token)
			}
		}
	}
	return nil
}

// notObtained says who is in the way.
func notObtained(err error, names []string, w *wish, q *queue, code int) error {
	name := names[0]
	state := "held"
	var held *holdfast.HeldError
	if errors.As(err, &held) {
		if held.Name != "" {
			name = held.Name
		}
		switch {
		case len(held.Holders) > 0 && held.Holders[0].Kept:
			state = cli.KeptBy(held.Holders[0])
		case len(held.Holders) > 0:
			state = cli.HeldBy(held.Holders) + life(held.Holders[0])
		case len(held.Waiters) > 0:
			state = fmt.Sprintf("taken: %d wait before you", len(held.Waiters))
		}
	}
	if q.quiet {
		return cli.Fail(code, "")
	}
	if w.wait.Duration > 0 {
		return cli.Fail(code, "gave up on %s after %s: %s", cli.Quote(name), cli.Brief(q.waited()), state)
	}
	return cli.Fail(code, "%s is %s; wait for it with -w 10m, or look: %s", cli.Quote(name), state, cli.Hint("show %s", cli.ShellWord(name)))
}

// life says how long ago a claim's session sent a heartbeat, and how long it may be silent.
func life(c holdfast.Claim) string {
	switch {
	case c.Detached || c.Dead || c.TTL <= 0:
		return ""
	case !c.KeptUntil.IsZero():
		return " and at least until " + c.KeptUntil.Format(time.TimeOnly)
	case c.BeatAge < 0:
		return fmt.Sprintf(" (TTL %s)", cli.Brief(c.TTL))
	}
	return fmt.Sprintf(" (last heartbeat %s ago, TTL %s)", cli.Brief(c.BeatAge), cli.Brief(c.TTL))
}

// lookUp finds the command before anybody has to wait for it.
func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return "", cli.Fail(cli.ExitNotFound, "%s: command not found", cli.Escape(name))
	}
	return "", cannotRun(name, err)
}

func cannotRun(name string, err error) error {
	var e syscall.Errno
	var exe *exec.Error
	switch {
	case errors.As(err, &e) && e == syscall.ENOENT:
		return cli.Fail(cli.ExitNotFound, "%s: cannot be run: it, or the interpreter in its first line, is not there", cli.Escape(name))
	case errors.As(err, &e) && e == syscall.ENOEXEC:
		return cli.Fail(cli.ExitNotRun, "%s: cannot be run: neither a program nor a script with #! in its first line", cli.Escape(name))
	case errors.As(err, &exe):
		err = exe.Err
	}
	return cli.Fail(cli.ExitNotRun, "%s: cannot be run: %v", cli.Escape(name), err)
}

// environment is that of this process, without the variables that are for it alone.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); {
		case strings.HasPrefix(name, "HOLDFAST_AUTH"):
		case name == "HOLDFAST_NAME", name == "HOLDFAST_TOKEN", name == "HOLDFAST_LOCKS", name == "HOLDFAST_STATE":
		default:
			env = append(env, v)
		}
	}
	return env
}

package hold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/internal/asjson"
	"github.com/holdfast-lock/holdfast/internal/printable"
	"github.com/holdfast-lock/holdfast/state"
)

const stateHelp = `usage: holdfast state key|write|clear NAME|DIR

Keeps a key for something that changes, such as a repository. Readers may cache what
they read under the key, and each change of the thing changes the key.

  key       print the key; exit 1 while someone writes: then nothing may be cached
  write     run a command that changes the thing; until it has ended readers do
            not use the cache, and then the key is a new one
  clear     change the key, and remove writers whose lease has ended

An argument that begins with / or ./ or ../, or is . or .., is a directory. Its key is
in the files state/key and state/pending/* there, for any program that follows the
same steps. Any other argument is a name in the store of --store or HOLDFAST_STORE.

examples:
  holdfast state write ./repo.git -- ./push.sh
  holdfast state write prices -- ./import.sh
  key=$(holdfast state key prices) && test -e "cache/$key"
  holdfast cache --state ./repo.git -- git upload-pack --advertise-refs ./repo.git

exit status: as holdfast state key --help and so on say
`

const stateKeyHelp = `usage: holdfast state key [--json] NAME|DIR

Prints the key of a state. What is read after that may be cached by this key if the
same key is printed, with exit status 0, once more after all was read. While someone
writes it is printed, too, but exit status 1 says that nothing may be cached by it.
Where there is no key yet one is made. holdfast cache does all this.

{flags}

examples:
  holdfast state key ./repo.git
  holdfast state key prices
  holdfast state key --json ./repo.git | jq .writing

exit status: 0; 1 someone writes; 64 usage; 69 store
`

const stateClearHelp = `usage: holdfast state clear NAME|DIR

Changes the key of a state, so that nothing is served from a cache that was filled
before, and removes writers whose lease has ended. Writers at work stay. It is for
people, after the thing was changed by other means: restored from a backup, or by a
program that does not know of the state.

examples:
  holdfast state clear ./repo.git
  holdfast state clear prices

exit status: 0; 64 usage; 69 store
`

func stateVerb(a *cli.App) *cobra.Command {
	parent := &cobra.Command{
		Use: "state key|write|clear", Short: "Keep a key for something that changes", Long: stateHelp,
		RunE: func(c *cobra.Command, args []string) error {
			return cli.Usage("state: key, write or clear? As in: holdfast state key ./repo.git")
		},
	}
	var asJSON bool
	key := &cobra.Command{
		Use: "key NAME|DIR", Long: stateKeyHelp, Args: oneState, ValidArgsFunction: completeStates(a),
		RunE: func(c *cobra.Command, args []string) error {
			return stateKey(c.Context(), a, args[0], asJSON)
		},
	}
	key.Flags().BoolVar(&asJSON, "json", false, "as an object: key, and writing (true or false)")
	parent.AddCommand(key, stateWriteVerb(a), &cobra.Command{
		Use: "clear NAME|DIR", Long: stateClearHelp, Args: oneState, ValidArgsFunction: completeStates(a),
		RunE: func(c *cobra.Command, args []string) error {
			return stateClear(c.Context(), a, args[0])
		},
	})
	return parent
}

// oneState is the argument check of verbs that take one state.
func oneState(c *cobra.Command, args []string) error {
	verb := cli.VerbOf(c)
	switch {
	case len(args) == 0:
		return cli.Usage("%s: of what? As in: holdfast %s ./repo.git", verb, verb)
	case len(args) > 1:
		return cli.Usage("%s: one name or directory, not %d; quote one that has spaces", verb, len(args))
	}
	return checkState(args[0])
}

func checkState(where string) error {
	if isDirectory(where) {
		return nil
	}
	return cli.CheckName(where)
}

// isDirectory tells a directory from a name in the store.
func isDirectory(where string) bool {
	for _, prefix := range []string{"/", "./", "../"} {
		if strings.HasPrefix(where, prefix) {
			return true
		}
	}
	return where == "." || where == ".."
}

// completeStates offers names in use, or leaves it to the shell, which knows the
// directories.
func completeStates(a *cli.App) func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if isDirectory(prefix) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return a.CompleteNames(c, args, prefix)
	}
}

// A subject is the state that a verb is about, and what it is kept in.
type subject struct {
	*state.State
	where string
	store *cli.Session // nil: files
}

// openState opens a state; opts are for a name, dir for a directory.
func openState(ctx context.Context, a *cli.App, where string, opts *holdfast.Options, dir *state.DirOptions) (*subject, error) {
	s := &subject{where: where}
	if isDirectory(where) {
		path, err := filepath.Abs(where)
		if err == nil {
			s.State, err = state.Dir(path, dir)
		}
		if err != nil {
			return nil, s.unusable(err, "")
		}
		return s, nil
	}
	store, err := a.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	s.State, s.store = state.On(store.Client, where), store
	return s, nil
}

func (s *subject) Close() error {
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}

// unusable is the failure of a command whose state could not be used.
func (s *subject) unusable(err error, also string) error {
	if s.store != nil {
		return s.store.Unusable(err, also)
	}
	return cli.Fail(cli.ExitStore, "%s%s", s.said(err), also)
}

// said is an error as it may be shown.
func (s *subject) said(err error) string {
	if s.store != nil {
		return s.store.Cause(err)
	}
	return cli.Escape(printable.OneLine(err.Error()))
}

func stateKey(ctx context.Context, a *cli.App, where string, asJSON bool) error {
	s, err := openState(ctx, a, where, &holdfast.Options{Owner: holdfast.Owner{Program: "holdfast state key"}}, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	key, err := s.Key(ctx)
	if err != nil {
		return s.unusable(err, "")
	}
	if err := showKey(key, asJSON); err != nil {
		return cli.CannotWrite(err)
	}
	if key.Writing {
		return cli.Fail(cli.ExitNo, "%s is being written: what is read now must not be cached", cli.Quote(where))
	}
	return nil
}

func showKey(key state.Key, asJSON bool) error {
	if asJSON {
		return asjson.Encode(os.Stdout, asjson.Key{Key: key.ID, Writing: key.Writing})
	}
	if key.ID == "" {
		return nil
	}
	_, err := fmt.Println(key.ID)
	return err
}

func stateClear(ctx context.Context, a *cli.App, where string) error {
	s, err := openState(ctx, a, where, &holdfast.Options{Owner: holdfast.Owner{Program: "holdfast state clear"}}, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Clear(ctx); err != nil {
		return s.unusable(err, "")
	}
	key, err := s.Key(ctx)
	switch {
	case err != nil:
		return s.unusable(err, "")
	case key.Writing:
		cli.Say("%s is still being written: readers go without the cache until that has ended", cli.Quote(where))
	}
	return nil
}

const stateWriteHelp = `usage: holdfast state write [flags] NAME|DIR -- CMD [ARG...]

Runs CMD, which changes something whose readers use holdfast cache or holdfast state
key. They see it before CMD is started and go without the cache until it has ended
and the key is another, durably. That is so also if CMD fails or is killed.

Any number may write at the same time. The lease is renewed for as long as CMD runs.
If it cannot be, CMD and all it started are ended before it can be taken for that of
a dead writer, also if holdfast itself is killed or stopped.

{flags}

CMD is run as it is, without a shell, with the files it is given; signals are
passed on. It finds HOLDFAST_STATE in its environment, the name or the directory's
full path, and with a name also what holdfast run gives it. What CMD leaves running
is ended before the key is changed.

examples:
  holdfast state write ./repo.git -- git --git-dir=./repo.git update-ref -d refs/heads/x
  holdfast state write ./repo.git -- git receive-pack ./repo.git
  holdfast state write prices -- ./import.sh

exit status: CMD's; 128+n killed by signal n; 64 usage; 69 store, or the key could not
be changed; 70 a fault of ours; 75 lost while running; 126, 127 CMD cannot be run
`

func stateWriteVerb(a *cli.App) *cobra.Command {
	var l lease
	c := &cobra.Command{
		Use: "write [flags] NAME|DIR -- CMD [ARG...]", Long: stateWriteHelp,
		ValidArgsFunction: completeStates(a),
	}
	l.flags(c.Flags(), "this write's own lease, at least 1s; else 30s in a directory, and in a store what holdfast config get ttl says",
		"from TERM to KILL, before the lease can be taken for dead; a fifth of the lease, at most a third",
		"say nothing while waiting for an exclusive holder of the name")
	c.RunE = func(c *cobra.Command, args []string) error {
		states, argv, err := splitArgs(c, args, "./repo.git -- ./push.sh", checkState)
		if err != nil {
			return err
		}
		if len(states) > 1 {
			return cli.Usage("state write: one name or directory, not %d; quote one that has spaces", len(states))
		}
		if err := l.check(); err != nil {
			return err
		}
		return stateWrite(c.Context(), a, states[0], argv, &l)
	}
	return c
}

func stateWrite(ctx context.Context, a *cli.App, where string, argv []string, l *lease) error {
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	if err := guardable(); err != nil {
		return err
	}
	r := newRunner(argv, []string{where}, l)
	r.log = &a.Log
	r.files, r.last, r.kept = isDirectory(where), "the key of "+cli.Quote(where)+" is changed", "readers of "+cli.Quote(where)+" go without the cache"
	ready, over := r.startGuard(path, environment())
	defer over()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := r.endOnSignal(cancel)
	defer stop()
	tokens := make(map[string]int64)
	q := newQueue(r.names, l.quiet)
	s, err := openState(ctx, a, where, &holdfast.Options{
		TTL:   l.ttl.Duration,
		Owner: holdfast.Owner{Program: "holdfast state write"},
		Trace: &holdfast.Trace{Heartbeat: r.beat, Shortened: r.shortened, Lost: r.lostOne, Queued: q.joined, Acquired: func(_ context.Context, e holdfast.Event) {
			if len(tokens) == 0 {
				tokens[e.Name] = e.Token
			}
		}},
	}, &state.DirOptions{
		Lease: l.ttl.Duration,
		Trace: (&holdfast.Trace{Heartbeat: r.beat}).And(a.Log.Trace(cli.Target{})),
	})
	if err != nil {
		return orSignal(ctx, err)
	}
	defer s.Close()
	env := []string{"HOLDFAST_STATE=" + where}
	if s.store == nil {
		if abs, err := filepath.Abs(where); err == nil {
			env[0] = "HOLDFAST_STATE=" + abs
		}
	}
	w, err := s.begin(ctx, q)
	stop()
	if err != nil {
		return orSignal(ctx, s.unusable(err, nothingRun))
	}
	if err = ready(); err != nil {
		err = cli.Fail(cli.ExitFault, "%v%s", err, nothingRun)
	} else if err = l.checkKillAfter(w.TTL()); err == nil {
		if s.store != nil {
			env = append(env, tokenEnvironment(where, tokens)...)
		}
		err = r.under(w, env)
	}
	// If we cannot change the key, others will, but not soon.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), max(w.TTL(), 5*time.Second))
	defer done()
	return s.ended(err, w.End(ctx), argv[0])
}

// begin begins a write, and reports the wait if there is one.
func (s *subject) begin(ctx context.Context, q *queue) (*state.Writer, error) {
	if s.store == nil {
		return s.Begin(ctx)
	}
	q.watch(s.store.Client)
	defer q.stop()
	return s.Begin(ctx)
}

// ended is how a write ended, given how its command and its lease ended.
func (s *subject) ended(command, end error, name string) error {
	var text string
	switch {
	case end == nil:
		return command
	case errors.Is(end, holdfast.ErrLost):
		if command != nil { // it ended because of the loss, or failed anyway
			return command
		}
		return cli.Fail(cli.ExitLost, "lost %s: %s; %s has ended, but not all the time under a lease", cli.Quote(s.where), reasonOf(end), cli.Escape(name))
	default:
		text = fmt.Sprintf("the key of %s may not have been changed: %s; readers go without the cache until it is", cli.Quote(s.where), s.said(end))
	}
	if command == nil {
		return cli.Fail(cli.ExitStore, "%s has ended, but %s", cli.Escape(name), text)
	}
	cli.Say("%s", text)
	return command
}

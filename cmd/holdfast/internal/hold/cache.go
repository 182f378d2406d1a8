package hold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/internal/printable"
	"github.com/holdfast-lock/holdfast/state"
)

const cacheHelp = `usage: holdfast cache [flags] --state NAME|DIR -- CMD [ARG...]

Prints what CMD prints, from the cache while the state is the same. After the state has
changed CMD is run again, once for all who ask at the same time. While someone writes
(see holdfast state write) CMD is run for everyone, without the cache. So the answer is
never older than a write that had ended when this was called.

{flags}

CMD is run without a shell and without standard input. Its environment is not part of
the kind. Its output is kept if its exit status is 0. If it fails, its output and
status are passed on. If the cache or the state cannot be used, CMD is run without the
cache, and a message says why.

examples:
  holdfast cache --state ./repo.git -- git upload-pack --advertise-refs ./repo.git
  holdfast cache --state prices --ttl 10m -- ./report.sh --all
  holdfast cache --state /srv/app --kind 'menu v2' --max-bytes 100M -- ./menu

exit status: CMD's; 128+n killed by signal n; 64 usage; 70 a fault of ours;
126, 127 CMD cannot be run
`

func cacheVerb(a *cli.App) *cobra.Command {
	k := &caching{ttl: cli.Span{Duration: time.Hour}, max: 1 << 30}
	c := &cobra.Command{
		Use: "cache [flags] --state NAME|DIR -- CMD [ARG...]", Short: "Keep a command's output while a state is the same", Long: cacheHelp,
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	c.Flags().StringVar(&k.where, "state", "", "the state that CMD's output depends on, `NAME|DIR`: a directory if it begins with / or ./ or ../, else a name in the store")
	c.Flags().Var(&k.ttl, "ttl", "how long an answer is kept")
	c.Flags().StringVar(&k.kind, "kind", "", "tells answers of one state apart; else CMD, its arguments and the working directory do. "+
		"With the same `KIND` it is the same answer: name content and format, as in 'info/refs v1'")
	c.Flags().StringVar(&k.dir, "dir", "", "keep answers in `DIR`; else in $XDG_CACHE_HOME/holdfast or ~/.cache/holdfast")
	c.Flags().Var(&k.max, "max-bytes", "of all answers in it, as 500M or 2GiB")
	c.RegisterFlagCompletionFunc("state", completeStates(a))
	c.RunE = func(c *cobra.Command, args []string) error {
		switch dash := c.ArgsLenAtDash(); {
		case !c.Flags().Changed("state"):
			return cli.Usage("cache: of which state? As in: holdfast cache --state ./repo.git -- git ls-remote ./repo.git")
		case dash < 0 && len(args) > 0, dash > 0:
			return cacheDashes(k.where)
		case len(args) == 0:
			return cli.Usage("cache: no command after --, as in: holdfast cache --state %s -- ./report.sh", cli.Escape(k.where))
		case k.ttl.Duration <= 0:
			return cli.Usage("cache: --ttl %s: keeps nothing", cli.Brief(k.ttl.Duration))
		}
		if err := checkState(k.where); err != nil {
			return err
		}
		k.argv = args
		return runCached(c.Context(), a, k)
	}
	return c
}

func cacheDashes(where string) error {
	if where == "" {
		where = "./repo.git"
	}
	return cli.Usage("cache: put -- before the command and nothing else, as in: holdfast cache --state %s -- ./report.sh", cli.Escape(where))
}

// caching is one use of the cache.
type caching struct {
	where, kind, dir string
	ttl              cli.Span
	max              size
	argv             []string
	path             string // of the command
}

func runCached(ctx context.Context, a *cli.App, k *caching) error {
	var err error
	if k.path, err = lookUp(k.argv[0]); err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	err = printCached(ctx, a, k)
	var f *cli.Failure
	var out *outcome
	switch {
	case err == nil:
		return nil
	case errors.As(err, &out):
		err = out.err
	case errors.As(err, &f) && f.Status != cli.ExitStore, ctx.Err() != nil:
	default:
		text := err.Error()
		if f == nil {
			text = "cannot use the cache: " + cli.Escape(printable.OneLine(text))
		}
		cli.Say("%s; running %s without it", strings.TrimSuffix(text, "."), cli.Escape(k.argv[0]))
		err = k.run(ctx, os.Stdout)
	}
	return orSignal(ctx, err)
}

// An outcome is that of a command that was run. Its output, if any, has been
// printed.
type outcome struct{ err error }

func (o *outcome) Error() string { return "the command has failed" }

// printCached prints what the command prints. An error other than an outcome means
// that nothing was printed.
func printCached(ctx context.Context, a *cli.App, k *caching) error {
	s, err := openState(ctx, a, k.where, &holdfast.Options{Owner: holdfast.Owner{Program: "holdfast cache"}}, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	dir, err := k.directory()
	if err != nil {
		return err
	}
	cache, err := state.OpenCache(dir, &state.CacheOptions{TTL: k.ttl.Duration, MaxBytes: int64(k.max)})
	if err != nil {
		return err
	}
	defer cache.Close()
	kind, err := k.kindOf(s)
	if err != nil {
		return err
	}
	out := &spool{}
	defer out.close()
	ran := false
	blob, err := cache.Get(ctx, s.State, kind, func(ctx context.Context, w io.Writer) error {
		ran = true
		return k.fill(ctx, w, out)
	})
	switch {
	case err == nil:
		defer blob.Close()
		if _, err := io.Copy(os.Stdout, blob); err != nil {
			return &outcome{cli.CannotWrite(err)}
		}
		return nil
	case !ran || ctx.Err() != nil:
		return err
	}
	var o *outcome
	if errors.As(err, &o) && o.err != nil {
		if e := out.print(); e != nil {
			return &outcome{cli.CannotWrite(e)}
		}
		return o
	}
	return &outcome{out.print()} // the cache has failed, the command has not
}

// fill runs the command into the cache, through a file that keeps the output if
// either fails.
func (k *caching) fill(ctx context.Context, w io.Writer, out *spool) error {
	if err := k.run(ctx, out); err != nil {
		return &outcome{err}
	}
	if out.direct {
		return &outcome{}
	}
	return out.copy(w)
}

// run runs the command.
func (k *caching) run(ctx context.Context, stdout io.Writer) error {
	c := exec.CommandContext(ctx, k.path)
	c.Args = k.argv
	c.Env = environment()
	c.Stdout, c.Stderr = stdout, os.Stderr
	c.Cancel = func() error {
		var sig *cli.Killed
		if errors.As(context.Cause(ctx), &sig) && c.Process.Signal(sig.Signal) == nil {
			return nil
		}
		return c.Process.Kill()
	}
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return cannotRun(k.argv[0], err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return &cli.Killed{Signal: status.Signal()}
	}
	return &cli.Failure{Status: exit.ExitCode()}
}

// directory returns that of the cache. The default one is created.
func (k *caching) directory() (string, error) {
	if k.dir != "" {
		return k.dir, nil
	}
	base := os.Getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no --dir, and no home directory for a cache of your own: %w", err)
		}
		base = filepath.Join(home, ".cache")
	}
	dir := filepath.Join(base, "holdfast")
	return dir, os.MkdirAll(dir, 0o700)
}

// kindOf returns the kind that was given, or one that no other command has. The
// same name in two stores is two states, even if one store is a copy of the other.
func (k *caching) kindOf(s *subject) (string, error) {
	kind := k.kind
	if kind == "" {
		dir, err := os.Getwd()
		if err != nil {
			return "", err
		}
		kind = fmt.Sprintf("command %q", append([]string{dir, k.path}, k.argv...))
	}
	if s.store != nil {
		t := s.store.Target
		if t.Kind.NeedsPath {
			path, err := filepath.Abs(t.Path)
			if err != nil {
				return "", err
			}
			at := *t.Location
			at.Path, t.Location = path, &at
		}
		kind = fmt.Sprintf("%s in %s", kind, t)
	}
	return kind, nil
}

// untilSignal returns a context that ends on a signal that would end this process.
func untilSignal(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	go func() {
		select {
		case sig := <-signals:
			cancel(&cli.Killed{Signal: sig.(syscall.Signal), Really: sig == os.Interrupt})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// A spool keeps the output of a command in a file without a name. If no file can
// be written, the output goes to standard output at once.
type spool struct {
	file   *os.File
	direct bool
}

func (s *spool) Write(p []byte) (int, error) {
	if s.file == nil && !s.direct {
		file, err := os.CreateTemp("", "holdfast-")
		if err == nil {
			s.file = file
			os.Remove(file.Name()) // fails where an open file cannot be removed; then close removes it
		}
		s.direct = err != nil
	}
	n := 0
	if !s.direct {
		var err error
		if n, err = s.file.Write(p); err == nil {
			return n, nil
		}
		// What is in the file goes first.
		s.direct = true
		if err := s.copy(os.Stdout); err != nil {
			return n, err
		}
	}
	m, err := os.Stdout.Write(p[n:])
	return n + m, err
}

// copy writes to w all that is in the file.
func (s *spool) copy(w io.Writer) error {
	if s.file == nil {
		return nil
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, s.file)
	return err
}

// print is copy to standard output, unless that has been done.
func (s *spool) print() error {
	if s.direct {
		return nil
	}
	return s.copy(os.Stdout)
}

func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
		os.Remove(s.file.Name())
	}
}

// A size is a number of bytes as a flag: 500M, 2GiB, or plain bytes. K, M, G and
// T are powers of 1024.
type size int64

func (s *size) String() string {
	n, unit := int64(*s), 0
	for n != 0 && n%1024 == 0 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return strconv.FormatInt(n, 10) + []string{"", "KiB", "MiB", "GiB", "TiB"}[unit]
}

func (s *size) Type() string { return "SIZE" }

func (s *size) Set(text string) error {
	number := strings.TrimRight(text, "KMGTiB")
	shift := map[string]uint{
		"": 0, "B": 0, "K": 10, "KB": 10, "KiB": 10, "M": 20, "MB": 20, "MiB": 20,
		"G": 30, "GB": 30, "GiB": 30, "T": 40, "TB": 40, "TiB": 40,
	}
	by, known := shift[text[len(number):]]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || !known || n <= 0 || n > 1<<(62-by) {
		return errors.New(cli.Quote(text) + " is no size: write 500M, 2GiB, or plain bytes")
	}
	*s = size(n << by)
	return nil
}

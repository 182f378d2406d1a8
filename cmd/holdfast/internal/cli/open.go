package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/open"
)

// Kinds are the stores whose clients are in this program, and Others the programs for the rest.
var (
	Kinds  []*driver.Kind
	Others []Program
)

// Stores lists the forms of a store's URL, for help and messages.
func Stores() string {
	s := open.Forms(Kinds...)
	for _, p := range Others {
		s += ", " + string(p) + "://…"
	}
	return s
}

// A Target is the store that --store, HOLDFAST_STORE or nothing points to.
type Target struct{ *driver.Location }

// ParseStore parses the URL of a store. It does not repeat what it does not understand: that
// could be a password.
func ParseStore(s string) (Target, error) {
	if s == "" {
		path, err := OwnFile()
		if err != nil {
			return Target{}, err
		}
		at := open.Find("sqlite", Kinds...).At(path)
		at.Create = true
		return Target{at}, nil
	}
	scheme, rest, ok := open.Scheme(s)
	if !ok {
		return Target{}, Usage("a store is written SCHEME:…: one of %s", Stores())
	}
	for _, p := range Others {
		if string(p) == scheme {
			return Target{}, p.become()
		}
	}
	k := open.Find(scheme, Kinds...)
	if k == nil {
		return Target{}, Usage("unknown store %s: one of %s", Quote(scheme), Stores())
	}
	at, err := k.Parse(scheme, rest)
	return Target{at}, AsUsage(err)
}

// AsUsage turns an error about a URL into a usage error of the command.
func AsUsage(err error) error {
	var bad *driver.URLError
	if errors.As(err, &bad) {
		return Usage("%s", bad.Text)
	}
	return err
}

// OwnFile is where the locks are if no store is given.
func OwnFile() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", Usage("no --store, and no home directory for a file of your own: %v", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "holdfast", "holdfast.db"), nil
}

// Open opens the store.
func (t Target) Open(ctx context.Context) (Handle, error) {
	s, close, err := t.Kind.Open(ctx, t.Location)
	return Handle{s, close}, AsUsage(err)
}

// Cause is what a store's error adds for a reader who knows its URL.
func (t Target) Cause(err error) string { return WithHints(t.Redact(t.Kind.Cause(err))) }

// A Handle is an open store and the function that closes it. It does not embed the store, which
// may have more methods than a driver.Store: a client looks for them.
type Handle struct {
	Store driver.Store
	close func() error
}

func (h Handle) Close() error { return h.close() }

// OwnerVariable is the environment variable for --owner, in all verbs.
const OwnerVariable = "HOLDFAST_OWNER"

// A Session is a client on an open store, for one command.
type Session struct {
	Target
	Handle
	*holdfast.Client
}

// Look is Open for a verb that only looks: it needs only the right to read, and creates nothing.
func (a *App) Look(ctx context.Context) (*Session, error) {
	debug.SetGCPercent(400) // a list of 10,000 locks is 30 MB of garbage, in a process that ends at once
	return a.Open(ctx, &holdfast.Options{ReadOnly: true})
}

// Open is what most verbs begin with.
func (a *App) Open(ctx context.Context, opts *holdfast.Options) (*Session, error) {
	t, err := ParseStore(a.Store)
	if err != nil {
		return nil, err
	}
	t.ReadOnly = opts != nil && opts.ReadOnly
	h, err := t.Open(ctx)
	if err != nil {
		return nil, t.Unusable(err, "")
	}
	var settings holdfast.Options
	if opts != nil {
		settings = *opts
	}
	if settings.Owner.Name == "" {
		settings.Owner.Name = os.Getenv(OwnerVariable)
	}
	settings.Trace = settings.Trace.And(a.Log.Trace(t))
	c, err := holdfast.New(h.Store, &settings)
	if err != nil {
		h.Close()
		return nil, Usage("%s", strings.TrimPrefix(err.Error(), "holdfast: "))
	}
	return &Session{t, h, c}, nil
}

// Close gives everything back and closes the store.
func (s *Session) Close() error { return errors.Join(s.Client.Close(), s.Handle.Close()) }

var _ io.Closer = (*Session)(nil)

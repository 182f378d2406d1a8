package command

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

// kinds are the stores whose clients are in this program, and programs are the others.
var (
	kinds    []*driver.Kind
	programs []Program
)

// stores are the URLs that there are, for help and messages.
func stores() string {
	s := open.Forms(kinds...)
	for _, p := range programs {
		s += ", " + string(p) + "://…"
	}
	return s
}

// A target is the store that --store, HOLDFAST_STORE or nothing points to.
type target struct{ *driver.Location }

// parseStore understands the URL of a store. What it does not understand it does
// not repeat: that could be a password.
func parseStore(s string) (target, error) {
	if s == "" {
		path, err := ownFile()
		if err != nil {
			return target{}, err
		}
		at := open.Find("sqlite", kinds...).At(path)
		at.Create = true
		return target{at}, nil
	}
	scheme, rest, ok := open.Scheme(s)
	if !ok {
		return target{}, usage("a store is written SCHEME:…: one of %s", stores())
	}
	for _, p := range programs {
		if string(p) == scheme {
			return target{}, p.become()
		}
	}
	k := open.Find(scheme, kinds...)
	if k == nil {
		return target{}, usage("unknown store %s: one of %s", quote(scheme), stores())
	}
	at, err := k.Parse(scheme, rest)
	return target{at}, asUsage(err)
}

// asUsage makes an error of a URL one of the command's usage.
func asUsage(err error) error {
	var bad *driver.URLError
	if errors.As(err, &bad) {
		return usage("%s", bad.Text)
	}
	return err
}

// ownFile is where the locks are if nobody says otherwise.
func ownFile() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", usage("no --store, and no home directory for a file of your own: %v", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "holdfast", "holdfast.db"), nil
}

// open opens the store.
func (t target) open(ctx context.Context) (handle, error) {
	s, close, err := t.Kind.Open(ctx, t.Location)
	return handle{s, close}, asUsage(err)
}

// cause is what is new in a store's error to one who knows its URL.
func (t target) cause(err error) string { return withHints(t.Redact(t.Kind.Cause(err))) }

// A handle is an open store and what closes it. It does not embed the store: that
// may have more methods than a driver.Store, and a client looks for them.
type handle struct {
	store driver.Store
	close func() error
}

func (h handle) Close() error { return h.close() }

// A session is a client on an open store, for one command.
type session struct {
	target
	handle
	*holdfast.Client
}

// look is open for a verb that only looks: it needs the right to read, and makes nothing.
func (a *app) look(ctx context.Context) (*session, error) {
	debug.SetGCPercent(400) // a list of 10,000 locks is 30 MB of garbage, in a process that ends at once
	return a.open(ctx, &holdfast.Options{ReadOnly: true})
}

// open is what most verbs begin with.
func (a *app) open(ctx context.Context, opts *holdfast.Options) (*session, error) {
	t, err := parseStore(a.store)
	if err != nil {
		return nil, err
	}
	t.ReadOnly = opts != nil && opts.ReadOnly
	h, err := t.open(ctx)
	if err != nil {
		return nil, t.unusable(err, "")
	}
	var settings holdfast.Options
	if opts != nil {
		settings = *opts
	}
	if settings.Owner.Name == "" {
		settings.Owner.Name = os.Getenv(ownerVariable)
	}
	settings.Trace = settings.Trace.And(a.log.trace(t))
	c, err := holdfast.New(h.store, &settings)
	if err != nil {
		h.Close()
		return nil, usage("%s", strings.TrimPrefix(err.Error(), "holdfast: "))
	}
	return &session{t, h, c}, nil
}

// Close gives everything back and closes the store.
func (s *session) Close() error { return errors.Join(s.Client.Close(), s.handle.Close()) }

var _ io.Closer = (*session)(nil)

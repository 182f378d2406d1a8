package main

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// A target is the store that --store, HOLDFAST_STORE or nothing points to.
type target struct {
	scheme string
	rest   string   // what follows the scheme, without settings
	allow  []string // dangers accepted: ?allow=NAME
	own    bool     // the file that is there without any setting
}

const stores = "sqlite:PATH, memory:"

// parseStore understands the URL of a store.
func parseStore(s string) (target, error) {
	if s == "" {
		path, err := ownFile()
		return target{scheme: "sqlite", rest: path, own: true}, err
	}
	scheme, rest, found := strings.Cut(s, ":")
	if !found {
		return target{}, usage("a store is written SCHEME:…, not %q: one of %s", redactURL(s), stores)
	}
	t := target{scheme: scheme}
	t.rest, rest, _ = strings.Cut(rest, "?")
	query, err := url.ParseQuery(rest)
	if err != nil {
		return target{}, usage("the settings after ? in --store cannot be read; write: %s:…?allow=NAME", scheme)
	}
	for _, value := range query["allow"] {
		t.allow = append(t.allow, strings.Split(value, ",")...)
	}
	if scheme == "sqlite" || scheme == "memory" {
		for key := range query {
			if key != "allow" {
				return target{}, usage("%s: unknown setting %q in --store: allow is the only one", scheme, key)
			}
		}
	}
	switch scheme {
	case "sqlite":
		t.rest = strings.TrimPrefix(t.rest, "//") // sqlite:///var/lib/locks.db
		if t.rest == "" {
			return target{}, usage("sqlite: needs a path: sqlite:/var/lib/locks.db")
		}
	case "memory":
	default:
		return target{}, usage("unknown store %q: one of %s", scheme, stores)
	}
	return t, nil
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

// A handle is an open store and what closes it. It does not embed the store: that
// may have more methods than a holdfast.Store, and a client looks for them.
type handle struct {
	store holdfast.Store
	close func() error
}

func (h handle) Close() error { return h.close() }

// open opens the store. Only the file of one's own is created unasked.
func (t target) open(ctx context.Context) (handle, error) {
	switch t.scheme {
	case "sqlite":
		if t.own {
			if err := os.MkdirAll(filepath.Dir(t.rest), 0o700); err != nil {
				return handle{}, err
			}
		}
		s, err := sqlite.Open(ctx, t.rest, &sqlite.Options{Create: t.own, Allow: t.allow})
		if err != nil {
			return handle{}, err
		}
		return handle{s, s.Close}, nil
	case "memory":
		return handle{memory.New(), func() error { return nil }}, nil
	}
	return handle{}, errors.New("unknown store")
}

// String is the store's URL as it may be shown.
func (t target) String() string {
	s := redactURL(t.scheme + ":" + t.rest)
	if len(t.allow) > 0 {
		s += "?allow=" + strings.Join(t.allow, ",")
	}
	return escape(s)
}

// redact takes this store's password out of a driver's message.
func (t target) redact(text string) string {
	if _, after, ok := strings.Cut(t.rest, "//"); ok {
		if user, _, ok := cutLast(after, "@"); ok {
			if _, secret, ok := strings.Cut(user, ":"); ok && secret != "" {
				text = strings.ReplaceAll(text, secret, "***")
				if plain, err := url.QueryUnescape(secret); err == nil {
					text = strings.ReplaceAll(text, plain, "***")
				}
			}
		}
	}
	return escape(redactURL(text))
}

var (
	passwords = regexp.MustCompile(`(://[^:@/\s]*):\S*@`)
	settings  = regexp.MustCompile(`((?i:password|passwd|secret|token)=)[^&\s]*`)
)

// redactURL takes passwords out of all URLs in a text.
func redactURL(text string) string {
	return settings.ReplaceAllString(passwords.ReplaceAllString(text, "$1@"), "$1…")
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// A session is a client on an open store, for one command.
type session struct {
	target
	handle
	*holdfast.Client
}

// open is what most verbs begin with.
func (a *app) open(ctx context.Context, opts *holdfast.Options) (*session, error) {
	t, err := parseStore(a.store)
	if err != nil {
		return nil, err
	}
	h, err := t.open(ctx)
	if err != nil {
		return nil, t.unusable(err, "")
	}
	c, err := holdfast.New(h.store, opts)
	if err != nil {
		h.Close()
		return nil, usage("%s", strings.TrimPrefix(err.Error(), "holdfast: "))
	}
	return &session{t, h, c}, nil
}

// Close gives everything back and closes the store.
func (s *session) Close() error { return errors.Join(s.Client.Close(), s.handle.Close()) }

var _ io.Closer = (*session)(nil)

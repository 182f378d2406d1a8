package command

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A kind of store, and what the command does with one.
type kind struct {
	example   string
	server    bool     // it has a URL; what is not ours in its query is the driver's
	needsPath bool     // of a file or directory
	settings  []string // what of the query is ours
	program   string   // that has its client, if not this one

	open func(context.Context, target) (handle, error)

	// Of a store that has tables.
	schemaText func(target) (string, error)
	migrate    func(context.Context, target) error
	verify     func(context.Context, target) error
}

const stores = "sqlite:PATH, dir:PATH, postgres://…, mysql://…, cassandra://…, etcd://…, spanner://…, memory:"

var kinds = map[string]*kind{
	"sqlite":     &sqliteKind,
	"dir":        &directoryKind,
	"postgres":   &postgresKind,
	"postgresql": &postgresKind,
	"mysql":      &mysqlKind,
	"cassandra":  &cassandraKind,
	"etcd":       &etcdKind,
	"spanner":    &spannerKind,
	"memory": {example: "memory:", settings: []string{"allow"}, open: func(context.Context, target) (handle, error) {
		return handle{memory.New(), func() error { return nil }}, nil
	}},
}

// A target is the store that --store, HOLDFAST_STORE or nothing points to.
type target struct {
	*kind
	scheme         string
	path           string  // of a file
	address        address // of a server
	allow          []string
	schema, prefix string   // of the tables
	socket         string   // of a server, in place of a host
	own            bool     // the file that is there without any setting
	shown          []string // of the settings, what may be shown
	secrets        []string // what may not
}

var schemeForm = lazily(`^[a-z][a-z0-9+.-]*$`)

// parseStore understands the URL of a store. What it does not understand it does
// not repeat: that could be a password.
func parseStore(s string) (target, error) {
	if s == "" {
		path, err := ownFile()
		return target{kind: &sqliteKind, scheme: "sqlite", path: path, own: true}, err
	}
	scheme, rest, found := strings.Cut(s, ":")
	if !found || !schemeForm().MatchString(scheme) {
		return target{}, usage("a store is written SCHEME:…: one of %s", stores)
	}
	t := target{kind: kinds[scheme], scheme: scheme}
	if t.kind == nil {
		return target{}, usage("unknown store %q: one of %s", scheme, stores)
	}
	if _, ok := linked[scheme]; t.program != "" && !ok {
		return target{}, become(t.program, scheme)
	}
	if t.server {
		return t, t.parseServer(rest)
	}
	path, query, _ := strings.Cut(rest, "?")
	t.path = strings.TrimPrefix(path, "//") // sqlite:///var/lib/locks.db
	others, err := t.takeSettings(query)
	switch {
	case err != nil:
		return target{}, err
	case others != "":
		key, _, _ := strings.Cut(others, "=")
		return target{}, usage("%s: unknown setting %s in --store: allow is the only one", scheme, quote(key))
	case t.needsPath && t.path == "":
		return target{}, usage("%s: needs a path: %s", scheme, t.example)
	}
	return t, nil
}

// takeSettings takes ours out of a query; what is left is the driver's.
func (t *target) takeSettings(query string) (others string, err error) {
	var left []string
	for pair := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		raw := value
		for _, part := range []*string{&key, &value} {
			if *part, err = url.QueryUnescape(*part); err != nil {
				return "", usage("%s: what follows ? in --store cannot be read: write %%25 for a %%", t.scheme)
			}
		}
		ours := slices.Contains(t.settings, key)
		switch {
		case pair == "":
			continue
		case ours && key == "allow":
			t.allow = append(t.allow, strings.Split(value, ",")...)
		case ours && key == "schema":
			t.schema = value
		case ours && key == "prefix":
			t.prefix = value
		case ours && key == "socket":
			t.socket = value
		default:
			left = append(left, pair)
		}
		switch {
		case secretKey().MatchString(key):
			t.secrets = append(t.secrets, value, raw)
		case ours || slices.Contains(whereKeys, key):
			t.shown = append(t.shown, pair)
		}
	}
	return strings.Join(left, "&"), nil
}

// whereKeys are those of the drivers' settings that say which database it is.
var whereKeys = []string{"host", "port", "dbname", "user", "service", "socket", "dc"}

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

// String is the store's URL as it may be shown.
func (t target) String() string {
	s := t.scheme + ":" + t.path
	if t.server {
		s = t.scheme + "://" + t.address.shown()
	}
	if len(t.shown) > 0 {
		s += "?" + strings.Join(t.shown, "&")
	}
	return escape(s)
}

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

// open is what most verbs begin with.
func (a *app) open(ctx context.Context, opts *holdfast.Options) (*session, error) {
	t, err := parseStore(a.store)
	if err != nil {
		return nil, err
	}
	h, err := t.open(ctx, t)
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

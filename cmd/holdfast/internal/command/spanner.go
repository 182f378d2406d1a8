package command

import (
	"context"
	"net/url"
	"strings"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/engine"
	"github.com/holdfast-lock/holdfast/driver"
)

var spannerKind = kind{
	example:  "spanner://projects/p/instances/i/databases/shop",
	server:   true,
	settings: []string{"prefix"},
	program:  "holdfast-spanner",
	open: func(ctx context.Context, t target) (h handle, err error) {
		err = t.onSpanner(ctx, func(ctx context.Context, at engine.Place) error {
			var s driver.Store
			var close func() error
			s, close, err = linked["spanner"].Open(ctx, at)
			h = handle{s, parting(close)}
			return err
		})
		return h, err
	},
	schemaText: func(t target) (string, error) {
		at, err := t.spannerDatabase()
		if err != nil {
			return "", err
		}
		return linked["spanner"].Schema(at)
	},
	migrate: func(ctx context.Context, t target) error { return t.onSpanner(ctx, linked["spanner"].Migrate) },
	verify:  func(ctx context.Context, t target) error { return t.onSpanner(ctx, linked["spanner"].Verify) },
}

// onSpanner does something in a database, in limited time. Changing a schema may take
// minutes.
func (t target) onSpanner(ctx context.Context, do func(context.Context, engine.Place) error) error {
	at, err := t.spannerDatabase()
	if err != nil {
		return err
	}
	return do(ctx, at)
}

var databaseForm = lazily(`^projects/[^/]+/instances/[^/]+/databases/[^/]+$`)

// spannerDatabase is the URL. Who we are is as for all that uses Google's clients:
// GOOGLE_APPLICATION_CREDENTIALS, or what the machine or gcloud has.
func (t target) spannerDatabase() (at engine.Place, err error) {
	a := t.address
	if a.named {
		return at, usage("spanner: the URL has no user: GOOGLE_APPLICATION_CREDENTIALS names a file, or: gcloud auth application-default login")
	}
	if at.Database, _ = url.PathUnescape(a.host + strings.TrimSuffix(a.path, "/")); !databaseForm().MatchString(at.Database) {
		return at, usage("spanner: a database is written as in %s", t.example)
	}
	if a.query != "" {
		key, _, _ := strings.Cut(a.query, "=")
		return at, usage("spanner: unknown setting %s in --store: prefix is the only one", quote(key))
	}
	at.Prefix = t.prefix
	return at, nil
}

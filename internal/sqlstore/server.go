package sqlstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/reach"
)

// A Server is a kind of database on a server, which is reached by pools P of connections C: how
// it is opened by a URL, and how its schema is made, printed and compared.
type Server[P, C any] struct {
	Name    string // of the package
	Version int64  // of the schema

	Options func(*driver.Location) func() (Tables, error)
	Pool    func(context.Context, *driver.Location) (pool P, limit time.Duration, err error)
	Ready   func(context.Context, P) error // may be nil: asks for a sign of life, within limit
	Leave   func(P) error
	New     func(context.Context, P, *driver.Location) (Closer, error)

	Quote string                                                         // around a name
	Fence string                                                         // see driver.Kind.FenceSQL
	Texts func() map[string]string                                       // see Grants
	Role  func(at *driver.Location, role string) (schema, quoted string) // may be nil: the schema that role gets rights in, and role quoted

	Script func(Tables) string // of the schema
	Use    func(context.Context, P, Tables, func(C) error) error
	Lock   func(context.Context, C, Tables) error                      // may be nil: keeps other Migrates waiting, as well as it can
	Verify func(context.Context, C, Tables) (version int64, err error) // -1: it could not look
	Run    func(ctx context.Context, c C, script string) error
}

// A Closer is a store that can be closed.
type Closer interface {
	driver.Store
	Close() error
}

// Schema is the package's function of that name; tables are those of its options.
func (s *Server[P, C]) Schema(tables func() (Tables, error)) (string, error) {
	t, err := tables()
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.Name, err)
	}
	return s.Script(t), nil
}

// Migrate is the package's function of that name. Where all is as it should be it changes nothing.
func (s *Server[P, C]) Migrate(ctx context.Context, pool P, tables func() (Tables, error)) error {
	t, err := tables()
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	err = s.Use(ctx, pool, t, func(c C) error {
		if s.Lock != nil {
			if err := s.Lock(ctx, c, t); err != nil {
				return err
			}
		}
		switch version, err := s.Verify(ctx, c, t); {
		case err == nil:
			return nil
		case version < 0 || version > s.Version:
			return err
		}
		return s.Run(ctx, c, s.Script(t))
	})
	if err != nil {
		return fmt.Errorf("%s: create the schema of %q: %w", s.Name, t, err)
	}
	return nil
}

// Compare is the package's function Verify.
func (s *Server[P, C]) Compare(ctx context.Context, pool P, tables func() (Tables, error)) error {
	t, err := tables()
	if err == nil {
		err = s.Use(ctx, pool, t, func(c C) error {
			_, err := s.Verify(ctx, c, t)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// Kind completes a Kind.
func (s *Server[P, C]) Kind(k *driver.Kind) *driver.Kind {
	k.Name, k.Server = s.Name, true
	k.Open = func(ctx context.Context, at *driver.Location) (driver.Store, func() error, error) {
		pool, limit, err := s.Pool(ctx, at)
		if err != nil {
			return nil, nil, err
		}
		var store Closer
		err = reach.InTime(ctx, limit, func(ctx context.Context) error {
			store, err = s.New(ctx, pool, at)
			return err
		})
		if err != nil {
			s.Leave(pool)
			return nil, nil, err
		}
		return store, reach.Parting(store.Close, func() error { return s.Leave(pool) }), nil
	}
	with := func(do func(context.Context, P, func() (Tables, error)) error) func(context.Context, *driver.Location) error {
		return func(ctx context.Context, at *driver.Location) error {
			pool, limit, err := s.Pool(ctx, at)
			if err != nil {
				return err
			}
			defer s.Leave(pool)
			if s.Ready != nil {
				if err := reach.InTime(ctx, limit, func(ctx context.Context) error { return s.Ready(ctx, pool) }); err != nil {
					return err
				}
			}
			return do(ctx, pool, s.Options(at))
		}
	}
	k.Grants = func(at *driver.Location, role string, readOnly bool) ([]string, error) {
		t, err := s.Options(at)()
		if err != nil {
			return nil, err
		}
		quoted := Quote(role, s.Quote)
		if s.Role != nil {
			t.Schema, quoted = s.Role(at, role)
		}
		return Grants(t, s.Quote, s.Texts(), quoted, readOnly)
	}
	k.FenceSQL = func(at *driver.Location) string {
		t, err := s.Options(at)()
		if err != nil {
			return ""
		}
		quote := s.Quote
		if names := t.Schema + t.Prefix; names == strings.ToLower(names) {
			quote = ""
		}
		return t.Expand(s.Fence, quote)
	}
	k.Schema = func(at *driver.Location) (string, error) { return s.Schema(s.Options(at)) }
	k.Migrate, k.Verify = with(s.Migrate), with(s.Compare)
	return k
}

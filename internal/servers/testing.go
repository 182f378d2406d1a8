package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	sharedPostgres = sync.OnceValues(func() (*Server, error) { return StartPostgres(context.Background(), nil) })
	sharedMySQL    = sync.OnceValues(func() (*Server, error) { return StartMySQL(context.Background(), nil) })
	sharedRedis    = sync.OnceValues(func() (*Server, error) { return StartRedis(context.Background(), nil) })
	sharedEtcd     = sync.OnceValues(func() (*Server, error) { return StartEtcd(context.Background(), nil) })
)

// Postgres is a PostgreSQL for a test: with opts nil one for all tests of the
// process, else one of its own that ends with the test. If
// HOLDFAST_TEST_POSTGRES is the URL of one, always that. The test is skipped if
// PostgreSQL is not installed.
func Postgres(t testing.TB, opts *Options) *Server {
	t.Helper()
	return forTest(t, "HOLDFAST_TEST_POSTGRES", sharedPostgres, StartPostgres, opts)
}

// MySQL is a MariaDB or MySQL for a test, as Postgres is, by HOLDFAST_TEST_MYSQL.
func MySQL(t testing.TB, opts *Options) *Server {
	t.Helper()
	return forTest(t, "HOLDFAST_TEST_MYSQL", sharedMySQL, StartMySQL, opts)
}

// PgBouncer is a PgBouncer before pg that ends with the test.
func PgBouncer(t testing.TB, pg *Server) *Server {
	t.Helper()
	start := func(ctx context.Context, opts *Options) (*Server, error) { return StartPgBouncer(ctx, pg, opts) }
	return forTest(t, "", nil, start, &Options{})
}

// Redis is a Redis for a test, as Postgres is, only never one that was pointed at.
func Redis(t testing.TB, opts *Options) *Server {
	t.Helper()
	return forTest(t, "", sharedRedis, StartRedis, opts)
}

// Etcd is an etcd for a test, as Redis is.
func Etcd(t testing.TB, opts *Options) *Server {
	t.Helper()
	return forTest(t, "", sharedEtcd, StartEtcd, opts)
}

type starter func(context.Context, *Options) (*Server, error)

func forTest(t testing.TB, env string, shared func() (*Server, error), start starter, opts *Options) *Server {
	t.Helper()
	if target := os.Getenv(env); env != "" && target != "" {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatalf("%s: %v", env, err)
		}
		name, err := nameOf(t.Context(), target)
		if err != nil {
			t.Fatalf("%s: %v", env, err)
		}
		port, _ := strconv.Atoi(u.Port())
		return &Server{Name: name, URL: target, Port: port}
	}
	var s *Server
	var err error
	if opts == nil {
		s, err = shared()
	} else {
		s, err = start(t.Context(), opts)
	}
	switch {
	case errors.Is(err, ErrMissing) && env != "":
		t.Skipf("%v, or set %s to the URL of one", err, env)
	case errors.Is(err, ErrMissing):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	case opts != nil:
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s said:\n%s", s.Name, s.Log())
			}
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	return s
}

// Database makes an empty database on the server and returns its URL. It is
// dropped when the test ends, whoever is connected.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	home, force := s.URL, ""
	if s.behind != nil {
		home = s.behind.URL
	}
	if strings.HasPrefix(home, "postgres") {
		force = " WITH (FORCE)"
	}
	name := "hf_" + strings.ToLower(rand.Text()[:12])
	if _, err := query(t.Context(), home, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := query(ctx, home, "DROP DATABASE IF EXISTS "+name+force); err != nil && !s.Own {
			t.Logf("%s is left behind: %v", name, err)
		}
	})
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// WithHostPort is the same URL by way of addr, a host and a port.
func WithHostPort(target, addr string) string {
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	u.Host = addr
	return u.String()
}

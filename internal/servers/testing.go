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

// Postgres is a PostgreSQL for a test. If opts is nil, all tests of the process
// share one; else the test has one of its own, which ends with the test. If
// HOLDFAST_TEST_POSTGRES is the URL of a PostgreSQL, it is always that. The test is
// skipped if PostgreSQL is not installed.
func Postgres(t testing.TB, opts *Options) *Server {
	t.Helper()
	return forTest(t, "HOLDFAST_TEST_POSTGRES", sharedPostgres, StartPostgres, opts)
}

// MySQL is a MariaDB or MySQL for a test, like Postgres, but with HOLDFAST_TEST_MYSQL.
func MySQL(t testing.TB, opts *Options) *Server {
	t.Helper()
	return forTest(t, "HOLDFAST_TEST_MYSQL", sharedMySQL, StartMySQL, opts)
}

// PgBouncer is a PgBouncer in front of pg that ends with the test.
func PgBouncer(t testing.TB, pg *Server) *Server {
	t.Helper()
	start := func(ctx context.Context, opts *Options) (*Server, error) { return StartPgBouncer(ctx, pg, opts) }
	return forTest(t, "", nil, start, &Options{})
}

// Redis is a Redis for a test, like Postgres, but never one that was pointed at.
func Redis(t testing.TB, opts *Options) *Server {
	t.Helper()
	return forTest(t, "", sharedRedis, StartRedis, opts)
}

// Etcd is an etcd for a test, like Redis.
func Etcd(t testing.TB, opts *Options) *Server {
	t.Helper()
	return forTest(t, "", sharedEtcd, StartEtcd, opts)
}

// A Kind is a kind of store that has a server.
type Kind struct {
	Name     string                             // of its package, and the scheme of its URLs
	Shared   func(testing.TB) Home              // for all tests of a process; skips the test if it is not installed
	Server   func(testing.TB, *Options) *Server // is like Postgres; nil: it needs a cluster
	SQL      bool                               // Server is asked with SQL
	Emulator string                             // of an emulator, which runs one transaction at a time: the variable with its address
}

// Kinds are all of them.
var Kinds = []Kind{
	{Name: "postgres", Shared: shared(Postgres), Server: Postgres, SQL: true},
	{Name: "mysql", Shared: shared(MySQL), Server: MySQL, SQL: true},
	{Name: "cassandra", Shared: shared(Cassandra)},
	{Name: "etcd", Shared: shared(EtcdThree)},
	{Name: "spanner", Shared: shared(Spanner), Server: Spanner, Emulator: emulatorHost},
}

// KindOf is the kind of a store by its name or URL; a zero Kind if it has no server.
func KindOf(store string) Kind {
	name, _, _ := strings.Cut(store, ":")
	for _, k := range Kinds {
		if k.Name == name {
			return k
		}
	}
	return Kind{}
}

// A Home has databases, and returns the URL of an empty one.
type Home interface{ Database(testing.TB) string }

func shared[O any, H Home](start func(testing.TB, *O) H) func(testing.TB) Home {
	return func(t testing.TB) Home { return start(t, nil) }
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

// Database returns the URL of an empty database on the server. When the test
// ends, whoever is still connected loses the database, and it is emptied for
// another test, or dropped; in an emulator it stays.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	if s.database != nil {
		return s.database(t)
	}
	home := s
	if s.behind != nil {
		home = s.behind
	}
	name, err := home.spare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if !t.Failed() && home.empty(ctx, name) == nil {
			return
		}
		force := ""
		if strings.HasPrefix(home.URL, "postgres") {
			force = " WITH (FORCE)"
		}
		if _, err := query(ctx, home.URL, "DROP DATABASE IF EXISTS "+name+force); err != nil && !s.Own {
			t.Logf("%s is left behind: %v", name, err)
		}
	})
	return inDatabase(s.URL, name)
}

// spare is the name of an empty database, made if there is none.
func (s *Server) spare(ctx context.Context) (string, error) {
	s.mu.Lock()
	n := len(s.spares)
	if n > 0 {
		name := s.spares[n-1]
		s.spares = s.spares[:n-1]
		s.mu.Unlock()
		return name, nil
	}
	s.mu.Unlock()
	name := "hf_" + strings.ToLower(rand.Text()[:12])
	_, err := query(ctx, s.URL, "CREATE DATABASE "+name)
	return name, err
}

// empty makes a database as good as new, on a PostgreSQL of our own: to create and
// drop one makes it write some hundreds of files, and wait for the disk.
func (s *Server) empty(ctx context.Context, name string) error {
	if !s.Own || !strings.HasPrefix(s.URL, "postgres") {
		return errors.ErrUnsupported
	}
	if _, err := query(ctx, s.URL, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '`+name+`'`); err != nil {
		return err
	}
	if _, err := query(ctx, inDatabase(s.URL, name), `SET lock_timeout = '2s';
		DO $$ DECLARE r record; BEGIN
			FOR r IN SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname NOT IN ('information_schema', 'public') LOOP
				EXECUTE format('DROP SCHEMA %I CASCADE', r.nspname);
			END LOOP;
			DROP SCHEMA public CASCADE;
			CREATE SCHEMA public;
			IF current_setting('server_version_num')::int >= 150000 THEN
				ALTER SCHEMA public OWNER TO pg_database_owner;
				GRANT USAGE ON SCHEMA public TO PUBLIC;
			ELSE
				GRANT ALL ON SCHEMA public TO PUBLIC;
			END IF;
			EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
		END $$`); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spares = append(s.spares, name)
	return nil
}

func inDatabase(target, name string) string {
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	u.Path = "/" + name
	return u.String()
}

// WithHostPort is the same URL with addr for its host and port.
func WithHostPort(target, addr string) string {
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	u.Host = addr
	return u.String()
}

package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// find looks for a program on PATH and where servers are; "": there is none.
func find(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Base(real) == name {
			return real
		}
		return path
	}
	for _, dir := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/sbin", "/usr/libexec", "/usr/local/sbin"} {
		if found, _ := filepath.Glob(filepath.Join(dir, name)); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	return ""
}

// beside finds a program in the directory of another one, or anywhere.
func beside(path, name string) string {
	if p := filepath.Join(filepath.Dir(path), name); path != "" {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return find(name)
}

// run runs a program to its end, as the server, and returns what it printed.
func (s *Server) run(ctx context.Context, argv ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.Dir, s.env, &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := start(cmd, s.as)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", argv[0], err, &stdout, &stderr)
	}
	return strings.TrimSpace(stdout.String()), err
}

// query runs SQL with the client program of the server's package.
func query(ctx context.Context, target, sql string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	var argv []string
	env := os.Environ()
	if u.Scheme == "mysql" {
		client := find("mariadb")
		if client == "" {
			client = find("mysql")
		}
		password, _ := u.User.Password()
		env = append(env, "MYSQL_PWD="+password)
		argv = []string{client, "--no-defaults", "--protocol=tcp", "--host=" + u.Hostname(), "--port=" + u.Port(),
			"--user=" + u.User.Username(), "--batch", "--skip-column-names", "--execute=" + sql}
		if db := strings.TrimPrefix(u.Path, "/"); db != "" {
			argv = append(argv, "--database="+db)
		}
	} else {
		argv = []string{beside(find("postgres"), "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", target, "-c", sql}
	}
	if argv[0] == "" {
		return "", missing("a client for "+u.Scheme, "postgresql-client mariadb-client")
	}
	return (&Server{Dir: "/", env: env}).run(ctx, argv...)
}

// StartPostgres starts a PostgreSQL with the user holdfast, who may do anything.
func StartPostgres(ctx context.Context, opts *Options) (*Server, error) {
	postgres := find("postgres")
	initdb := beside(postgres, "initdb")
	if !supported || postgres == "" || initdb == "" {
		return nil, missing("PostgreSQL", "postgresql-15")
	}
	as, err := accountOf("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL refuses root: %w", err)
	}
	s, fresh, err := prepare("postgres", opts, as)
	if err != nil {
		return nil, err
	}
	if fresh {
		err = s.setUp(ctx, initdb, "-D", s.data(), "-U", "holdfast", "--auth=trust", "--no-sync", "-E", "UTF8", "--no-locale")
		if err != nil {
			return nil, err
		}
	}
	s.argv = []string{postgres, "-D", s.data()}
	for _, line := range settings(opts, fmt.Sprintf("port=%d", s.Port), "listen_addresses=127.0.0.1",
		"unix_socket_directories="+s.Dir, "max_connections=600", "fsync=on", "synchronous_commit=on", "full_page_writes=on",
		"dynamic_shared_memory_type=mmap" /* in its directory, and gone with it */) {
		s.argv = append(s.argv, "-c", line)
	}
	s.quit = os.Interrupt
	s.URL = "postgres://holdfast@" + s.addr() + "/postgres?sslmode=disable"
	s.ask = func(ctx context.Context) (string, error) { return nameOf(ctx, s.URL) }
	return s.open(ctx)
}

func settings(opts *Options, lines ...string) []string {
	if opts != nil {
		lines = append(lines, opts.Settings...)
	}
	return lines
}

// nameOf asks a server that speaks SQL for its name.
func nameOf(ctx context.Context, target string) (string, error) {
	if strings.HasPrefix(target, "mysql:") {
		version, err := query(ctx, target, "SELECT version()")
		if v, _, mariadb := strings.Cut(version, "-MariaDB"); mariadb {
			return "MariaDB " + v, err
		}
		return "MySQL " + version, err
	}
	version, err := query(ctx, target, "SHOW server_version")
	version, _, _ = strings.Cut(version, " ")
	return "PostgreSQL " + version, err
}

// StartMySQL starts a MariaDB, or a MySQL if only that is installed, with the
// user root, who needs no password.
func StartMySQL(ctx context.Context, opts *Options) (*Server, error) {
	mysqld, install := find("mariadbd"), find("mariadb-install-db")
	if mysqld == "" || install == "" {
		mysqld, install = find("mysqld"), ""
	}
	if !supported || mysqld == "" {
		return nil, missing("MariaDB or MySQL", "mariadb-server")
	}
	s, fresh, err := prepare("mysql", opts, nil)
	if err != nil {
		return nil, err
	}
	as := []string{"--user=" + os.Getenv("USER")}
	if os.Geteuid() == 0 {
		as[0] = "--user=root"
	}
	if fresh && install != "" {
		err = s.setUp(ctx, install, "--no-defaults", as[0], "--datadir="+s.data(), "--auth-root-authentication-method=normal",
			"--skip-test-db", "--skip-name-resolve", "--innodb-log-file-size=48M", "--tmpdir="+s.Dir)
	} else if fresh {
		err = s.setUp(ctx, mysqld, "--no-defaults", as[0], "--datadir="+s.data(), "--initialize-insecure")
	}
	if err != nil {
		return nil, err
	}
	first := "CREATE USER IF NOT EXISTS root@'127.0.0.1';\n" +
		"GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n" +
		"CREATE DATABASE IF NOT EXISTS test;\n"
	if err := os.WriteFile(s.file("first.sql"), []byte(first), 0o644); err != nil {
		return nil, errors.Join(err, s.clear())
	}
	s.argv = []string{mysqld, "--no-defaults", as[0], "--datadir=" + s.data(), "--init-file=" + s.file("first.sql")}
	for _, line := range settings(opts, fmt.Sprintf("port=%d", s.Port), "bind-address=127.0.0.1", "socket="+s.file("socket"),
		"pid-file="+s.file("pid"), "max-connections=600", "innodb-flush-log-at-trx-commit=1", "skip-log-bin", "tmpdir="+s.Dir,
		"innodb-buffer-pool-size=64M", "loose-innodb-log-file-size=48M", "loose-mysqlx=0", "skip-name-resolve",
		"character-set-server=utf8mb4") {
		s.argv = append(s.argv, "--"+line)
	}
	s.quit = syscall.SIGTERM
	s.URL = "mysql://root@" + s.addr() + "/test"
	s.ask = func(ctx context.Context) (string, error) { return nameOf(ctx, s.URL) }
	return s.open(ctx)
}

// StartPgBouncer starts a PgBouncer in front of pg, in transaction mode. It
// serves every database of pg, to anybody, as the user of pg.URL. A PgBouncer before 1.21 gets no
// requests to cancel a statement, unless the options say so: one may end Debian 12's 1.18 ("server
// in bad state", its issue 822), and pgx sends one for each statement whose context ends.
func StartPgBouncer(ctx context.Context, pg *Server, opts *Options) (*Server, error) {
	bouncer := find("pgbouncer")
	if !supported || bouncer == "" {
		return nil, missing("PgBouncer", "pgbouncer")
	}
	u, err := url.Parse(pg.URL)
	if err != nil {
		return nil, err
	}
	as, err := accountOf("postgres")
	if err != nil {
		return nil, fmt.Errorf("PgBouncer refuses root: %w", err)
	}
	s, _, err := prepare("pgbouncer", opts, as)
	if err != nil {
		return nil, err
	}
	ini := fmt.Sprintf("[databases]\n* = host=%s port=%s user=%s", u.Hostname(), u.Port(), u.User.Username())
	if password, ok := u.User.Password(); ok {
		ini += " password=" + password
	}
	ini += "\n[pgbouncer]\n" + strings.Join(settings(opts, fmt.Sprintf("listen_port=%d", s.Port), "listen_addr=127.0.0.1",
		"unix_socket_dir=", "auth_type=any", "admin_users=holdfast", "pool_mode=transaction", "max_client_conn=600",
		"ignore_startup_parameters=extra_float_digits"), "\n") + "\n"
	if err := os.WriteFile(s.file("pgbouncer.ini"), []byte(ini), 0o644); err != nil {
		return nil, errors.Join(err, s.clear())
	}
	s.behind = pg
	s.argv = []string{bouncer, s.file("pgbouncer.ini")}
	s.quit = syscall.SIGTERM
	s.URL = "postgres://holdfast@" + s.addr() + "/postgres?sslmode=disable"
	s.ask = func(ctx context.Context) (string, error) {
		return query(ctx, "postgres://holdfast@"+s.addr()+"/pgbouncer?sslmode=disable", "SHOW VERSION")
	}
	if s, err = s.open(ctx); err != nil {
		return nil, err
	}
	minor := 0
	if fmt.Sscanf(s.Name, "PgBouncer 1.%d", &minor); minor >= 21 || opts != nil && opts.Cancels {
		return s, nil
	}
	if s.front, err = NewProxy(ctx, s.addr()); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	s.front.RefuseCancels()
	s.URL = "postgres://holdfast@" + s.front.Addr() + "/postgres?sslmode=disable"
	return s, nil
}

// StartRedis starts a Redis that has each write on disk before it answers.
func StartRedis(ctx context.Context, opts *Options) (*Server, error) {
	redis := find("redis-server")
	if !supported || redis == "" {
		return nil, missing("Redis", "redis-server")
	}
	if opts != nil && opts.Faketime {
		return nil, fmt.Errorf("libfaketime does not work with Redis's jemalloc: %w", errors.ErrUnsupported)
	}
	s, _, err := prepare("redis", opts, nil)
	if err != nil {
		return nil, err
	}
	s.argv = []string{redis}
	for _, line := range settings(opts, fmt.Sprintf("port=%d", s.Port), "bind=127.0.0.1", "save=",
		"appendonly=yes", "appendfsync=always") {
		name, value, _ := strings.Cut(line, "=")
		s.argv = append(s.argv, "--"+name, value)
	}
	s.quit = syscall.SIGTERM
	s.URL = "redis://" + s.addr()
	s.ask = s.askRedis
	return s.open(ctx)
}

func (s *Server) askRedis(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", s.addr())
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	fmt.Fprint(c, "PING\r\nINFO server\r\nQUIT\r\n")
	said, err := io.ReadAll(c)
	_, version, found := strings.Cut(string(said), "redis_version:")
	version, _, _ = strings.Cut(version, "\r\n")
	if !found || said[0] != '+' { // it is still loading its data
		return "", fmt.Errorf("got %q from Redis, %w", said, err)
	}
	return "Redis " + version, nil
}

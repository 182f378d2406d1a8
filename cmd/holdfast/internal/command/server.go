package command

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/engine"
	"github.com/holdfast-lock/holdfast/driver"
)

// An address is the URL of a server, taken apart; all as it was written.
type address struct {
	user, password string
	named, secret  bool // there is a user; there is a password
	host           string
	path           string // with its slash
	query          string // without our settings
}

// parseServer takes apart what follows the scheme.
func (t *target) parseServer(rest string) error {
	rest, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return usage("%s: a store on a server is written as in %s", t.scheme, t.example)
	}
	a := &t.address
	// The user ends where the drivers say it does: at the first @ before a slash.
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		a.user, a.password, a.secret = strings.Cut(rest[:i], ":")
		a.named, rest = true, rest[i+1:]
	}
	if strings.Contains(rest, "@") {
		return usage("%s: an @ in --store that is not behind the user: in a password write %%40 for @ and %%2F for /", t.scheme)
	}
	rest, query, _ := strings.Cut(rest, "?")
	a.host = rest
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		a.host, a.path = rest[:i], rest[i:]
	}
	for _, part := range []string{a.user, a.password, a.path} {
		if _, err := url.PathUnescape(part); err != nil {
			return usage("%s: --store cannot be read: in a user, password or database write %%25 for %%", t.scheme)
		}
	}
	t.secrets = append(t.secrets, a.password)
	for _, name := range []string{"PGPASSWORD", "MYSQL_PWD", "CASSANDRA_PASSWORD", "ETCD_PASSWORD"} {
		t.secrets = append(t.secrets, os.Getenv(name))
	}
	var err error
	if a.query, err = t.takeSettings(query); err != nil {
		return err
	}
	if t.schemaText != nil && (t.schema != "" || t.prefix != "") {
		if _, err := t.schemaText(*t); err != nil {
			return usage("%s", t.redact(err.Error()))
		}
	}
	return nil
}

// shown is the address without its password and query.
func (a address) shown() string {
	if a.user != "" {
		return a.user + "@" + a.host + a.path
	}
	return a.host + a.path
}

// sets tells whether the query has a setting.
func (a address) sets(key string) bool {
	settings, _ := url.ParseQuery(a.query)
	return settings.Has(key)
}

const (
	// patience is how long a server may take to let us in, unless the URL says
	// otherwise.
	patience = 10 * time.Second
	// maxConns is how many connections a command needs at most: for locks,
	// heartbeats and wake-ups.
	maxConns = 4
)

// inTime calls f with a context that ends after limit.
func inTime(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &silence{limit, err}
	}
	return err
}

// A silence is a server that was reached, perhaps, but has not answered.
type silence struct {
	limit time.Duration
	err   error
}

func (s *silence) Error() string { return "no answer within " + brief(s.limit) }
func (s *silence) Unwrap() error { return s.err }

// parting closes politely, but does not wait for a server that does not answer:
// the command is about to end, and its connections with it.
func parting(closers ...func() error) func() error {
	return func() error {
		done := make(chan error, 1)
		go func() {
			var errs []error
			for _, c := range closers {
				errs = append(errs, c())
			}
			done <- errors.Join(errs...)
		}()
		select {
		case err := <-done:
			return err
		case <-time.After(200 * time.Millisecond):
			return nil
		}
	}
}

// secretKey is what settings with secrets are called.
var secretKey = lazily(`(?i)pass|pwd|secret|token`)

// lazily compiles an expression when it is needed: few commands need any, and
// each starts twice, for its guard.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// redact takes this store's secrets out of a driver's message. What is shown
// anyway, as a user whose password is the same, is none.
func (t target) redact(text string) string {
	var secrets []string
	for _, s := range t.secrets {
		plain, _ := url.PathUnescape(s)
		secrets = append(secrets, s, plain)
	}
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	for _, s := range secrets {
		if s != "" && !strings.Contains(t.String(), s) {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	return escape(redactURL(oneLine(text)))
}

func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\t' }), " ")
}

var (
	passwords = lazily(`(//[^:@/\s]*):\S*@`)
	settings  = lazily(`(?i)((?:[a-z_]*pass[a-z]*|pwd|secret|token)=)('(?:[^'\\]|\\.)*'|[^&\s]+)`)
	goDSN     = lazily(`([^\s:@/]+):\S*@((?:tcp|unix)\()`)
)

// redactURL takes passwords out of all URLs and connection strings in a text.
func redactURL(text string) string {
	text = passwords().ReplaceAllString(text, "$1@")
	text = goDSN().ReplaceAllString(text, "$1@$2")
	return settings().ReplaceAllString(text, "$1…")
}

// cause is what is new in a driver's error to one who knows the store's URL.
func cause(err error) string {
	var danger *driver.DangerError
	if errors.As(err, &danger) {
		return fmt.Sprintf("%s. %s, or accept it with ?allow=%s", danger.What, danger.Cure, danger.Danger)
	}
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) {
		text := err.Error()
		for _, store := range []string{"postgres: ", "mysql: ", "cassandra: ", "directory: ", "etcd: ", "spanner: "} {
			text = strings.TrimPrefix(text, store)
		}
		return text
	}
	var refused *pgconn.PgError
	var lookup *net.DNSError
	var op *net.OpError
	switch err := connect.Unwrap(); {
	case errors.As(err, &refused):
		return refused.Message
	case errors.As(err, &lookup):
		return lookup.Error()
	case errors.As(err, &op):
		return op.Error()
	case pgconn.Timeout(err):
		return (&silence{connect.Config.ConnectTimeout, err}).Error()
	default:
		return err.Error()
	}
}

// unreachable tells an error of the way to the server from one of the server.
func unreachable(err error) bool {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	var my *mysql.MySQLError
	var cql gocql.RequestError
	var denied *denial
	var engine *engine.Error
	var network net.Error
	switch {
	case errors.As(err, &engine):
		return !engine.Reached
	case errors.As(err, &pg), errors.As(err, &my), errors.As(err, &cql), errors.As(err, &denied):
		return false
	case errors.As(err, &connect), errors.As(err, &network):
		return true
	}
	for _, is := range []error{context.DeadlineExceeded, sqldriver.ErrBadConn, mysql.ErrInvalidConn, gocql.ErrNoConnections, gocql.ErrTimeoutNoResponse, gocql.ErrConnectionClosed} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// notLetIn tells that a server answers, but has no place for us.
func notLetIn(err error) bool {
	var connect *pgconn.ConnectError
	var my *mysql.MySQLError
	var cql gocql.RequestError
	var denied *denial
	if errors.As(err, &my) {
		switch my.Number {
		case 1040, 1044, 1045, 1049, 1129, 1130, 1203, 1698:
			return true // too many, denied, no such database, blocked
		}
	}
	if errors.As(err, &cql) && cql.Code() == gocql.ErrCodeUnauthorized {
		return true
	}
	var engine *engine.Error
	return errors.As(err, &connect) || errors.As(err, &denied) || errors.As(err, &engine)
}

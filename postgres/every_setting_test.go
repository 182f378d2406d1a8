package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var thorough = flag.Bool("full", false, "every value of every setting, in every mode of the driver, for roles and for the database")

// values are what is tried of settings whose values the server does not list, and
// of those where its least and greatest make no sense.
var values = map[string][]string{
	"application_name":                    {"''", "'ü'"},
	"backtrace_functions":                 {"'errfinish'"},
	"client_encoding":                     {"LATIN1", "SQL_ASCII", "EUC_JP"},
	"DateStyle":                           {"'German, DMY'", "'SQL, YMD'", "'Postgres'"},
	"default_table_access_method":         {"none"},
	"default_tablespace":                  {"pg_default", "none"},
	"default_text_search_config":          {"'pg_catalog.german'"},
	"dynamic_library_path":                {"'/none'"},
	"extension_destdir":                   {"'/none'"},
	"lc_messages":                         {"'C.UTF-8'"},
	"lc_monetary":                         {"'C.UTF-8'"},
	"lc_numeric":                          {"'C.UTF-8'"},
	"lc_time":                             {"'C.UTF-8'"},
	"local_preload_libraries":             {"''"},
	"restrict_nonsystem_relation_kind":    {"'view'", "'foreign-table'"},
	"search_path":                         {"''", "pg_catalog, public", "none, public", "pg_temp, public", "none"},
	"session_preload_libraries":           {"auto_explain"},
	"temp_tablespaces":                    {"pg_default"},
	"TimeZone":                            {"'Asia/Kathmandu'", "'-23'"},
	"timezone_abbreviations":              {"'India'"},
	"wal_consistency_checking":            {"'all'"},
	"plpgsql.extra_errors":                {"'all'"},
	"plpgsql.extra_warnings":              {"'all'"},
	"lock_timeout":                        {"1", "700"},
	"statement_timeout":                   {"700"},
	"idle_in_transaction_session_timeout": {"700"},
	"idle_session_timeout":                {"300", "700"},
	"tcp_user_timeout":                    {"700"},
	"transaction_timeout":                 {"700"},
	"max_stack_depth":                     {"100"},
}

// read are settings by which values are written and read: always tried in each mode
// of the driver.
var read = []string{"bytea_output", "client_encoding", "DateStyle", "extra_float_digits", "IntervalStyle", "search_path", "standard_conforming_strings"}

// A oneSetting is a setting that a role, or the database, has.
type oneSetting struct {
	name, value string
	database    bool
	mode        pgx.QueryExecMode
}

func (s oneSetting) String() string {
	where := "role"
	if s.database {
		where = "database"
	}
	return fmt.Sprintf("%s %s = %s (%s)", where, s.name, s.value, s.mode)
}

// everySetting are all that a role can set, with values that are not the default.
func everySetting(t *testing.T, admin *pgxpool.Pool) (list []oneSetting) {
	t.Helper()
	rows, err := admin.Query(t.Context(), `
select name, vartype, setting, coalesce(unit, ''), coalesce(enumvals, '{}'), coalesce(min_val, ''), coalesce(max_val, '')
from (select length(set_config('plpgsql.check_asserts', 'on', false))) loaded, pg_settings
where context in ('user', 'superuser') and name not like 'transaction\_%' order by name`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	var name, kind, is, unit, least, most string
	var enum []string
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec}
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&name, &kind, &is, &unit, &enum, &least, &most}, func() error {
		try, known := values[name]
		switch {
		case known:
		case kind == "bool":
			try = []string{map[string]string{"on": "off", "off": "on"}[is]}
		case kind == "enum":
			for _, v := range enum {
				try = append(try, "'"+v+"'")
			}
		case kind == "string":
			t.Logf("nothing is known to be tried of %s", name)
		case unit == "ms" || unit == "s":
			try = []string{least, "1"}
		case kind == "real": // by the greatest cost the server would compile each statement
			try = []string{least, is + "e2"}
		default:
			try = []string{least, most}
		}
		for _, v := range try {
			if strings.Trim(v, "'") == is {
				continue
			}
			if !*thorough && (testing.Short() || !slices.Contains(read, name)) {
				list = append(list, oneSetting{name, v, false, modes[n%len(modes)]})
				n++
				continue
			}
			for _, m := range modes {
				if m == pgx.QueryExecModeSimpleProtocol && (name == "standard_conforming_strings" || name == "client_encoding") {
					continue // pgx refuses it
				}
				list = append(list, oneSetting{name, v, false, m}, oneSetting{name, v, true, m})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Whatever a role or a database sets, a lock is taken, waited for, handed over,
// fenced and given back; or the store is refused, and the setting is named.
func TestEverySetting(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t, &servers.Options{})
	if !server.Own {
		t.Skip("this needs a server of its own")
	}
	ctx := t.Context()
	url := server.Database(t)
	admin := connect(t, url)
	if err := Migrate(ctx, admin, nil); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, `create role app; create table orders (paid text); grant insert on orders to app`)
	for _, g := range documented(t, "app", &Options{Schema: "public", Prefix: "holdfast_"}) {
		exec(t, admin, g+` to app`)
	}
	list := everySetting(t, admin)
	if len(list) < 250 {
		t.Errorf("only %d settings and values", len(list))
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var refused, impossible []string
	turns := make(chan bool, 6)
	began := time.Now()
	for i, one := range list {
		turns <- true
		wg.Go(func() {
			defer func() { <-turns }()
			role := fmt.Sprintf("s%d", i)
			if _, err := admin.Exec(ctx, `create role `+role+` login in role app`); err != nil {
				t.Error(err)
				return
			}
			alter := `alter role ` + role
			if one.database {
				alter += ` in database ` + admin.Config().ConnConfig.Database
			}
			if _, err := admin.Exec(ctx, alter+` set `+one.name+` = `+one.value); err != nil {
				mu.Lock()
				impossible = append(impossible, one.name)
				mu.Unlock()
				return
			}
			err := under(ctx, url, role, one)
			for range 5 { // on a busy machine that much may be over between two statements
				var ended *pgconn.PgError
				if !errors.As(err, &ended) || ended.Code != "57P05" || one.name != "idle_session_timeout" {
					break
				}
				err = under(ctx, url, role, one)
			}
			mu.Lock()
			defer mu.Unlock()
			var no refusedError
			switch {
			case errors.As(err, &no) && strings.Contains(err.Error(), one.name):
				refused = append(refused, fmt.Sprintf("%s = %s", one.name, one.value))
			case err != nil:
				t.Errorf("%v: %v", one, err)
			}
		})
	}
	wg.Wait()
	slices.Sort(refused)
	t.Logf("%d values in %v; refused: %s; not to be set: %s", len(list), time.Since(began), strings.Join(slices.Compact(refused), ", "), strings.Join(slices.Compact(impossible), ", "))
}

type refusedError struct{ error }

// under does all that clients do, as a role.
func under(ctx context.Context, url, role string, one oneSetting) error {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.ConnConfig.User = role
	config.ConnConfig.DefaultQueryExecMode = one.mode
	config.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	opts := &Options{}
	if strings.EqualFold(one.name, "search_path") {
		opts.Schema = "public" // it is what says where the tables are
	}
	s, err := New(ctx, pool, opts)
	if err != nil {
		return refusedError{err}
	}
	defer s.Close()
	name := role + ` é\'"` + one.value
	first, second, err := clientsOf(s)
	if err != nil {
		return err
	}
	defer first.Close()
	defer second.Close()
	lock, err := first.Acquire(ctx, name, holdfast.Reason("日本\\ \u0001'"))
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	pay := func(l *holdfast.Lock) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into public.orders (paid) values ($1)`, name); err != nil {
				return err
			}
			return Fence(ctx, tx, l)
		})
	}
	if err := pay(lock); err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	if err := handOver(ctx, first, second, lock); err != nil {
		return err
	}
	if err := pay(lock); !errors.Is(err, holdfast.ErrLost) {
		return fmt.Errorf("the fence says %v to who has given the lock back", err)
	}
	locks, err := first.AcquireAll(ctx, []string{name, name + "2"})
	if err != nil {
		return fmt.Errorf("a set: %w", err)
	}
	if err := locks.Release(ctx); err != nil {
		return fmt.Errorf("release a set: %w", err)
	}
	if _, err := s.Keys(ctx, driver.Sessions, "", 3); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if _, err := s.Sweep(ctx, time.Hour); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	return nil
}

func clientsOf(s *Store) (first, second *holdfast.Client, err error) {
	if first, err = holdfast.New(s, &holdfast.Options{RuntimeDir: os.DevNull}); err == nil {
		second, err = holdfast.New(s, &holdfast.Options{RuntimeDir: os.DevNull})
	}
	return first, second, err
}

// handOver has the second client wait for a lock, and get it when the first gives it back.
func handOver(ctx context.Context, first, second *holdfast.Client, lock *holdfast.Lock) error {
	type got struct {
		lock *holdfast.Lock
		err  error
	}
	handed := make(chan got, 1)
	go func() {
		l, err := second.Acquire(ctx, lock.Name())
		handed <- got{l, err}
	}()
	for waits := false; !waits; {
		info, err := first.Show(ctx, lock.Name())
		if err != nil {
			return fmt.Errorf("show: %w", err)
		}
		waits = len(info.Waiters) == 1
		select {
		case <-time.After(5 * time.Millisecond):
		case g := <-handed:
			return fmt.Errorf("who should wait has %v, %w", g.lock, g.err)
		}
	}
	if err := lock.Release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	g := <-handed
	if g.err != nil {
		return fmt.Errorf("hand-off: %w", g.err)
	}
	if err := g.lock.Release(ctx); err != nil {
		return fmt.Errorf("release of what was handed over: %w", err)
	}
	return nil
}

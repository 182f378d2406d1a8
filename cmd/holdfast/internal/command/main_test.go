//go:build linux

package command

import (
	"context"
	"crypto/rand"
	"database/sql"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/admin"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/etcd"
	"github.com/holdfast-lock/holdfast/internal/busy"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/mysql"
	"github.com/holdfast-lock/holdfast/postgres"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// The test binary is also the command, and its guard.
func TestMain(m *testing.M) {
	cli.Kinds = []*driver.Kind{sqlite.Kind, directory.Kind, postgres.Kind, mysql.Kind, cassandra.Kind, memory.Kind}
	cli.Others = cli.Programs
	for _, k := range servers.Kinds {
		if k.Name != "cassandra" { // which has TestScriptCassandra
			shops = append(shops, shop{kind: k.Name, of: k})
		}
	}
	admin.ClaimTable = func(ctx context.Context, at *driver.Location, table string) (claims.Table, func() error, error) {
		return cassandra.OpenColumns(ctx, at, table)
	}
	// With the race detector every command would sleep for a second when it is done.
	os.Setenv("GORACE", "atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	if guard.Terminal() && filepath.Base(os.Args[0]) != "holdfast" {
		os.Exit(withoutTerminal())
	}
	if strings.HasSuffix(os.Args[0], ".test") {
		inCrowds()
		heedSignals()
	}
	testscript.Main(m, map[string]func(){
		"holdfast":        func() { os.Exit(run(os.Args[1:])) },
		"holdfast-etcd":   func() { Main([]*driver.Kind{etcd.Kind}) },
		"holdfast-ticker": ticker,
	})
}

// inCrowds lets more tests run at a time than there are processors, unless it is
// said how many: they wait more than they work.
func inCrowds() {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		flag.Set("test.parallel", "4")
	}
}

// withoutTerminal runs the tests as they run where nobody looks: at a terminal a
// command shares the group of its tests. (Those that need a terminal make one.)
func withoutTerminal() int {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	c := exec.Command(self, os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Run(); err != nil {
		return 1
	}
	return 0
}

// A shop has what a store's scripts need.
type shop struct {
	kind string
	of   servers.Kind // if it has a server

	programs string // where they are, if this test is not all of them
}

var shops = []shop{{kind: "sqlite"}, {kind: "dir"}} // and those with a server

// The manual of the command is testdata: what it shows is what happens, in script
// with every store, in sqlite, dir and servers with those, in faults with servers
// that are ill-treated, in pooler by way of a PgBouncer.
func TestScript(t *testing.T) {
	for _, shop := range shops {
		t.Run(shop.kind, func(t *testing.T) {
			t.Parallel()
			dirs := []string{"script", shop.kind}
			if shop.of.Shared != nil {
				shop.of.Shared(t) // or skips
			}
			if shop.of.SQL {
				dirs = []string{"script", "servers", "faults"}
			}
			if shop.kind == "postgres" {
				dirs = append(dirs, "pooler")
			}
			if shop.of.Emulator != "" {
				shop.programs = build(t, "../../holdfast-"+shop.kind)
			}
			for _, dir := range dirs {
				files, err := filepath.Glob(filepath.Join("../../testdata", dir, "*.txtar"))
				if err != nil || len(files) == 0 {
					t.Fatalf("no scripts in %s: %v", dir, err)
				}
				for _, file := range files {
					t.Run(dir, func(t *testing.T) {
						t.Parallel()
						if testing.Short() && shop.of.Emulator != "" && dir == "script" && !strings.HasSuffix(file, "/run.txtar") {
							t.Skip("SKIPPED: -short: of the scripts for all stores only run.txtar")
						}
						shop.play(t, dir, file)
					})
				}
			}
		})
	}
}

// play runs a script with a store of its own.
func (s shop) play(t *testing.T, dir, file string) {
	var server *servers.Server
	var proxy *servers.Proxy
	stores := map[string]string{"AGO": `\d+s ago`, "BEAT_AGE": `[0-9.]+`} // by the variables that scripts know them by
	// A lease that is lost in a script, after how much silence, and what is left of it then; when
	// somebody gives up who waits for a fifth of a second.
	stores["LEASE"], stores["SILENT"], stores["LEFT"], stores["GAVEUP"] = busy.Times(3*time.Second).String(), `[12]\.\ds`, `\d+ms`, `2..ms`
	if busy.Stretch() > 1 {
		stores["SILENT"], stores["LEFT"], stores["GAVEUP"] = `\d\.\ds`, `[\d.]+m?s`, `[2-9]..ms`
	}
	if s.of.SQL {
		var opts *servers.Options
		if dir == "faults" {
			opts = &servers.Options{} // one of its own
		}
		server = s.of.Server(t, opts)
		if dir == "faults" && !server.Own {
			t.Skipf("%s is not ours to ill-treat", server.Name)
		}
		if dir == "pooler" {
			server = servers.PgBouncer(t, server)
		}
		direct := server.Database(t)
		u, err := url.Parse(direct)
		if err != nil {
			t.Fatal(err)
		}
		if proxy, err = servers.NewProxy(t.Context(), u.Host); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(proxy.Close)
		stores["DIRECT"] = direct
		stores["HOLDFAST_STORE"] = servers.WithHostPort(direct, proxy.Addr())
		stores["AND"] = "?" // before one more setting
		if u.RawQuery != "" {
			stores["AND"] = "&"
		}
		stores["HOST"], stores["DB"] = u.Host, strings.TrimPrefix(u.Path, "/")
		stores["DATA"] = filepath.Join(server.Dir, "data")
		stores["SQL"] = "psql -XAtq -v ON_ERROR_STOP=1 " + direct // reads statements
		if s.kind == "mysql" {
			stores["MYSQL_PWD"], _ = u.User.Password()
			stores["SQL"] = fmt.Sprintf("mariadb --no-defaults --protocol=tcp -h%s -P%s -u%s -BN %s", u.Hostname(), u.Port(), u.User.Username(), stores["DB"])
		}
		if dir != "servers" {
			migrate(t, direct)
		}
	}
	if s.kind == "etcd" {
		host := servers.EtcdThree(t, nil).Endpoints()[0]
		var err error
		if proxy, err = servers.NewProxy(t.Context(), host); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(proxy.Close)
		stores["AGO"], stores["BEAT_AGE"] = `\?`, "null" // the store has no clock
		prefix := "?prefix=test/" + rand.Text() + "/"
		stores["DIRECT"], stores["HOLDFAST_STORE"], stores["AND"], stores["HOST"] = "etcd://"+host+prefix, "etcd://"+proxy.Addr()+prefix, "&", host
	}
	if s.of.Emulator != "" {
		emulator := s.of.Server(t, nil)
		var err error
		if proxy, err = servers.NewProxy(t.Context(), emulator.Addr()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(proxy.Close)
		url := emulator.Database(t)
		if out, err := exec.Command(filepath.Join(s.programs, "holdfast-"+s.kind), "--store", url, "schema", "apply").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		stores["HOLDFAST_STORE"], stores["AND"], stores[s.of.Emulator] = url, "?", proxy.Addr()
		stores["PATH"] = s.programs
	}
	testscript.Run(t, testscript.Params{
		Files: []string{file},
		Setup: func(e *testscript.Env) error {
			for _, dir := range []string{"state", "run"} {
				if err := os.Mkdir(filepath.Join(e.WorkDir, dir), 0o700); err != nil {
					return err
				}
			}
			e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, "state"))
			e.Setenv("XDG_RUNTIME_DIR", filepath.Join(e.WorkDir, "run"))
			e.Setenv("GORACE", os.Getenv("GORACE"))
			e.Setenv("USER", "ana")
			e.Setenv("LOGNAME", "ana")
			if s.kind == "dir" {
				e.Setenv("HOLDFAST_STORE", makeDirectory(t, filepath.Join(e.WorkDir, "locks.d")))
			}
			for name, value := range stores {
				if name == "PATH" {
					value = e.Getenv("PATH") + ":" + value
				}
				e.Setenv(name, value)
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			for _, other := range shops {
				if cond == other.kind {
					return cond == s.kind, nil
				}
			}
			return false, fmt.Errorf("unknown condition %s", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"eventually": eventually,
			"status":     status,
			"token":      token,
			"silence": func(ts *testscript.TestScript, _ bool, args []string) {
				d, err := time.ParseDuration(args[0])
				ts.Check(err)
				switch {
				case s.kind == "dir":
					obstruct(ts, "locks.d", d)
				case proxy == nil:
					mute(ts, "state/holdfast/holdfast.db", d)
				default:
					proxy.Stall(true)
					time.AfterFunc(d, func() { proxy.Stall(false) })
				}
			},
			"server": func(ts *testscript.TestScript, _ bool, args []string) {
				switch args[0] {
				case "freeze":
					ts.Check(server.Freeze())
				case "thaw":
					ts.Check(server.Thaw())
				case "kill":
					ts.Check(server.Kill())
				case "restart":
					ts.Check(server.Restart(t.Context()))
				default:
					ts.Fatalf("server %s?", args[0])
				}
			},
		},
	})
}

// build makes the command, with one of its programs, as users have them: what this test would have in it for a
// big engine would make all of its commands slow.
func build(t *testing.T, with string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir, "../..", with).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// makeDirectory makes a store in a directory.
func makeDirectory(t *testing.T, dir string) (store string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	store = "dir:" + dir
	migrate(t, store)
	return store
}

// migrate is schema apply.
func migrate(t *testing.T, store string) {
	t.Helper()
	target, err := cli.ParseStore(store)
	if err == nil {
		err = target.Kind.Migrate(t.Context(), target.Location)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// eventually PATTERN CMD…: CMD's output matches PATTERN before long (! does not).
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout") + ts.ReadFile("stderr")
		if pattern.MatchString(out) != neg {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("not within 20s; the last was:\n%s", out)
		}
	}
}

// status N CMD…: CMD ends with exactly that status.
func status(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("ended with %s, want %s\n%s", got, args[0], ts.ReadFile("stderr"))
	}
}

// mute lets an SQLite file answer nobody for so long, in the background.
func mute(ts *testscript.TestScript, file string, d time.Duration) {
	db, err := sql.Open("sqlite", ts.MkAbs(file))
	ts.Check(err)
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(context.Background())
	ts.Check(err)
	for range 1000 {
		if _, err = conn.ExecContext(context.Background(), "begin immediate"); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	ts.Check(err)
	over := sync.OnceFunc(func() { conn.ExecContext(context.Background(), "rollback"); conn.Close(); db.Close() })
	time.AfterFunc(d, over)
	ts.Defer(over)
}

// obstruct lets nobody read or write what a directory has, for so long, in the
// background.
func obstruct(ts *testscript.TestScript, dir string, d time.Duration) {
	var thaw []func()
	for _, space := range []string{"names", "sessions", "settings", "audits"} {
		path := filepath.Join(ts.MkAbs(dir), space)
		ts.Check(os.Rename(path, path+".away"))
		ts.Check(os.WriteFile(path, nil, 0o600))
		thaw = append(thaw, func() { os.Remove(path); os.Rename(path+".away", path) })
	}
	over := sync.OnceFunc(func() {
		for _, f := range thaw {
			f()
		}
	})
	time.AfterFunc(d, over)
	ts.Defer(over)
}

// token VAR NAME: sets VAR to the token of NAME's first holder, when there is one.
func token(ts *testscript.TestScript, _ bool, args []string) {
	find := regexp.MustCompile(`"holders":\[\{[^]]*?"token":(\d+)`)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		ts.Exec("holdfast", "show", "--json", args[1])
		if m := find.FindStringSubmatch(ts.ReadFile("stdout")); m != nil {
			ts.Setenv(args[0], m[1])
			return
		}
	}
	ts.Fatalf("nobody holds %s", args[1])
}

// heedSignals has what the tests start begin with no signal ignored, though whoever
// runs them ignores some, as nohup does.
func heedSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

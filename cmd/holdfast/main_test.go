//go:build linux

package main

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
)

// The test binary is also the command, and its guard.
func TestMain(m *testing.M) {
	guard.Main()
	if guard.Terminal() && filepath.Base(os.Args[0]) != "holdfast" {
		os.Exit(withoutTerminal())
	}
	testscript.Main(m, map[string]func(){
		"holdfast":        func() { os.Exit(Main(os.Args[1:])) },
		"holdfast-ticker": ticker,
	})
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

// The manual of the command is testdata/script: what it shows is what happens.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			for _, dir := range []string{"state", "run"} {
				if err := os.Mkdir(filepath.Join(e.WorkDir, dir), 0o700); err != nil {
					return err
				}
			}
			e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, "state"))
			e.Setenv("XDG_RUNTIME_DIR", filepath.Join(e.WorkDir, "run"))
			e.Setenv("USER", "ana")
			e.Setenv("LOGNAME", "ana")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"eventually": eventually,
			"status":     status,
			"silence":    silence,
			"token":      token,
		},
	})
}

// eventually PATTERN CMD…: CMD's output matches PATTERN before long (! does not).
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
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

// silence FILE DUR: the SQLite file answers nobody for so long, in the background.
func silence(ts *testscript.TestScript, _ bool, args []string) {
	d, err := time.ParseDuration(args[1])
	ts.Check(err)
	db, err := sql.Open("sqlite", ts.MkAbs(args[0]))
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

// token VAR NAME: sets VAR to the token of NAME's first holder, when there is one.
func token(ts *testscript.TestScript, _ bool, args []string) {
	find := regexp.MustCompile(`"holders":\[\{[^]]*?"token":(\d+)`)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		ts.Exec("holdfast", "show", "--json", args[1])
		if m := find.FindStringSubmatch(ts.ReadFile("stdout")); m != nil {
			ts.Setenv(args[0], m[1])
			return
		}
	}
	ts.Fatalf("nobody holds %s", args[1])
}

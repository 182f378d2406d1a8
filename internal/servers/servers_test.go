//go:build linux

package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ask runs SQL, a command of Redis, or "PATH JSON" for etcd, and returns the answer.
func ask(t *testing.T, target, command string) string {
	t.Helper()
	scheme, addr, _ := strings.Cut(target, "://")
	switch scheme {
	case "redis":
		c, err := net.Dial("tcp", addr)
		must(t, err)
		defer c.Close()
		fmt.Fprintf(c, "%s\r\nQUIT\r\n", command)
		b, err := io.ReadAll(c)
		must(t, err)
		lines := strings.Split(string(b), "\r\n")
		return strings.TrimLeft(lines[len(lines)-3], ":") // before QUIT's OK
	case "http":
		path, body, _ := strings.Cut(command, " ")
		resp, err := http.Post(target+path, "application/json", strings.NewReader(body))
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		_, version, _ := strings.Cut(string(b), `"version":"`)
		version, _, _ = strings.Cut(version, `"`)
		return version
	}
	out, err := query(t.Context(), target, command)
	must(t, err)
	return out
}

// The kinds of servers, and how to do what the tests do with each of them.
var kinds = []struct {
	name     string // how theirs begins
	start    func(testing.TB, *Options) *Server
	settings []string
	setting  string // asks for what settings set to 70
	create   string
	write    string // three times
	count    string
	clock    string // in seconds
	sleep    string
}{
	{"PostgreSQL ", Postgres, []string{"max_connections=70"}, "SHOW max_connections", "CREATE TABLE t (k INT PRIMARY KEY)",
		"INSERT INTO t SELECT count(*) FROM t", "SELECT count(*) FROM t", "SELECT extract(epoch from now())", "SELECT pg_sleep(0.3)"},
	{"M", MySQL, []string{"max_connections=70"}, "SELECT @@max_connections", "CREATE TABLE t (k INT PRIMARY KEY)",
		"INSERT INTO t SELECT count(*) FROM t", "SELECT count(*) FROM t", "SELECT unix_timestamp()", "SELECT sleep(0.3)"},
	{"Redis ", Redis, []string{"hz=70"}, "CONFIG GET hz", "DEL t", "INCR t", "GET t", "", ""},
	{"etcd ", Etcd, nil, "", "", `/v3/kv/put {"key":"dA==","value":"dA=="}`, `/v3/kv/range {"key":"dA=="}`, "", ""},
}

// What was acknowledged is there after kill -9 and a restart, and after an
// orderly one; after Stop nothing is.
func TestRestart(t *testing.T) {
	for _, kind := range kinds {
		t.Run(strings.TrimSpace(kind.name), func(t *testing.T) {
			t.Parallel()
			s := kind.start(t, &Options{Settings: kind.settings})
			if !s.Own {
				t.Skip("the server is not ours")
			}
			if !strings.HasPrefix(s.Name, kind.name) {
				t.Errorf("got the name %q, want one that begins with %s", s.Name, kind.name)
			}
			db := s.URL
			if kind.clock != "" { // it has databases
				db = s.Database(t)
			}
			if kind.create != "" {
				ask(t, db, kind.create)
			}
			ask(t, db, kind.write)
			must(t, s.Kill())
			if left := working(s.Dir); len(left) > 0 {
				t.Errorf("processes %v work in %s after Kill", left, s.Dir)
			}
			must(t, s.Restart(t.Context()))
			ask(t, db, kind.write)
			must(t, s.Restart(t.Context()))
			ask(t, db, kind.write)
			if got := ask(t, db, kind.count); got != "3" {
				t.Errorf("%s writes are left of 3", got)
			}
			if kind.setting != "" {
				if got := ask(t, db, kind.setting); got != "70" {
					t.Errorf("the setting is %s, want 70", got)
				}
			}
			must(t, s.Stop())
			must(t, s.Stop())
			if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
				t.Errorf("%s is there after Stop: %v", s.Dir, err)
			}
			if left := working(s.Dir); len(left) > 0 {
				t.Errorf("processes %v work in %s after Stop", left, s.Dir)
			}
			if err := s.Restart(t.Context()); err == nil {
				t.Error("a stopped server could be restarted")
			}
		})
	}
}

func TestFreeze(t *testing.T) {
	s := Postgres(t, &Options{})
	if !s.Own {
		t.Skip("the server is not ours")
	}
	must(t, s.Freeze())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := query(ctx, s.URL, "SELECT 1"); err == nil {
		t.Error("a frozen server has answered")
	}
	must(t, s.Thaw())
	ask(t, s.URL, "SELECT 1")
	must(t, s.Freeze())
	must(t, s.Restart(t.Context()))
	ask(t, s.URL, "SELECT 1")
}

// SetClock moves the clock of a running server, and that of one that was killed
// and started again; durations stay what they are.
func TestSetClock(t *testing.T) {
	for _, start := range []starter{StartRedis, StartEtcd} {
		if _, err := start(t.Context(), &Options{Faketime: true}); !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, ErrMissing) {
			t.Errorf("got %v of a server with which libfaketime does not work", err)
		}
	}
	for _, kind := range kinds {
		if kind.clock == "" {
			continue
		}
		t.Run(strings.TrimSpace(kind.name), func(t *testing.T) {
			t.Parallel()
			s := kind.start(t, &Options{Faketime: true})
			if !s.Own {
				t.Skip("the server is not ours")
			}
			want := func(offset time.Duration) {
				t.Helper()
				clock, err := strconv.ParseFloat(ask(t, s.URL, kind.clock), 64)
				must(t, err)
				got := clock - float64(time.Now().UnixMicro())/1e6
				if math.Abs(got-offset.Seconds()) > 1.5 {
					t.Errorf("the clock is off by %.1fs, want %v", got, offset)
				}
			}
			want(0)
			for _, offset := range []time.Duration{time.Hour, -time.Hour, -2500 * time.Millisecond, 72 * time.Hour} {
				must(t, s.SetClock(offset))
				want(offset)
			}
			began := time.Now()
			ask(t, s.URL, kind.sleep)
			if d := time.Since(began); d < 300*time.Millisecond || d > 10*time.Second {
				t.Errorf("0.3 seconds took %v", d)
			}
			must(t, s.Kill())
			must(t, s.Restart(t.Context()))
			want(72 * time.Hour)
		})
	}
}

func TestPgBouncer(t *testing.T) {
	b := PgBouncer(t, Postgres(t, nil))
	db := b.Database(t)
	if got, want := ask(t, db, "SELECT 1"), "1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !strings.HasPrefix(b.Name, "PgBouncer 1.") {
		t.Errorf("got the name %q", b.Name)
	}
	must(t, b.Kill())
	must(t, b.Restart(t.Context()))
	ask(t, db, "SELECT 1")
}

// A PgBouncer that may end by a request to cancel a statement gets none.
func TestPgBouncerWithoutCancels(t *testing.T) {
	b := PgBouncer(t, Postgres(t, nil))
	if b.front == nil {
		t.Skipf("SKIPPED: %s survives requests to cancel a statement", b.Name)
	}
	u, err := url.Parse(b.URL)
	must(t, err)
	c, err := net.Dial("tcp", u.Host)
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte{0, 0, 0, 16, 4, 210, 22, 46, 0, 0, 0, 1, 0, 0, 0, 1})
	must(t, err)
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want an end", err)
	}
	ask(t, b.Database(t), "SELECT 1")
	if log, err := os.ReadFile(b.file("log")); err != nil || strings.Contains(string(log), "cancel request") {
		t.Errorf("%v; in its log:\n%s", err, log)
	}
}

// A server that was pointed at is used and not harmed.
func TestPointedAt(t *testing.T) {
	own := Postgres(t, nil)
	t.Setenv("HOLDFAST_TEST_POSTGRES", own.URL)
	s := Postgres(t, &Options{})
	if s.Own || s.Name != own.Name || s.Port != own.Port {
		t.Errorf("got %s, port %d, own: %v; want %s, port %d, not own", s.Name, s.Port, s.Own, own.Name, own.Port)
	}
	if s.Kill() == nil || s.Restart(t.Context()) == nil || s.Freeze() == nil || s.SetClock(0) == nil {
		t.Error("a server that is not ours could be harmed")
	}
	must(t, s.Stop())
	ask(t, s.Database(t), "SELECT 1")
	ask(t, PgBouncer(t, s).Database(t), "SELECT 1")
}

// A server that cannot start says why.
func TestStartFails(t *testing.T) {
	Postgres(t, nil) // or skips
	s, err := StartPostgres(t.Context(), &Options{Settings: []string{"max_connections=few"}})
	if err == nil {
		s.Stop()
	}
	if err == nil || !strings.Contains(err.Error(), `"few"`) {
		t.Errorf("got %v, want what the log says of few connections", err)
	}
}

// Nothing is left of a process's servers when it was killed, not even of a
// frozen one; and if its janitor was killed too, after the next process's sweep.
func TestLeftBehind(t *testing.T) {
	const mark = "HOLDFAST_SERVERS_CHILD"
	if os.Getenv(mark) != "" {
		frozen := Postgres(t, &Options{})
		must(t, frozen.Freeze())
		fmt.Println("DIR", frozen.Dir)
		fmt.Println("DIR", Postgres(t, nil).Dir)
		fmt.Println("DIR", MySQL(t, nil).Dir)
		fmt.Println("READY")
		select {}
	}
	if s := Postgres(t, nil); !s.Own || !MySQL(t, nil).Own {
		t.Skip("the servers are not ours")
	}
	for _, janitorToo := range []bool{false, true} {
		child := exec.Command(os.Args[0], "-test.run=^TestLeftBehind$")
		child.Env = append(os.Environ(), mark+"=1")
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, start(child, nil))
		var dirs []string
		for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "READY"; {
			if dir, ok := strings.CutPrefix(lines.Text(), "DIR "); ok {
				dirs = append(dirs, dir)
			}
		}
		if len(dirs) != 3 || len(working(dirs[0])) == 0 || len(working(dirs[1])) == 0 || len(working(dirs[2])) == 0 {
			t.Fatalf("the child did not start three servers: %v", dirs)
		}
		if janitorToo {
			killJanitor(t, child.Process.Pid)
		}
		must(t, child.Process.Kill())
		child.Wait()
		gone := func() bool { return len(working(dirs[1])) == 0 && len(working(dirs[2])) == 0 }
		if !janitorToo {
			gone = func() bool {
				left, _ := filepath.Glob(filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-*", prefix, child.Process.Pid)))
				return len(working(dirs[0])) == 0 && len(left) == 0
			}
		}
		for began := time.Now(); !gone(); time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > patience {
				t.Fatalf("janitor killed: %v; %v after the process its servers are still there", janitorToo, patience)
			}
		}
		sweep()
		for _, dir := range dirs {
			if _, err := os.Stat(dir); !os.IsNotExist(err) || len(working(dir)) > 0 {
				t.Errorf("janitor killed: %v; %s is left behind, with processes %v", janitorToo, dir, working(dir))
			}
		}
	}
}

func killJanitor(t *testing.T, of int) {
	t.Helper()
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		args, _ := os.ReadFile(proc + "/cmdline")
		if strings.HasPrefix(string(args), "/bin/sh\x00-c\x00"+janitor) && strings.Contains(string(args), fmt.Sprintf("%s%d-", prefix, of)) {
			pid, _ := strconv.Atoi(filepath.Base(proc))
			p, err := os.FindProcess(pid)
			must(t, err)
			must(t, p.Kill())
			return
		}
	}
	t.Fatal("there is no janitor")
}

//go:build linux

package chaos

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// A process is a worker that runs, behind a proxy of its own to a server.
type process struct {
	*story.Process
	proxy *servers.Proxy
}

// start starts a worker of a host, with its own way to the database.
func (e *episode) start(host string, flags ...string) *process {
	e.t.Helper()
	id := fmt.Sprintf("w%d", len(e.workers))
	p := new(process)
	var err error
	target := e.target
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir, "USER=ana", mark + e.dir, "CHAOS_ROLE=worker", "XDG_RUNTIME_DIR=" + e.host(host)}
	if e.lane.server != nil {
		p.proxy, err = servers.NewProxy(e.t.Context(), e.lane.addr())
		must(e.t, err)
		e.t.Cleanup(p.proxy.Close)
		if v := e.lane.of().Emulator; v != "" {
			env = append(env, v+"="+p.proxy.Addr())
		} else {
			target = servers.WithHostPort(target, p.proxy.Addr())
		}
	}
	self, err := os.Executable()
	must(e.t, err)
	args := []string{"-store", as(target, id), "-id", id, "-ttl", e.ttl.String(), "-names", e.names, "-seed", fmt.Sprint(e.rng.Uint64())}
	if e.counter != "" {
		args = append(args, "-counter", e.counter, "-lanes", "1", "-think", "100ms")
	}
	flags, bends := without(flags, bent)
	flags, old := without(flags, earlierFlag)
	args = append(args, flags...)
	if e.lane.tells() {
		args = append(args, "-writes") // see steps
	}
	if old {
		self = earlierWorkerOf(e.lane.kind).path
	}
	cmd := exec.Command(self, args...)
	cmd.Dir, cmd.Env = e.dir, env
	if bends {
		cmd.Env = append(cmd.Env, "HOLDFAST_FAULT_CLOCK="+e.clockOf(id))
	}
	if old {
		cmd.Env = append(cmd.Env, "FAULTS_ROLE=worker")
	}
	p.Process, err = story.Start(cmd, id, e.ttl)
	must(e.t, err)
	e.workers = append(e.workers, p)
	e.note("%s is process %d on host %s %v, of the earlier version %v", id, p.PID, host, flags, old)
	e.t.Cleanup(p.Destroy)
	return p
}

// as is a URL for a user or program of that name.
func as(target, name string) string {
	if !strings.HasPrefix(target, "postgres:") && !strings.HasPrefix(target, "mysql:") { // which have no names for connections
		return target
	}
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	if u.Scheme == "mysql" {
		u.User = url.User(name)
		return u.String()
	}
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	return u.String()
}

// kill is SIGKILL.
func (e *episode) kill(p *process) {
	p.Kill()
	e.note("killed %s", p.ID)
}

// stop stops a process for that long.
func (e *episode) stop(p *process, d time.Duration) {
	e.note("stopped %s", p.ID)
	e.pauses = true
	p.Stop(d)
	e.note("continued %s", p.ID)
}

func (e *episode) resume(p *process, from int64) {
	p.Resume(from)
	e.note("continued %s", p.ID)
}

const mark = "CHAOS_EPISODE="

// checkEmpty is that no process of an episode is left.
func checkEmpty(t *testing.T, dir string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && bytes.Contains(env, []byte(mark+dir+"\x00")) {
			t.Errorf("left over: process %s", e.Name())
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

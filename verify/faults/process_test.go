//go:build linux

package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// A process is a worker that runs, behind a proxy of its own.
type process struct {
	story
	cmd   *exec.Cmd
	proxy *servers.Proxy
	input io.Closer
	said  bytes.Buffer  // on standard error
	done  chan struct{} // closed when it has ended and all that it told is known

	mu sync.Mutex // guards story.events
}

// start starts a worker of a host, with its own way to the database.
func (e *episode) start(host string, flags ...string) *process {
	e.t.Helper()
	id := fmt.Sprintf("w%d", len(e.workers))
	p := &process{story: story{id: id, ttl: e.ttl}, done: make(chan struct{})}
	var err error
	p.proxy, err = servers.NewProxy(e.t.Context(), e.lane.addr())
	must(e.t, err)
	e.t.Cleanup(p.proxy.Close)
	self, err := os.Executable()
	must(e.t, err)
	args := append([]string{"-store", as(servers.WithHostPort(e.target, p.proxy.Addr()), id), "-id", id, "-ttl", e.ttl.String(),
		"-names", e.names, "-seed", fmt.Sprint(e.rng.Uint64())}, flags...)
	if e.lane.kind == "mysql" {
		args = append(args, "-writes") // see steps
	}
	p.cmd = exec.Command(self, args...)
	p.cmd.Dir = e.dir
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + e.dir, "USER=ana", mark + e.dir, "FAULTS_ROLE=worker", "XDG_RUNTIME_DIR=" + e.host(host)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	p.cmd.Stderr = &p.said
	p.input, err = p.cmd.StdinPipe()
	must(e.t, err)
	out, err := p.cmd.StdoutPipe()
	must(e.t, err)
	must(e.t, p.cmd.Start())
	e.workers = append(e.workers, p)
	e.note("%s is process %d on host %s %v", id, p.cmd.Process.Pid, host, flags)
	go func() {
		defer close(p.done)
		p.listen(out)
		p.cmd.Wait()
	}()
	e.t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
	})
	return p
}

// as is a URL for a user or program of that name.
func as(target, name string) string {
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

func (p *process) listen(out io.Reader) {
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // what was cut short by a kill was not told
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			fmt.Fprintf(&p.said, "%q: %v\n", line, err)
			continue
		}
		p.mu.Lock()
		p.events = append(p.events, e)
		p.mu.Unlock()
	}
}

// told is a copy of its events so far.
func (p *process) told() []event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

// has says whether it told of something after an instant.
func (p *process) has(what string, after int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.events) - 1; i >= 0 && p.events[i].At > after; i-- {
		if p.events[i].What == what {
			return true
		}
	}
	return false
}

func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.done:
	default:
		p.cmd.Process.Signal(sig)
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill is SIGKILL.
func (e *episode) kill(p *process) {
	p.killed = life.Now()
	p.signal(syscall.SIGKILL)
	<-p.done
	e.note("killed %s", p.id)
}

// hold stops a process for that long.
func (e *episode) stop(p *process, d time.Duration) {
	from := life.Now()
	p.signal(syscall.SIGSTOP)
	e.note("stopped %s", p.id)
	time.Sleep(d)
	e.resume(p, from)
}

func (e *episode) resume(p *process, from int64) {
	p.signal(syscall.SIGCONT)
	p.stops = append(p.stops, [2]int64{from, life.Now()})
	e.note("continued %s", p.id)
}

// state is what /proc says of a process: T stands still; 0: gone.
func state(pid int) byte {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := bytes.LastIndex(text, []byte(") ")); i >= 0 {
		return text[i+2]
	}
	return 0
}

const mark = "FAULTS_EPISODE="

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

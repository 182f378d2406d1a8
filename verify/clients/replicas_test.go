package clients

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/busy"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/serve/access"
)

var full = flag.Bool("full", false, "20 processes of each language that count to 50, else 4 to 8")

// Processes in Python and in TypeScript count in one file, in one line, through two replicas of
// holdfast serve. One of these is killed after a second and then each second, less often where the
// machine is busy. No count is lost, and no two hold at one time.
func TestReplicasKilled(t *testing.T) {
	t.Parallel()
	python, node := tool(t, "python3"), nodeOf20(t)
	database := servers.Postgres(t, nil).Database(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "holdfast")
	if out, err := exec.Command("go", "build", "-o", program, root+"/cmd/holdfast").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(program, "--store", database, "schema", "apply").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	secret, hash := access.NewSecret()
	line, err := access.TokenLine("counter", hash, "take", []string{"*"})
	if err != nil {
		t.Fatal(err)
	}
	file, tokens := filepath.Join(dir, "counter"), filepath.Join(dir, "tokens")
	for path, text := range map[string]string{file: "0", tokens: line + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := newBalancer(t)
	stop, stopped := make(chan struct{}), make(chan int)
	go b.kill(program, database, tokens, stop, stopped)

	processes, times := 4, 8
	if *full {
		processes, times = 20, 50
	}
	module := filepath.Join(typescript(t), "dist/holdfast.js")
	var all sync.WaitGroup
	var mu sync.Mutex
	var holds []hold
	for i := range 2 * processes {
		cmd := exec.CommandContext(t.Context(), python, root+"/clients/cases/count.py", b.url(), file, strconv.Itoa(times))
		if i%2 == 1 {
			cmd = exec.CommandContext(t.Context(), node, root+"/clients/cases/count.mjs", module, b.url(), file, strconv.Itoa(times))
		}
		cmd.Env = append(os.Environ(), "HOLDFAST_SECRET="+secret, "PYTHONPATH="+root+"/clients/python/src", "PYTHONDONTWRITEBYTECODE=1")
		all.Go(func() {
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%s: %v\n%s", cmd.Path, err, errs.String())
			}
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(string(out)) {
				var h hold
				if _, err := fmt.Sscan(line, &h.token, &h.began, &h.ended); err != nil {
					t.Errorf("%q: %v", line, err)
				}
				holds = append(holds, h)
			}
		})
	}
	all.Wait()
	close(stop)
	kills := <-stopped
	text, err := os.ReadFile(file)
	if got, want := string(text), strconv.Itoa(2*processes*times); err != nil || got != want {
		t.Errorf("counter: %s, want %s (%v)", got, want, err)
	}
	slices.SortFunc(holds, func(a, b hold) int { return int(a.token - b.token) })
	for i := 1; i < len(holds); i++ {
		if a, b := holds[i-1], holds[i]; a.token == b.token || b.began < a.ended {
			t.Errorf("exclusion: token %d from %.3f to %.3f, and token %d from %.3f", a.token, a.began, a.ended, b.token, b.began)
		}
	}
	if kills == 0 {
		t.Error("no replica was killed")
	}
	t.Logf("%d holds, %d lost; %d replicas killed", len(holds), len(holds)-2*processes*times, kills)
}

type hold struct {
	token        int64
	began, ended float64
}

// A balancer hands connections to whichever replica takes them.
type balancer struct {
	t        *testing.T
	listener net.Listener
	targets  [2]string
}

func newBalancer(t *testing.T) *balancer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	b := &balancer{t: t, listener: l}
	for i := range b.targets {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		b.targets[i] = free.Addr().String()
		free.Close()
	}
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go b.join(c, n)
		}
	}()
	return b
}

func (b *balancer) url() string { return "http://" + b.listener.Addr().String() }

func (b *balancer) join(c net.Conn, n int) {
	defer c.Close()
	for i := range b.targets {
		to, err := net.Dial("tcp", b.targets[(n+i)%2])
		if err != nil {
			continue
		}
		go func() { io.Copy(to, c); to.Close() }()
		io.Copy(c, to)
		to.Close()
		return
	}
}

// kill keeps two replicas running and kills one of them now and then, in turn, until stop.
func (b *balancer) kill(program, database, tokens string, stop chan struct{}, stopped chan int) {
	var replicas [2]*exec.Cmd
	start := func(i int) {
		c := exec.Command(program, "--store", database, "serve", "--listen", b.targets[i], "--socket", "-", "--tokens", tokens, "--log", "none", "--no-page")
		errs, err := c.StderrPipe()
		if err != nil {
			b.t.Error(err)
			return
		}
		if err := c.Start(); err != nil {
			b.t.Error(err)
			return
		}
		replicas[i] = c
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			if strings.Contains(lines.Text(), b.targets[i]) {
				go io.Copy(io.Discard, errs)
				return
			}
		}
		b.t.Error("a replica does not start")
	}
	start(0)
	start(1)
	kills := 0
	wait := time.Second // on a busy machine, too: before the work is done
	for n := 0; ; n = 1 - n {
		select {
		case <-time.After(wait):
			wait = busy.Times(time.Second)
			replicas[n].Process.Kill()
			replicas[n].Wait()
			kills++
			start(n)
		case <-stop:
			for _, c := range replicas {
				c.Process.Kill()
				c.Wait()
			}
			stopped <- kills
			return
		}
	}
}

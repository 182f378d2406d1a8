//go:build linux

package story

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// A Process is a worker that runs.
type Process struct {
	Story
	PID   int
	cmd   *exec.Cmd
	input io.Closer
	said  bytes.Buffer  // on standard error
	done  chan struct{} // closed when it has ended and all that it told is known

	mu sync.Mutex // guards Story.Events
}

// Start starts a worker by a command, which dies with this process.
func Start(cmd *exec.Cmd, id string, ttl time.Duration) (*Process, error) {
	p := &Process{Story: Story{ID: id, TTL: ttl}, cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	cmd.Stderr = &p.said
	var err error
	if p.input, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.PID = cmd.Process.Pid
	go func() {
		defer close(p.done)
		p.listen(out)
		cmd.Wait()
	}()
	return p, nil
}

func (p *Process) listen(out io.Reader) {
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // what was cut short by a kill was not told
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			fmt.Fprintf(&p.said, "%q: %v\n", line, err)
			continue
		}
		p.mu.Lock()
		p.Events = append(p.Events, e)
		p.mu.Unlock()
	}
}

// Told is a copy of its events so far.
func (p *Process) Told() []Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.Events)
}

// Has says whether it told of something after an instant.
func (p *Process) Has(what string, after int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.Events) - 1; i >= 0 && p.Events[i].At > after; i-- {
		if p.Events[i].What == what {
			return true
		}
	}
	return false
}

// Stories are those of its sessions.
func (p *Process) Stories() []*Story {
	byClient := make(map[int]*Story)
	for _, e := range p.Told() {
		s := byClient[e.Client]
		if s == nil {
			s = &Story{ID: p.ID, TTL: p.TTL, Killed: p.Killed, Stops: p.Stops, Sleeps: p.Sleeps, Broken: p.Broken, Slowest: p.Slowest, Fastest: p.Fastest}
			if e.Client > 0 {
				s.ID = fmt.Sprintf("%s.%d", p.ID, e.Client)
			}
			byClient[e.Client] = s
		}
		s.Events = append(s.Events, e)
	}
	if len(byClient) == 0 {
		return []*Story{&p.Story}
	}
	return slices.SortedFunc(maps.Values(byClient), func(a, b *Story) int { return cmp.Compare(a.ID, b.ID) })
}

// End tells it to end.
func (p *Process) End() { p.input.Close() }

// Ended says whether it has, and all that it told is known.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Said is what it wrote to standard error. It must have ended.
func (p *Process) Said() string { return strings.TrimSpace(p.said.String()) }

func (p *Process) signal(sig syscall.Signal) {
	if !p.Ended() {
		p.cmd.Process.Signal(sig)
	}
}

// Destroy ends it if it has not ended.
func (p *Process) Destroy() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// Kill is SIGKILL, as a part of the story.
func (p *Process) Kill() {
	p.Shoot()
	p.Destroy()
}

// Shoot is SIGKILL without waiting for the end, which may have to wait for a file
// server.
func (p *Process) Shoot() {
	p.Killed = life.Now()
	p.signal(syscall.SIGKILL)
}

// Stop stops it for that long.
func (p *Process) Stop(d time.Duration) {
	from := life.Now()
	p.signal(syscall.SIGSTOP)
	time.Sleep(d)
	p.Resume(from)
}

// Resume continues a process that has stood still since then.
func (p *Process) Resume(from int64) {
	p.signal(syscall.SIGCONT)
	p.Stops = append(p.Stops, [2]int64{from, life.Now()})
}

// Rates says that its clock ran at a rate for a while, in millionths of true time.
func (p *Process) Rates(rate int64) {
	if p.Slowest == 0 {
		p.Slowest, p.Fastest = right, right
	}
	p.Slowest, p.Fastest = min(p.Slowest, rate), max(p.Fastest, rate)
}

// State is what /proc says of it: T stands still; 0: gone.
func (p *Process) State() byte {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if i := bytes.LastIndex(text, []byte(") ")); i >= 0 {
		return text[i+2]
	}
	return 0
}

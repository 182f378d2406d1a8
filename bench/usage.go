package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// A usage is what operations have used, each.
type usage struct {
	Operations float64 `json:"operations"`
	Requests   float64 `json:"requests,omitempty"` // statements, or what else is a request of the store
	Log        float64 `json:"log,omitempty"`      // bytes of the write-ahead log
	Syncs      float64 `json:"syncs,omitempty"`    // fsyncs
	Client     float64 `json:"client,omitempty"`   // ms of processor time
	Server     float64 `json:"server,omitempty"`   // ms of processor time
}

// A reading is what was used until a moment.
type reading struct {
	at                   time.Time
	requests, log, syncs float64
	beats                float64 // heartbeats
	before, after        spent   // before and after it was read, which costs something as well
}

// What is spent is seconds of processor time.
type spent struct{ client, server float64 }

func (r reading) since(o reading) reading {
	return reading{
		requests: r.requests - o.requests, log: r.log - o.log, syncs: r.syncs - o.syncs,
		before: spent{r.before.client - o.after.client, r.before.server - o.after.server}, beats: r.beats - o.beats,
	}
}

// add counts operations and what they have used. Until they are divided, sums are kept.
func (u *usage) add(r reading, operations float64) {
	u.Operations += operations
	u.Requests += r.requests
	u.Log += r.log
	u.Syncs += r.syncs
	u.Client += r.before.client * 1e3
	u.Server += r.before.server * 1e3
}

// withoutDisk leaves out what a server counts late, where systems take turns on it.
func (r reading) withoutDisk() reading {
	r.log, r.syncs = 0, 0
	return r
}

// each is what one operation has used; nil if there was none.
func (u *usage) each() *usage {
	if u == nil || u.Operations == 0 {
		return nil
	}
	n := u.Operations
	return &usage{n, u.Requests / n, u.Log / n, u.Syncs / n, u.Client / n, u.Server / n}
}

// read tells what a system has used until now: its server, and its clients, which are this process
// if no players are named.
func (b *bench) read(s *system, l locker, players ...*player) (r reading, err error) {
	server := b.servers[s.store]
	r.before = spentBy(server, players)
	switch c, counts := l.(countingLocker); {
	case server.requests != nil:
		r.requests, err = server.requests(b.ctx)
	case counts:
		r.requests = c.requests()
	}
	if err == nil && server.written != nil {
		r.log, r.syncs, err = server.written(b.ctx)
	}
	r.after = spentBy(server, players)
	r.at = time.Now()
	return r, err
}

func spentBy(server *server, players []*player) spent {
	if len(players) == 0 { // this process, without what it takes to find out
		before := cpuTime()
		s := spent{server: processorTime(server.pids...)}
		own.Add(int64(cpuTime() - before))
		s.client = (cpuTime() - time.Duration(own.Load())).Seconds()
		return s
	}
	var pids []int
	for _, p := range players {
		pids = append(pids, p.cmd.Process.Pid)
	}
	return spent{processorTime(pids...), processorTime(server.pids...)}
}

// own is the processor time that reading has cost this process, in ns.
var own atomic.Int64

// processorTime is how many seconds of processors processes and all that descends from them have
// used; 0 where the kernel does not tell.
func processorTime(roots ...int) float64 {
	if len(roots) == 0 {
		return 0
	}
	type process struct {
		parent int
		ticks  float64
	}
	all := map[int]process{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, _ := os.ReadFile(name)
		end := bytes.LastIndexByte(text, ')')
		if end < 0 {
			continue
		}
		f := bytes.Fields(text[end+1:]) // from the state on, the third field of proc(5)
		if len(f) < 15 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		parent, _ := strconv.Atoi(string(f[1]))
		p := process{parent: parent}
		for _, field := range f[11:15] { // its own time, and that of children who have ended
			ticks, _ := strconv.ParseFloat(string(field), 64)
			p.ticks += ticks
		}
		all[pid] = p
	}
	sum := 0.0
	for pid, p := range all {
		for at := pid; at > 1; at = all[at].parent {
			if slices.Contains(roots, at) {
				sum += p.ticks
				break
			}
		}
	}
	return sum / 100 // USER_HZ
}

// children are the processes that this one has started and that run.
func children() (pids []int) {
	text, _ := filepath.Glob("/proc/self/task/*/children")
	for _, name := range text {
		list, _ := os.ReadFile(name)
		for f := range bytes.FieldsSeq(list) {
			pid, _ := strconv.Atoi(string(f))
			pids = append(pids, pid)
		}
	}
	return pids
}

// A neighbourhood is what else goes on on the machine while something is measured.
type neighbourhood struct {
	b     *bench
	began time.Time
	used  float64
}

func (b *bench) neighbours() neighbourhood {
	return neighbourhood{b, time.Now(), b.othersTime()}
}

// othersTime is the processor time of all that is not measured, so far.
func (b *bench) othersTime() float64 {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := bytes.Cut(text, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 9 || string(f[0]) != "cpu" {
		return 0
	}
	ticks := 0.0
	for i, field := range f[1:9] {
		if i == 3 || i == 4 { // idle, or waiting for a disk
			continue
		}
		x, _ := strconv.ParseFloat(string(field), 64)
		ticks += x
	}
	own := processorTime(os.Getpid())
	if len(b.spinning) > 0 {
		own -= processorTime(b.spinning...)
	}
	return ticks/100 - own
}

// wanted is how many processors others have used since then.
func (n neighbourhood) wanted() float64 {
	return max(0, (n.b.othersTime()-n.used)/time.Since(n.began).Seconds())
}

// spin has n processes keep processors busy until it is called off.
func (b *bench) spin(n int) (callOff func(), err error) {
	ps, err := b.players(n, "spin", &system{}, options{})
	for _, p := range ps {
		b.spinning = append(b.spinning, p.cmd.Process.Pid)
	}
	return func() { dismiss(ps) }, err
}

// playSpin keeps a processor busy until the orders end.
func playSpin(_ *task, orders *bufio.Scanner) error {
	go func() {
		for x := uint64(0); ; x++ {
			runtime.KeepAlive(x)
		}
	}()
	tell("ready")
	orders.Scan()
	return orders.Err()
}

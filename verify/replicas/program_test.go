//go:build linux

package replicas

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/verify/overhttp"
	"github.com/holdfast-lock/holdfast/verify/stores"
)

const (
	roleEnv = "REPLICAS_ROLE"
	pulse   = 10 * time.Millisecond // between two times at which a program says what it believes
)

// The roles of a program. Each waits for a name, and holds it until its standard input has
// ended, and for a moment.
const (
	byPlain  = "plain"  // by HTTP, waits by PUT
	byStream = "stream" // by HTTP, waits by a stream
	byGo     = "go"     // by the library
	byRun    = "run"    // under holdfast run
	working  = "working"
)

// work is a program in a role. It says "TOKEN MONOTONIC" again and again while it believes that it
// holds, and at its end or when something is lost a word.
func work(role string, args []string) error {
	base, secret, target, name := args[0], args[1], args[2], args[3]
	ms, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	ttl := time.Duration(ms) * time.Millisecond
	eof := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(eof)
	}()
	end := func() <-chan struct{} { // of a hold that begins now
		c := make(chan struct{})
		go func() {
			time.Sleep(10 * pulse)
			<-eof
			close(c)
		}()
		return c
	}
	switch role {
	case byPlain, byStream:
		return byHTTP(&overhttp.Client{Base: base, Secret: secret, TTL: ttl}, name, role == byStream, end)
	case byGo:
		return byLibrary(target, name, ttl, end)
	}
	token, err := strconv.ParseInt(os.Getenv("HOLDFAST_TOKEN"), 10, 64)
	if err != nil {
		return err
	}
	for over, ends := false, end(); !over; {
		fmt.Println(token, monotonic())
		select {
		case <-ends:
			over = true
		case <-time.After(pulse):
		}
	}
	fmt.Println("done")
	return nil
}

func byHTTP(c *overhttp.Client, name string, stream bool, end func() <-chan struct{}) error {
	var mu sync.Mutex
	var token int64
	var deadline time.Time
	say := func() {
		if now := monotonic(); time.Now().Before(deadline) {
			fmt.Println(token, now)
		}
	}
	c.Believes = func(t int64, d time.Time) {
		mu.Lock()
		defer mu.Unlock()
		say() // to the last moment
		token, deadline = t, d
		say()
	}
	go func() {
		for range time.Tick(pulse) {
			mu.Lock()
			say()
			mu.Unlock()
		}
	}()
	for ctx := context.Background(); ; {
		grant, err := c.Take(ctx, overhttp.NewID(), overhttp.Request{Names: []string{name}, Wait: time.Minute, ByStream: stream})
		switch {
		case errors.Is(err, overhttp.ErrOver):
			fmt.Println("lapsed")
			continue
		case err != nil:
			return err
		}
		switch b, believed := c.Keep(ctx, grant, end()); {
		case !believed:
			fmt.Println("late")
			continue
		case b.Lost != "":
			fmt.Println("lost:", b.Lost)
		default:
			fmt.Println("done")
		}
		return nil
	}
}

func byLibrary(target, name string, ttl time.Duration, end func() <-chan struct{}) error {
	ctx := context.Background()
	store, err := stores.Open(ctx, target)
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := holdfast.New(store, &holdfast.Options{TTL: ttl})
	if err != nil {
		return err
	}
	defer client.Close()
	lock, err := client.Acquire(ctx, name)
	if err != nil {
		return err
	}
	for ends := end(); ; {
		now := monotonic()
		if err := lock.Err(); err != nil {
			fmt.Println("lost:", err)
			return nil
		}
		fmt.Println(lock.Token(), now)
		select {
		case <-ends:
			if err := lock.Release(ctx); err != nil {
				return err
			}
			fmt.Println("done")
			return nil
		case <-time.After(pulse):
		}
	}
}

// monotonic is a clock that all processes of this host share.
func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// began and its reading tie that clock to the time of this process.
var began, beganMonotonic = time.Now(), monotonic()

// A program is a process in a role.
type program struct {
	role    string
	cmd     *exec.Cmd
	stdin   io.Closer
	ended   chan struct{}
	beliefs []belief // read them when it has ended, as the words
	words   []string
	stderr  strings.Builder
	spoiled bool // what it was put through may cost it its place or its lock
}

// start starts a program that wants a name.
func (w *world) start(t *testing.T, role, name string) *program {
	t.Helper()
	args := []string{w.balancer.url, w.secret, w.target, name, strconv.FormatInt(w.ttl.Milliseconds(), 10)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{role: role, cmd: exec.Command(self, args...), ended: make(chan struct{})}
	if role == byRun {
		p.cmd = exec.Command(holdfastPath, append([]string{"--store", w.target, "run", "-q", "--ttl", w.ttl.String(), name, "--", self}, args...)...)
		role = working
	}
	p.cmd.Env = append(w.env(), roleEnv+"="+role)
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = in
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	go func() {
		defer close(p.ended)
		defer out.Close()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.hear(name, lines.Text())
		}
		p.cmd.Wait()
	}()
	return p
}

func (p *program) hear(name, line string) {
	var token, at int64
	if _, err := fmt.Sscan(line, &token, &at); err != nil {
		p.words = append(p.words, line)
		return
	}
	when := began.Add(time.Duration(at - beganMonotonic))
	if n := len(p.beliefs); n == 0 || p.beliefs[n-1].token != token {
		p.beliefs = append(p.beliefs, belief{name: name, token: token, Belief: overhttp.Belief{Begin: when}})
	}
	p.beliefs[len(p.beliefs)-1].Stop = when
}

func (p *program) signal(s os.Signal) { p.cmd.Process.Signal(s) }

// done reports whether it had its lock, gave it back, and lost nothing before.
func (p *program) done() bool {
	return len(p.words) == 1 && p.words[0] == "done" && len(p.beliefs) == 1
}

//go:build linux

// Package janusgraph drives JanusGraph's own locker, unmodified and in a process
// of its own, for tests that have it and ours lock the same rows.
package janusgraph

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lock/holdfast/internal/servers"
)

//go:embed Locker.java
var source []byte

// Program is the driver, compiled.
type Program struct {
	java, classpath string
}

// Build compiles the driver into a directory. Where Java or Maven is missing, the
// error is a servers.ErrMissing that says what to install.
func Build(ctx context.Context, dir string) (*Program, error) {
	java, _, err := servers.Java17()
	if err != nil {
		return nil, err
	}
	javac := filepath.Join(filepath.Dir(java), "javac")
	if _, err := os.Stat(javac); err != nil {
		return nil, fmt.Errorf("the compiler of Java is %w: apt-get install openjdk-17-jdk-headless", servers.ErrMissing)
	}
	lib, err := servers.Jars(ctx, servers.JanusGraphJars)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "Locker.java")
	if err := os.WriteFile(file, source, 0o644); err != nil {
		return nil, err
	}
	jars := filepath.Join(lib, "*")
	if out, err := exec.CommandContext(ctx, javac, "-nowarn", "-d", dir, "-cp", jars, file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("javac: %w\n%s", err, out)
	}
	return &Program{java, dir + ":" + jars}, nil
}

// Settings are those of JanusGraph; the zero value of each field is JanusGraph's
// default, except that Rid is needed.
type Settings struct {
	Rid     string        // graph.unique-instance-id
	Unit    string        // graph.timestamps: NANO, MICRO or MILLI; MICRO
	Wait    time.Duration // storage.lock.wait-time: 100 ms
	Expire  time.Duration // storage.lock.expiry-time: 5 min
	Retries int           // storage.lock.retries: 3
	Clean   bool          // storage.lock.clean-expired
	Table   string        // edgestore_lock_
}

// A Locker is a process with JanusGraph's locker and one transaction.
type Locker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

// Start starts a locker on the keyspace of a URL, cassandra://HOST,HOST:PORT/KEYSPACE,
// and returns when it is ready. If there is no table yet the locker makes it: let
// one be ready before the next is started. It ends with this process.
func (p *Program) Start(ctx context.Context, target string, s Settings) (*Locker, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	i := strings.LastIndexByte(u.Host, ':')
	if i < 0 {
		return nil, fmt.Errorf("%s has no port", target)
	}
	or := func(value, otherwise string) string {
		if value == "" || value == "0" {
			return otherwise
		}
		return value
	}
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	l := &Locker{cmd: exec.Command(p.java, "-Xmx96m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", p.classpath, "LockerMain",
		u.Host[:i], u.Host[i+1:], "datacenter1", strings.Trim(u.Path, "/"), or(s.Table, "edgestore_lock_"), s.Rid, or(s.Unit, "MICRO"),
		or(ms(s.Wait), "100"), or(ms(s.Expire), "300000"), or(strconv.Itoa(s.Retries), "3"), strconv.FormatBool(s.Clean))}
	l.cmd.Stderr = &l.stderr
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.out = bufio.NewReader(out)
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { l.cmd.Process.Kill() })()
	if line, err := l.out.ReadString('\n'); line != "ready\n" {
		l.Kill()
		return nil, fmt.Errorf("JanusGraph's locker does not start: %w\n%s", errors.Join(err, ctx.Err()), &l.stderr)
	}
	return l, nil
}

// A Span is when a call was made and when it was over, on the kernel's monotonic
// clock, as Now tells it.
type Span struct{ Began, Ended time.Duration }

// Now is the kernel's monotonic clock, the same for all processes.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// A Failure is what a call of JanusGraph's locker has thrown.
type Failure struct{ Class, Message string }

func (f *Failure) Error() string { return f.Message }

// Write writes a claim, in the transaction that is open or a new one. It, Check,
// Lock and Delete return a *Failure if JanusGraph's locker has thrown something.
func (l *Locker) Write(key, column []byte) (Span, error) {
	return l.call(fmt.Sprintf("write %x %x", key, column))
}

// Check waits and checks the claims of the transaction.
func (l *Locker) Check() (Span, error) { return l.call("check") }

// Lock is Write and Check, and Delete if either fails: without an error the lock
// is held from Span.Ended on.
func (l *Locker) Lock(key, column []byte) (Span, error) {
	return l.call(fmt.Sprintf("lock %x %x", key, column))
}

// Delete gives the locks of the transaction back and ends it: they are held up to
// Span.Began.
func (l *Locker) Delete() (Span, error) { return l.call("delete") }

func (l *Locker) call(line string) (s Span, err error) {
	if _, err := io.WriteString(l.in, line+"\n"); err != nil {
		return s, err
	}
	answer, err := l.out.ReadString('\n')
	if err != nil {
		return s, fmt.Errorf("%s: %w\n%s", line, err, &l.stderr)
	}
	parts := strings.SplitN(strings.TrimSuffix(answer, "\n"), " ", 5)
	if len(parts) < 3 {
		return s, fmt.Errorf("%s was answered %q", line, answer)
	}
	began, err1 := strconv.ParseInt(parts[1], 10, 64)
	ended, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return s, err
	}
	s = Span{time.Duration(began), time.Duration(ended)}
	if len(parts) == 5 {
		return s, &Failure{Class: parts[3], Message: parts[4]}
	}
	return s, nil
}

// Close ends the process, in order.
func (l *Locker) Close() error {
	l.in.Close()
	return l.cmd.Wait()
}

// Kill ends the process with SIGKILL; what it had claimed stays.
func (l *Locker) Kill() {
	l.cmd.Process.Kill()
	l.cmd.Wait()
}

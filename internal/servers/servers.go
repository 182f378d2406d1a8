// Package servers starts real database servers for tests and benchmarks: on
// loopback ports of their own, in directories of their own, as durable as in
// production, and gone when the process that started them is, however it ends.
package servers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// ErrMissing is in the error of starting a server that is not installed.
var ErrMissing = errors.New("not installed")

// errNotOwn is the error of harming a server that was pointed at.
var errNotOwn = errors.New("this server was not started here")

// patience is how long a server may take to start or to end.
const patience = time.Minute

// A Server is a database server of our own, or one that was pointed at.
//
// It has written to disk what it has acknowledged, unless its Settings say
// otherwise.
type Server struct {
	Name string // as it says itself: "PostgreSQL 15.18"
	Dir  string // its data are in data, its output is in log
	Port int
	URL  string
	Own  bool // if not, it was pointed at: only Name, URL and Database may be used

	argv   []string
	env    []string
	as     *account
	quit   os.Signal                                 // asks it to end
	ask    func(ctx context.Context) (string, error) // returns its name, if it answers
	behind *Server                                   // whose databases a PgBouncer serves
	front  *Proxy                                    // through which it is reached; nil: it is reached directly
	temp   bool                                      // Dir is removed with it
	fake   bool

	mu      sync.Mutex // held while it starts or ends
	main    *os.Process
	done    chan struct{} // closed when main has ended
	stopped bool

	spares  []string // databases that are empty
	gateway string   // of an emulator that was pointed at

	database func(testing.TB) string // is Database, where that does not use SQL
}

// Options say how a server is started.
type Options struct {
	Settings []string // lines of its configuration, "max_connections=400"; the last one counts

	// Dir is where the server lives; if one has lived there before, its data are used.
	// Stop leaves the directory. "": a temporary directory.
	// A server that refuses root must be able to reach it as its own user.
	Dir string

	Faketime bool // SetClock works; slows it down
	Cancels  bool // of a PgBouncer: it gets requests to cancel statements, see StartPgBouncer
}

// prepare makes the directory of a server and chooses its port.
func prepare(kind string, opts *Options, as *account) (s *Server, fresh bool, err error) {
	if opts == nil {
		opts = &Options{}
	}
	s = &Server{
		Dir: opts.Dir, Own: true, as: as, temp: opts.Dir == "",
		env: []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/nonexistent"},
	}
	if s.temp {
		if s.Dir, err = tempDir(kind); err != nil {
			return nil, false, err
		}
	}
	if err = os.MkdirAll(s.Dir, 0o700); err == nil {
		// Its processes are recognized by their working directory.
		s.Dir, err = filepath.EvalSymlinks(s.Dir)
	}
	if err == nil {
		if err = os.Mkdir(s.data(), 0o700); errors.Is(err, os.ErrExist) {
			err = nil
		} else {
			fresh = true
		}
	}
	if err == nil {
		s.Port, err = freePort()
	}
	if err == nil && opts.Faketime {
		s.fake = true
		err = s.faketime()
	}
	if err == nil && as != nil {
		err = errors.Join(os.Chown(s.Dir, as.uid, as.gid), os.Chown(s.data(), as.uid, as.gid))
	}
	if err != nil {
		s.clear()
		return nil, false, err
	}
	return s, fresh, nil
}

func (s *Server) data() string         { return filepath.Join(s.Dir, "data") }
func (s *Server) file(n string) string { return filepath.Join(s.Dir, n) }
func (s *Server) addr() string         { return "127.0.0.1:" + strconv.Itoa(s.Port) }

func (s *Server) clear() error {
	if !s.temp {
		return nil
	}
	forget(s.Dir)
	return os.RemoveAll(s.Dir)
}

// setUp runs a program that makes the data of a server. Where HOLDFAST_TEST_TEMPLATES names a
// directory, it keeps a copy there, and copies that for the next server of the same kind: to make
// the data of a PostgreSQL takes over a second of a processor.
func (s *Server) setUp(ctx context.Context, argv ...string) error {
	template := ""
	if dir := os.Getenv("HOLDFAST_TEST_TEMPLATES"); dir != "" {
		how := strings.ReplaceAll(strings.Join(argv, "\x00"), s.Dir, "")
		template = filepath.Join(dir, fmt.Sprintf("%x-%s", sha256.Sum224([]byte(how)), filepath.Base(argv[0])))
	}
	err := s.makeData(ctx, template, argv)
	if err != nil {
		err = errors.Join(err, s.clear())
	}
	return err
}

// makeData makes the data of a server, or copies them from a template of that name.
func (s *Server) makeData(ctx context.Context, template string, argv []string) error {
	if template != "" {
		if _, err := os.Stat(template); err == nil {
			_, err = s.run(ctx, "cp", "-a", template+"/.", s.data())
			return err
		}
	}
	if _, err := s.run(ctx, argv...); err != nil || template == "" {
		return err
	}
	// Made beside it, so that nobody copies a half, and not kept if another was faster.
	made := fmt.Sprintf("%s.%d-%d", template, os.Getpid(), s.Port)
	if _, err := s.run(ctx, "cp", "-a", s.data(), made); err != nil || os.Rename(made, template) != nil {
		os.RemoveAll(made)
	}
	return nil
}

// open starts a server for the first time.
func (s *Server) open(ctx context.Context) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.clear())
	}
	return s, nil
}

// start starts the server and returns when it answers.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	log, err := os.OpenFile(s.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.data(), s.env, log, log
	if err := start(cmd, s.as); err != nil {
		return err
	}
	done := make(chan struct{})
	s.main, s.done = cmd.Process, done
	go func() {
		cmd.Wait()
		close(done)
	}()
	for {
		name, err := s.ask(ctx)
		switch {
		case isClosed(done):
			return errors.Join(fmt.Errorf("%s: %v\n%s", s.argv[0], cmd.ProcessState, s.Log()), s.kill())
		case err == nil:
			if s.Name == "" {
				s.Name = name
			}
			return nil
		}
		select {
		case <-done:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not answer: %w\n%s", s.argv[0], err, s.Log()), s.kill())
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Log is the end of what the server has written to its log.
func (s *Server) Log() string {
	b, _ := os.ReadFile(s.file("log"))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// kill ends every process of the server and waits until they are gone.
func (s *Server) kill() error {
	if s.main == nil {
		return nil
	}
	s.main.Kill() // first, so that it does not mourn its children
	if err := signalAll(s.data(), kill); err != nil {
		return err
	}
	<-s.done
	return nil
}

// owned runs f on a server of our own.
func (s *Server) owned(f func() error) error {
	if !s.Own {
		return errNotOwn
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("this server was stopped for good")
	}
	return f()
}

// Stop ends the server, by force, and removes its temporary directory. A second
// Stop does nothing.
func (s *Server) Stop() error {
	if !s.Own {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	if err := s.kill(); err != nil {
		return err
	}
	s.stopped = true
	if s.front != nil {
		s.front.Close()
	}
	return s.clear()
}

// Kill sends SIGKILL to every process of the server and waits until they are gone.
func (s *Server) Kill() error { return s.owned(s.kill) }

// Restart starts the server again over the same data and on the same port, and
// returns when it answers. If it runs, it is first asked to end.
func (s *Server) Restart(ctx context.Context) error {
	return s.owned(func() error {
		if !isClosed(s.done) {
			if err := signalAll(s.data(), thaw); err != nil {
				return err
			}
			s.main.Signal(s.quit)
			select {
			case <-s.done:
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(patience):
			}
		}
		// What it leaves behind would be in the way of the next.
		if err := s.kill(); err != nil {
			return err
		}
		err := s.start(ctx)
		for i := 0; i < 2 && err != nil && ctx.Err() == nil; i++ {
			time.Sleep(300 * time.Millisecond)
			err = s.start(ctx)
		}
		return err
	})
}

// Freeze stops every process of the server, as SIGSTOP does: connections stay
// and nothing answers, until Thaw.
func (s *Server) Freeze() error { return s.owned(func() error { return signalAll(s.data(), freeze) }) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() error { return s.owned(func() error { return signalAll(s.data(), thaw) }) }

// SetClock sets the clock of a server with Faketime ahead of the machine's by
// offset, at once. Its clock for durations does not change.
func (s *Server) SetClock(offset time.Duration) error {
	return s.owned(func() error {
		if !s.fake {
			return errors.New("this server was started without Faketime")
		}
		next := s.file("clock.next")
		err := os.WriteFile(next, fmt.Appendf(nil, "%+.6f\n", offset.Seconds()), 0o644)
		if err == nil {
			err = os.Rename(next, s.file("clock"))
		}
		return err
	})
}

// faketime prepares the environment of a server for SetClock.
func (s *Server) faketime() error {
	for _, pattern := range []string{"/usr/lib/*/faketime", "/usr/lib*/faketime", "/usr/local/lib/faketime"} {
		if libs, _ := filepath.Glob(pattern + "/libfaketimeMT.so.1"); len(libs) > 0 {
			s.env = append(s.env, "LD_PRELOAD="+libs[0], "FAKETIME_TIMESTAMP_FILE="+s.file("clock"),
				"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1")
			return os.WriteFile(s.file("clock"), []byte("+0\n"), 0o644)
		}
	}
	return missing("libfaketime", "faketime")
}

func missing(what, pkg string) error {
	return fmt.Errorf("%s is %w: apt-get install %s", what, ErrMissing, pkg)
}

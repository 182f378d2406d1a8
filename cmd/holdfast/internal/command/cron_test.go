//go:build linux

package command

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var full = flag.Bool("full", false, "the full number of rounds")

// Three hosts start a job of a tenth of a second by their crontabs, and their clocks differ by up
// to two seconds. With --at-least it runs once in each round.
func TestThreeHostsRunOnce(t *testing.T) {
	const atLeast, skew, poll = 4 * time.Second, 2 * time.Second, 500 * time.Millisecond
	rounds := 2
	if *full {
		rounds = 50
	}
	for _, shop := range shops[:3] {
		t.Run(shop.kind, func(t *testing.T) {
			t.Parallel()
			p := shop.place(t)
			for round := range rounds {
				began := time.Now()
				var hosts sync.WaitGroup
				for host := range 3 {
					at := time.Duration(host) * skew / 2
					if host == 1 {
						at = rand.N(skew)
					}
					hosts.Go(func() {
						time.Sleep(at)
						out, err := p.host(host).output("run", "-n", "-E", "0", "--at-least", atLeast.String(), "nightly", "--", "sh", "-c", "echo x >> runs; sleep 0.1")
						if err != nil {
							t.Errorf("round %d, host %d: %v: %s", round, host, err, out)
						}
					})
				}
				hosts.Wait()
				if n := p.runs("runs"); n != round+1 {
					t.Fatalf("after round %d the job ran %d times", round, n)
				}
				time.Sleep(time.Until(began.Add(atLeast + skew + poll)))
			}
		})
	}
}

// Killed with -9 in the middle, together with its guard, run leaves the name shut until its time
// is over, and not for longer: also on the same host, where a death is known at once.
func TestKilledWithAtLeast(t *testing.T) {
	const atLeast = 6 * time.Second
	for _, shop := range shops[:3] {
		t.Run(shop.kind, func(t *testing.T) {
			t.Parallel()
			p := shop.place(t)
			asked := time.Now()
			run := p.host(0).start("run", "-q", "--at-least", atLeast.String(), "nightly", "--", "sh", "-c", "echo x >> runs; exec sleep 100")
			p.await("the job runs", func() bool { return p.runs("runs") == 1 })
			began := time.Now()
			run.Process.Kill()
			for host := 0; time.Since(began) < 2*atLeast+10*time.Second; host = (host + 1) % 3 {
				started := time.Now()
				out, err := p.host(host).output("run", "-n", "nightly", "--", "true")
				ended := time.Now()
				var exit *exec.ExitError
				switch {
				case err == nil && ended.Sub(asked) < atLeast:
					t.Fatalf("host %d had it after %v", host, ended.Sub(asked))
				case err == nil && started.Sub(began) > atLeast+2*time.Second:
					t.Fatalf("host %d had it only after %v", host, started.Sub(began))
				case err == nil:
					return
				case !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "at least until"):
					t.Fatalf("host %d: %v: %s", host, err, out)
				}
				time.Sleep(100 * time.Millisecond)
			}
			t.Fatal("nobody got it")
		})
	}
}

// place is a place with a store of this kind.
func (s shop) place(t *testing.T) place {
	t.Helper()
	p := newPlace(t)
	switch {
	case s.of.Server != nil:
		p.store = s.of.Server(t, nil).Database(t)
		migrate(t, p.store)
	case s.kind == "dir":
		p.store = makeDirectory(t, filepath.Join(p.dir, "locks"))
	}
	return p
}

// host is the same place on one of several hosts: each has a runtime directory of its own.
func (p place) host(nr int) place {
	p.t.Helper()
	p.runtime = filepath.Join(p.dir, fmt.Sprint("host", nr))
	if err := os.MkdirAll(p.runtime, 0o700); err != nil {
		p.t.Error(err)
	}
	return p
}

// runs is how many lines a file has.
func (p place) runs(name string) int {
	text, _ := os.ReadFile(filepath.Join(p.dir, name))
	return bytes.Count(text, []byte("\n"))
}

// output runs holdfast and returns what it says.
func (p place) output(args ...string) (string, error) {
	c := p.command(args...)
	c.Stderr = nil
	out, err := c.CombinedOutput()
	return string(out), err
}

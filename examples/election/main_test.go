//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A candidate is a process that stands for election, and what it says.
type candidate struct {
	*exec.Cmd
	said chan string
}

func start(t *testing.T, program, dir string) *candidate {
	t.Helper()
	c := &candidate{exec.Command(program, "-dir", dir, "-lease", "1s"), make(chan string, 100)}
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.said <- lines.Text()
		}
		close(c.said)
	}()
	return c
}

// hears returns what follows a phrase, once the candidate has said it.
func (c *candidate) hears(t *testing.T, phrase string) (rest string) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case line, ok := <-c.said:
			if !ok {
				t.Fatalf("it ended before it said %q", phrase)
			}
			if _, rest, ok = strings.Cut(line, phrase); ok {
				return rest
			}
		case <-timeout:
			t.Fatalf("it does not say %q", phrase)
		}
	}
}

// Of several that are started one leads; when it is killed, ended or stopped another
// one does, with a higher term; all of them know which.
func TestElection(t *testing.T) {
	program := filepath.Join(t.TempDir(), "election")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "shared")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	term := func(c *candidate) (n int64) {
		t.Helper()
		rest := c.hears(t, "I lead, term ")
		if _, err := fmt.Sscan(rest, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := start(t, program, dir)
	last := term(first)
	second := start(t, program, dir)
	second.hears(t, fmt.Sprintf("pid %d leads, term %d", first.Process.Pid, last))
	first.Process.Kill()
	next := term(second)
	if next <= last {
		t.Errorf("term %d follows %d", next, last)
	}
	third := start(t, program, dir)
	third.hears(t, fmt.Sprintf("pid %d leads, term %d", second.Process.Pid, next))
	second.Process.Signal(syscall.SIGSTOP)
	last, next = next, term(third)
	if next <= last {
		t.Errorf("term %d follows %d", next, last)
	}
	second.Process.Signal(syscall.SIGCONT)
	second.hears(t, "I lead no more: ")
	third.Process.Signal(syscall.SIGTERM)
	last, next = next, term(second)
	if next <= last {
		t.Errorf("term %d follows %d", next, last)
	}
	third.hears(t, "I lead no more: ")
	if err := third.Wait(); err != nil {
		t.Errorf("it was asked to end: %v", err)
	}
}

//go:build linux && portableguard

package command

import (
	"os/exec"
	"strings"
	"testing"
)

// On systems without Linux's means doctor says what run does not promise.
func TestPortableDoctor(t *testing.T) {
	out, err := exec.Command("holdfast", "doctor", "--store", "memory:").CombinedOutput()
	if want := "by their process group: what leaves"; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, without %q:\n%s", err, want, out)
	}
}

// A command that reads from the terminal gets its keys, and the terminal is the shell's again when
// the command stands still or has ended.
func TestPortableTerminal(t *testing.T) {
	s := newScreen(t)
	s.enter(`holdfast run x -- sh -c 'read a; echo "go""t $a"; echo "wai""ts"; exec cat'`)
	s.enter("line")
	s.expect("got line")
	s.expect("waits")
	s.press("\x1a")
	s.expect("Stopped")
	s.enter("fg")
	s.expect("holdfast run x")
	s.enter("again")
	s.expect("again")
	s.press("\x03")
	s.expect("$ ")
	s.enter(`read b; echo "ha""s $b"`)
	s.enter("terminal")
	s.expect("has terminal")

	// A shell's loop ends with a command that was interrupted.
	s.enter(`for i in 1 2; do holdfast run x -- sh -c 'echo "beg""un"; read a; echo "go""t $a"; exec sleep 1000'; done`)
	s.expect("begun")
	s.enter("more")
	s.expect("got more")
	s.press("\x03")
	s.expect("$ ")
	s.enter(`echo "en""ded $?"`)
	if text := s.expect("ended 130"); strings.Contains(text, "begun") {
		t.Errorf("the loop went on: %q", text)
	}
}

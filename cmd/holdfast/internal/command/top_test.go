//go:build linux

package command

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// At a terminal top follows what happens, breaks what is selected, and gives the terminal back.
func TestTop(t *testing.T) {
	s := newScreen(t)
	s.enter("stty -a >before; holdfast run --ttl 3 --reason nightly x -- sleep 1000 & echo \"rea\"\"dy\"")
	s.expect("ready")
	s.awaitHolder()
	s.enter(`holdfast top -d 0.1; echo "sta""tus $?"`)
	s.expect("\x1b[?1049h")
	s.expect("nightly")
	s.press("b")
	s.expect(`break "x" of ana@`)
	s.press("stuck\r")
	s.expect("Break it? [y/N] ")
	s.press("y")
	s.expect("broken: ")
	s.expect("0 held, 0 waiting")
	s.press("q")
	s.expect("\x1b[?1049l")
	s.expect("status 0")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		s.enter(`sh -c 'echo $$ >pid; exec holdfast top'; echo "sta""tus $?"`)
		s.expect("0 held")
		text, err := os.ReadFile(filepath.Join(s.dir, "pid"))
		pid, bad := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || bad != nil {
			t.Fatal(err, bad)
		}
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		s.expect("\x1b[?1049l")
		s.expect("status 0")
	}
	s.enter("stty -a >after; cmp before after && echo \"sa\"\"me\"")
	s.expect("same")
	s.enter(`holdfast top --once; holdfast top x | cat; echo "en""ded"`)
	if text := s.expect("ended"); strings.Contains(text, "\x1b[?1049h") {
		t.Errorf("without a terminal, or once, it takes the screen: %q", text)
	}
}

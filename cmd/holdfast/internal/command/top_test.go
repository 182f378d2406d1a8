//go:build linux

package command

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// The screen shows what fits, keeps the selected claim selected, and breaks it only after a
// reason and a yes.
func TestTopKeys(t *testing.T) {
	info := func(name, host string, held time.Duration) *holdfast.Info {
		return &holdfast.Info{Name: name, Holders: []holdfast.Claim{{ID: host + "-1", Name: name, Token: 1, Slots: 1, TTL: time.Minute,
			Granted: time.Now().Add(-held), Owner: holdfast.Owner{User: "ana", Host: host}}}}
	}
	rows := func() (rows []row) {
		for _, i := range []*holdfast.Info{info("a", "db1", time.Hour), info("b", "db2", 2*time.Hour), info("c", "db3", 3*time.Hour)} {
			rows = addRows(rows, i, &selection{})
		}
		return rows
	}
	broken := ""
	s := &top{sort: "name", store: "memory:", breakRow: func(r row, reason string) { broken += r.info.Name + " " + reason }}
	s.saw(rows())
	chosen := func() string {
		t.Helper()
		for _, line := range s.view(60, 10)[2:] {
			if strings.HasPrefix(line, "\x1b[7m") {
				return strings.Fields(strings.TrimPrefix(line, "\x1b[7m"))[0]
			}
		}
		return ""
	}
	for _, step := range []struct{ keys, want string }{
		{"", "a"}, {"k", "a"}, {"j", "b"}, {"\x1b[B\x1b[B", "c"}, {"\x1b[A", "b"}, {"s", "b"}, {"/db3\r", "c"}, {"/\x15\r", "c"}, {"kkk", "c"}, {"j", "b"},
		{"b\x1b", "b"}, {"b\r", "b"}, {"bwhy\rn", "b"},
	} {
		if s.press(step.keys) {
			t.Fatalf("%q ends it", step.keys)
		}
		if got := chosen(); got != step.want {
			t.Errorf("after %q %s is selected, want %s", step.keys, got, step.want)
		}
	}
	if broken != "" {
		t.Fatalf("broken without a yes: %s", broken)
	}
	s.press("bstuck\x7fk\r")
	if foot := s.view(200, 10)[9]; !strings.HasSuffix(foot, "Break it? [y/N] ") || !strings.Contains(foot, "ana@db2") {
		t.Errorf("it asks %q", foot)
	}
	if s.press("y"); broken != "b stuck" {
		t.Errorf("broken is %q", broken)
	}
	for _, size := range [][2]int{{60, 10}, {20, 4}, {10, 2}} {
		lines := s.view(size[0], size[1])
		if len(lines) > size[1] {
			t.Errorf("%d lines on a screen of %d", len(lines), size[1])
		}
		for _, line := range lines {
			if plain := strings.NewReplacer("\x1b[7m", "", "\x1b[0m", "").Replace(line); displayWidth(plain) > size[0] {
				t.Errorf("a line of %d on a screen of %d: %q", displayWidth(plain), size[0], line)
			}
		}
	}
	if !s.press("q") || !s.press("\x03") {
		t.Error("q and Ctrl-C do not end it")
	}
}

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

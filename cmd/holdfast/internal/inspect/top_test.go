//go:build linux

package inspect

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
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
			if plain := strings.NewReplacer("\x1b[7m", "", "\x1b[0m", "").Replace(line); cli.DisplayWidth(plain) > size[0] {
				t.Errorf("a line of %d on a screen of %d: %q", cli.DisplayWidth(plain), size[0], line)
			}
		}
	}
	if !s.press("q") || !s.press("\x03") {
		t.Error("q and Ctrl-C do not end it")
	}
}

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/verify/story"
)

func TestStoresOf(t *testing.T) {
	for list, want := range map[string]string{"": "", "all": strings.Join(chaosStores, " "), "mariadb": "mysql", "etcd,sqlite": "etcd sqlite", "redis": "", "etcd,": ""} {
		some, err := storesOf(list)
		if got := strings.Join(some, " "); got != want || (err == nil) != (want != "") {
			t.Errorf("--store %q: %v, %v; want %q", list, some, err, want)
		}
	}
}

// A history in which two held a lock at once is refused again, and drawn.
func TestJudgeAgain(t *testing.T) {
	at := func(ms int64, e story.Event) story.Event { e.At = ms * int64(time.Millisecond); return e }
	tale := func(id string, from, to, token int64) *story.Story {
		return &story.Story{ID: id, TTL: time.Second, Events: []story.Event{
			at(1, story.Event{What: story.Beats, Name: id, Sent: 1}), at(from-1, story.Event{What: story.Asks, ID: 1, Name: "x", Slots: 1}),
			at(from, story.Event{What: story.Granted, ID: 1, Name: "x", Slots: 1, Token: token}), at(to, story.Event{What: story.Ends, ID: 1, Name: "x"}), at(900, story.Event{What: story.Closed})}}
	}
	for from, want := range map[int64]int{200: 1, 301: 0} {
		path := filepath.Join(t.TempDir(), "one.jsonl")
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		h := &story.History{Title: "test", Stories: []*story.Story{tale("a", 10, 300, 5), tale("b", from, 400, 6)}}
		if err := h.Write(file, nil); err != nil {
			t.Fatal(err)
		}
		file.Close()
		if code := chaos([]string{"--judge", path}); code != want {
			t.Errorf("from %d: %d, want %d", from, code, want)
		}
		svg, _ := os.ReadFile(strings.Replace(path, ".jsonl", ".svg", 1))
		if marked := strings.Contains(string(svg), `class="clash"`); marked != (want == 1) {
			t.Errorf("from %d: marked %v", from, marked)
		}
	}
	for _, args := range [][]string{{}, {"--store", "x"}, {"--store", "sqlite", "--minutes", "0"}, {"--store", "sqlite", "more"}} {
		if code := chaos(args); code != 64 {
			t.Errorf("%q: %d, want 64", args, code)
		}
	}
}

func TestDisplay(t *testing.T) {
	d := newDisplay([]string{"etcd"}, 1)
	d.tell(`{"store":"etcd","fault":"a","begins":true}`)
	d.tell(`{"store":"etcd","fault":"b","begins":true}`)
	d.tell(`{"store":"etcd","files":["x"],"picture":"#"}`)
	d.tell(`{"store":"etcd","fault":"a","holds":7,"histories":3,"found":["C2: two"]}`)
	if d.episodes != 1 || d.holds != 7 || d.n != 3 || d.violations != 1 || len(d.running) != 1 || d.running[0] != "etcd: b" {
		t.Errorf("%+v", d)
	}
	d.end()
}

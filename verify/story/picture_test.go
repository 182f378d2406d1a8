//go:build linux

package story

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// A history that is read again is judged as it was, and its picture marks what
// overlapped.
func TestPicture(t *testing.T) {
	at := func(ms int64, e Event) Event { e.At = ms * int64(time.Millisecond); return e }
	tale := func(id string, from, to, token int64) *Story {
		return &Story{ID: id, TTL: time.Second, Events: []Event{
			at(1, Event{What: Beats, Name: "s" + id, Sent: int64(time.Millisecond)}),
			at(from-1, Event{What: Asks, ID: 1, Name: "x", Slots: 1}), at(from, Event{What: Granted, ID: 1, Name: "x", Slots: 1, Token: token}),
			at(to, Event{What: Ends, ID: 1, Name: "x"}), at(900, Event{What: Closed})}}
	}
	h := &History{Title: "two <at> once", Stories: []*Story{tale("a", 10, 300, 5), tale("b", 200, 400, 6)}, Rows: map[string]bool{"k": true},
		Faults: [][2]int64{{int64(100 * time.Millisecond), int64(250 * time.Millisecond)}}, Notes: []Note{{int64(100 * time.Millisecond), "cut off"}}}
	found := h.Judge()
	if !broken(found, "C2") {
		t.Fatalf("found %v", found)
	}
	var file bytes.Buffer
	if err := h.Write(&file, found); err != nil {
		t.Fatal(err)
	}
	again, then, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	if now := again.Judge(); len(now) != len(found) || len(then) != len(found) || now[0] != found[0] || then[0] != found[0] || !again.Rows["k"] {
		t.Errorf("judged again: %v; it said then %v, and now %v", now, then, found)
	}
	p := again.Picture(found)
	if p == nil {
		t.Fatal("no picture")
	}
	for _, want := range []string{`"x" was held at once by b/1 (token 6, exclusive) and a/1 (token 5, exclusive) for 100ms`, "!!!!", "~~~", "cut off"} {
		if !strings.Contains(p.Text(), want) {
			t.Errorf("no %q in\n%s", want, p.Text())
		}
	}
	var svg bytes.Buffer
	if err := p.SVG(&svg); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`class="clash"`, `class="fault"`, `class="hold"`, "two &lt;at&gt; once"} {
		if !strings.Contains(svg.String(), want) {
			t.Errorf("no %s in the picture", want)
		}
	}
	for d := xml.NewDecoder(&svg); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
	if h.Stories = h.Stories[:1]; h.Picture(h.Judge()) != nil {
		t.Error("a picture, and nothing is wrong")
	}
}

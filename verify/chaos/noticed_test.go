//go:build linux

package chaos

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/story"
)

func broken(found []check.Violation, rule string) bool {
	return slices.ContainsFunc(found, func(v check.Violation) bool { return v.Rule == rule })
}

// Real workers that break a promise are noticed: one that goes on believing when
// its window is over, and one that writes without the fence.
func TestNoticed(t *testing.T) {
	for _, c := range []struct {
		kind  string
		start func(testing.TB, *servers.Options) *servers.Server
	}{{"postgres", servers.Postgres}, {"mysql", servers.MySQL}} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			s := c.start(t, nil)
			must(t, account(t.Context(), s))
			l := &lane{kind: c.kind, server: s}
			noticed(t, l, "C2", []string{"-broken", "believes"}, func(e *episode, p *process) {
				e.await("it holds the lock", func() bool { return p.Has(story.Granted, 0) })
				p.proxy.Blackhole(true, true)
				e.sleep(3 * e.ttl)
				p.proxy.Blackhole(false, false)
			})
			noticed(t, l, "fence", []string{"-broken", "no fence", "-freeze", "transaction"}, func(e *episode, p *process) {
				from := life.Now()
				e.await("it stops itself", func() bool { return p.State() == 'T' })
				still := life.Now()
				e.await("somebody else has the lock", func() bool { return e.workers[0].Has(story.Granted, still) })
				e.resume(p, from)
			})
		})
	}
}

func noticed(t *testing.T, l *lane, rule string, flags []string, during func(e *episode, p *process)) {
	t.Helper()
	slow, err := life.Slowness()
	must(t, err)
	e := newEpisode(t, l, *seed)
	e.start("0", "-names", "one/x", "-lanes", "1")
	p := e.start("1", append([]string{"-names", "one/x", "-lanes", "1"}, flags...)...)
	p.Broken = true
	during(e, p)
	r := e.conclude(slow)
	if !broken(r.Found, rule) {
		t.Errorf("%v: found %v, want %s", flags, r.Found, rule)
		e.dump()
	}
	again(t, e.history, r.Found, rule)
}

// again has a history that was written and read judged as it was, and its picture
// show what is wrong.
func again(t *testing.T, h *story.History, found []check.Violation, rule string) {
	t.Helper()
	var file, svg bytes.Buffer
	must(t, h.Write(&file, found))
	h, then, err := story.Read(&file)
	must(t, err)
	if !slices.Equal(found, then) || !broken(h.Judge(), rule) {
		t.Errorf("judged again: %v, want as before: %v", h.Judge(), found)
	}
	p := h.Picture(found)
	if p == nil {
		t.Fatalf("there is no picture of %v", found)
	}
	must(t, p.SVG(&svg))
	if clash := strings.Contains(svg.String(), `class="clash"`); clash != (rule == "C2") || clash != strings.Contains(p.Text(), "!") {
		t.Errorf("two at once are marked: %v, want so only of C2:\n%s", clash, p.Text())
	}
}

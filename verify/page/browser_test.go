// Package page looks at the page of holdfast serve in a real Chromium: that it follows the store,
// can be used by keys alone, fits a narrow window, breaks what was seen, and says when it is old.
package page

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/serve/page"
)

// A tab is one of a real Chromium without a screen.
type tab struct {
	t   *testing.T
	ctx context.Context
}

// open starts a Chromium. Where there is none the test is skipped, aloud. The window has the
// size, and the palette, that is asked for.
func open(t *testing.T, width, height int, dark bool) *tab {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium here: the page is not looked at in a browser")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(width, height), chromedp.UserDataDir(t.TempDir()))
	for _, off := range []string{"quic", "background-networking", "component-update", "sync"} {
		opts = append(opts, chromedp.Flag("disable-"+off, true))
	}
	if dark {
		opts = append(opts, chromedp.Flag("blink-settings", "preferredColorScheme=0"))
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx, chromedp.WithLogf(t.Logf), chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(end)
	b := &tab{t, ctx}
	b.do(chromedp.Navigate("about:blank"))
	go func() { // what the page complains of, such as its own policy, is a fault
		for m, err := range chromedp.Console(ctx) {
			if err != nil {
				return
			}
			if text := fmt.Sprint(m); strings.Contains(text, "Security Policy") || strings.Contains(text, "Uncaught") {
				t.Error("the browser says:", text)
			}
		}
	}()
	return b
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) visit(url string) { b.t.Helper(); b.do(chromedp.Navigate(url)) }

func (b *tab) keys(keys string) { b.t.Helper(); b.do(chromedp.KeyEvent(keys)) }

// says is the value of an expression.
func (b *tab) says(expression string) string {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until an expression is true of a page whose script has begun. A page that is on its
// way has no answer yet.
func (b *tab) until(expression string) {
	b.t.Helper()
	ask := chromedp.Evaluate[string](`String(document.readyState === "complete" && Boolean(` + expression + `))`)
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		v, err := chromedp.Run(b.ctx, ask)
		if err == nil && v == "true" {
			return
		}
		if time.Since(start) > time.Minute {
			b.t.Fatalf("never true: %s (error %v)\nat %s:\n%s", expression, err, b.says("location"), b.shown())
		}
	}
}

// shown is the text of the page.
func (b *tab) shown() string { b.t.Helper(); return b.says("document.body.innerText") }

// keep writes a picture of the page where HOLDFAST_SCREENSHOTS says.
func (b *tab) keep(name string) {
	b.t.Helper()
	dir := os.Getenv("HOLDFAST_SCREENSHOTS")
	if dir == "" {
		dir = b.t.ArtifactDir()
	}
	shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), shot, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// everything may be done by this viewer.
var everything = page.Options{Store: "postgres://app@db.example/shop", Fence: "select holdfast_fence(:name, :token)", Viewer: func(*http.Request) page.Viewer {
	return page.Viewer{Name: "ana", Break: func(string) bool { return true }, Configure: true}
}}

// Each screen stands in both palettes and in narrower windows: its parts are there, nothing is
// wider than the window, and its pictures are kept to be looked at.
func TestScreens(t *testing.T) {
	opts := everything
	opts.Store = "sqlite:/home/anastasia/.local/state/holdfast/a_directory_with_a_long_name/holdfast.db"
	w := newTown(t, opts)
	w.inhabit()
	screens := []struct{ name, path, parts string }{
		{"locks", "/", ".stats b, table caption, th[aria-sort], tr .lease svg, .queue-dots, .state.detached"},
		{"lock", "/lock?name=deploy/shop/production", "h1.mono, .facts dd, pre.code b, ol.queue .pos, .time svg rect.now, .time svg rect.waited, .time svg rect.broken, .time svg text.note.died, a.danger, .time + .panel caption"},
		{"hosts", "/hosts", "table caption, tr .lease"},
		{"history", "/history", "table caption, .state.dead, .search input"},
		{"settings", "/settings", "label[for=ttl], #ttl"},
	}
	for _, look := range []struct {
		name  string
		width int
		dark  bool
	}{{"light", 1400, false}, {"dark", 1400, true}, {"middling", 1100, false}, {"narrow", 420, false}} {
		t.Run(look.name, func(t *testing.T) {
			b := open(t, look.width, 900, look.dark)
			for _, s := range screens {
				b.visit(w.page.URL + s.path)
				for part := range strings.SplitSeq(s.parts, ", ") {
					if b.says("document.querySelector("+fmt.Sprintf("%q", part)+") !== null") != "true" {
						t.Errorf("%s: no %s\n%s", s.name, part, b.shown())
					}
				}
				if over := b.says("document.documentElement.scrollWidth - window.innerWidth"); strings.TrimPrefix(over, "-") == over && over != "0" {
					t.Errorf("%s: %s pixels wider than the window", s.name, over)
				}
				if unnamed := b.says(`[...document.querySelectorAll("a, button, input:not([type=hidden])")].filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length`); unnamed != "0" {
					t.Errorf("%s: %s controls without a name for who does not see them", s.name, unnamed)
				}
				if levels := b.says(`document.querySelectorAll("h1").length`); levels != "1" {
					t.Errorf("%s: %s first headings, want 1", s.name, levels)
				}
				if bare := b.says(`[...document.querySelectorAll("table")].filter(t => !t.caption || !t.querySelector("th[scope]")).length`); bare != "0" {
					t.Errorf("%s: %s tables without a caption or scopes", s.name, bare)
				}
				dark := b.says("getComputedStyle(document.documentElement).colorScheme")
				if (dark == "dark") != look.dark {
					t.Errorf("%s: color scheme %q", s.name, dark)
				}
				b.keep(look.name + "-" + s.name)
			}
		})
	}
}

// The table follows the store without being loaded again, keeps the selected row, and says how
// old it is when the server has gone.
func TestFollows(t *testing.T) {
	w := newTown(t, everything)
	c, _ := w.client("ana", "db1", "backup", 7, 15*time.Second)
	first := w.holds(c, "a/first")
	w.holds(c, "b/second")
	b := open(t, 1400, 900, false)
	b.visit(w.page.URL + "/")
	b.until(`document.querySelectorAll("#rows tr").length === 2`)
	b.says(`window.sameDocument = 1`)
	b.keys("jj")
	b.until(`document.querySelector("tr.sel")?.textContent.includes("second")`)
	w.holds(c, "c/third")
	b.until(`document.querySelectorAll("#rows tr").length === 3`)
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelectorAll("#rows tr").length === 2`)
	if got := b.says(`document.querySelector("tr.sel")?.textContent.includes("second") + " " + window.sameDocument`); got != "true 1" {
		t.Errorf("selected row and document after two changes: %s", got)
	}
	b.until(`document.querySelector("#live").textContent === "live"`)
	w.look.Off.Store(true) // the server is there, and its store is not
	b.until(`document.querySelector(".problem")?.textContent.includes("does not answer")`)
	w.look.Off.Store(false)
	b.until(`document.querySelector(".problem") === null`)
	w.page.CloseClientConnections()
	w.page.Listener.Close()
	b.until(`document.querySelector("#live.stale")?.textContent.includes("old")`)
}

// By keys alone: from the list to a lock, to the question, to the break.
func TestKeys(t *testing.T) {
	w := newTown(t, everything)
	c, _ := w.client("ci", "runner-07", "deploy.py", 4711, 15*time.Second)
	l := w.holds(c, "deploy/shop/production")
	w.holds(c, "nightly")
	next, _ := w.client("ci", "runner-02", "deploy.py", 4712, 15*time.Second)
	w.waits(next, "deploy/shop/production")
	b := open(t, 1400, 900, false)
	b.visit(w.page.URL + "/")
	b.keys("?")
	b.until(`document.querySelector("dialog[open]")?.textContent.includes("break the lock")`)
	b.keys("\u001b")
	b.until(`document.querySelector("dialog") === null`)
	b.keys("/")
	b.says(`document.activeElement.value = ""`) // the driver types the character all the same
	b.keys("deploy\r")
	b.until(`location.search.includes("q=deploy") && document.querySelectorAll("#rows tr").length === 1`)
	b.keys("j")
	b.keys("\r")
	b.until(`document.querySelector("h1.mono")?.textContent === "deploy/shop/production"`)
	b.keys("b")
	b.until(`document.querySelector("dialog[open]")?.textContent.includes("Next is ci@runner-02")`)
	b.keep("break")
	if err := l.Err(); err != nil {
		t.Fatal("broken before it was confirmed:", err)
	}
	b.keys("hangs, ticket 815\r")
	select {
	case <-l.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("not broken:", b.shown())
	}
	if err := l.Err(); err == nil || !strings.Contains(err.Error(), "hangs, ticket 815") {
		t.Errorf("lost with %v, want the reason", err)
	}
	go l.Release(context.WithoutCancel(t.Context()))
	b.until(`document.querySelector(".holder")?.textContent.includes("ci@runner-02")`)
	b.until(`/broken by ana@\S+: hangs, ticket 815/.test(document.body.innerText)`)
}

// Ten thousand locks: the page is there, and what changed is exchanged, in no time that a person
// would notice.
func TestTenThousand(t *testing.T) {
	w := newTown(t, everything)
	c, _ := w.client("batch", "node-1", "import", 1, 60*time.Second)
	done := make(chan error)
	for n := range 16 {
		go func() {
			for i := range 625 {
				if _, err := c.Acquire(t.Context(), fmt.Sprintf("import/%02d/%03d", n, i)); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 16 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	b := open(t, 1400, 900, false)
	b.visit(w.page.URL + "/")
	b.until(`document.querySelector("#s-held b").textContent === "10,000" && document.querySelectorAll("#rows tr").length === 100`)
	b.keep("ten-thousand")
	start := time.Now()
	w.holds(c, "a/new")
	b.until(`document.querySelector("#s-held b").textContent === "10,001"`)
	t.Logf("a change among 10,000 locks is shown after %v", time.Since(start).Round(10*time.Millisecond))
	t.Log("first byte after ", b.says(`performance.getEntriesByType("navigation")[0].responseStart.toFixed(0)`), "ms")
}

// A name of 1,024 bytes, one that is markup, and text that turns around: shown as what it is.
func TestNames(t *testing.T) {
	w := newTown(t, everything)
	c, _ := w.client("<b>ana</b>", "\u202etsoh", "p", 7, 15*time.Second)
	names := []string{strings.Repeat("n", 1024), `<script>document.title="taken"</script>`, "a//b/../c", "ключ/鍵", "x?y=1&z#f"}
	for _, name := range names {
		w.holds(c, name, holdfast.Reason(`"><img src=x onerror="document.title='taken'">`))
	}
	b := open(t, 1400, 900, false)
	for _, name := range names {
		b.visit(w.page.URL + "/?sort=name")
		b.says(fmt.Sprintf(`[...document.querySelectorAll("#rows td.name a")].find(a => a.title === %q).click()`, name))
		b.until(fmt.Sprintf(`document.querySelector("h1.mono")?.textContent === %q`, name))
		if title := b.says("document.title"); title == "taken" || b.says(`document.querySelectorAll("img, main script").length`) != "0" {
			t.Errorf("%q has become markup", name)
		}
		if !strings.Contains(b.shown(), `\u202e`) {
			t.Errorf("%q: a character that turns text is not written out", name)
		}
	}
}

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/verify/stores"
	"github.com/holdfast-lock/holdfast/verify/story"
	"golang.org/x/sys/unix"
)

const episodes = "github.com/holdfast-lock/holdfast/verify/chaos"

const chaosHelp = `usage: go run ./verify chaos --store STORE --minutes N [flags]

Starts workers that are real processes, and the store's servers, breaks them in all
ways it knows, in random order, and judges what the workers saw. It exits with 1 if
a promise was broken. Ctrl-C ends it after the episodes that run.

If HOLDFAST_LEDGER is the path of a ledger, it adds a line for each store.

flags:
`

var chaosStores = stores.Names()

// chaos runs the tests of the package of that name as they ask for it, and shows
// how far they are.
func chaos(args []string) int {
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	store := f.String("store", "", "`STORE`: "+strings.Join(chaosStores, ", ")+" (mariadb is mysql), several with commas, or all")
	minutes := f.Float64("minutes", 5, "`N`: in all; each store has its part")
	seed := f.Uint64("seed", 1, "`S` of the plans of all episodes")
	only := f.String("only", "", "`NAME`: only faults whose name contains it")
	history := f.String("history", "", "`DIR` for the histories of all episodes; else only those in which something is wrong are kept, in a temporary one")
	judge := f.String("judge", "", "`FILE` with a history that was kept: judge it again, and draw what is wrong")
	usage := func(w io.Writer) {
		fmt.Fprint(w, chaosHelp)
		f.SetOutput(w)
		f.PrintDefaults()
	}
	refuse := func(format string, args ...any) int {
		fmt.Fprintf(os.Stderr, "verify chaos: "+format+"\n\n", args...)
		usage(os.Stderr)
		return 64
	}
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage(os.Stdout)
		return 0
	case err != nil:
		return refuse("%v", err)
	case f.NArg() > 0:
		return refuse("what is %q?", f.Arg(0))
	case *judge != "":
		return judgeAgain(*judge)
	case *minutes <= 0:
		return refuse("--minutes has to be more than 0")
	}
	some, err := storesOf(*store)
	if err != nil {
		return refuse("%v", err)
	}
	code, err := runChaos(some, *minutes, *seed, *only, *history)
	if err != nil {
		fmt.Fprintln(os.Stderr, "verify chaos:", err)
		return 70
	}
	return code
}

func storesOf(list string) (some []string, err error) {
	switch list {
	case "":
		return nil, errors.New("which --store?")
	case "all":
		return chaosStores, nil
	}
	for s := range strings.SplitSeq(list, ",") {
		if s == "mariadb" {
			s = "mysql"
		}
		if !slices.Contains(chaosStores, s) {
			return nil, fmt.Errorf("--store %s: there are %s, and all", s, strings.Join(chaosStores, ", "))
		}
		some = append(some, s)
	}
	return some, nil
}

// runChaos builds the tests and runs them.
func runChaos(stores []string, minutes float64, seed uint64, only, history string) (code int, err error) {
	dir, err := os.MkdirTemp("", "holdfast-chaos-")
	if err != nil {
		return 0, err
	}
	kept := false
	defer func() {
		if !kept {
			os.RemoveAll(dir)
		}
	}()
	where := dir
	if history != "" {
		if err := os.MkdirAll(history, 0o755); err != nil {
			return 0, err
		}
		if where, err = filepath.Abs(history); err != nil {
			return 0, err
		}
	}
	program := filepath.Join(dir, "chaos.test")
	build := exec.Command("go", "test", "-c", "-tags", "faultinject", "-o", program, episodes)
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go test -c %s: %w\n%s", episodes, err, out)
	}
	each := minutes / float64(len(stores))
	cmd := exec.Command(program, "-test.run=^TestMinutes$", "-test.v", "-test.timeout=0", "-tell", "-stores="+strings.Join(stores, ","),
		"-minutes="+strconv.FormatFloat(each, 'f', -1, 64), fmt.Sprint("-seed=", seed), "-only="+only, "-history="+where, fmt.Sprint("-every=", history != ""))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM} // Ctrl-C is for us alone
	input, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	d := newDisplay(stores, minutes)
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewReader(output); ; {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	}()
	for tick, open := time.NewTicker(time.Second), true; open; {
		select {
		case <-interrupts:
			if input == nil {
				cmd.Process.Kill()
				continue
			}
			input.Close()
			input = nil
			d.say("ending after the episodes that run; once more, and it ends at once")
		case <-tick.C:
			d.show(false)
		case line, ok := <-lines:
			if open = ok; !ok {
				break
			}
			if text, ok := strings.CutPrefix(line, "progress: "); ok {
				d.tell(text)
			} else {
				io.WriteString(log, line)
				if strings.Contains(line, "SKIPPED") || strings.Contains(line, " figure: ") {
					d.say("%s", strings.TrimSpace(line))
				}
			}
		}
	}
	err = cmd.Wait()
	d.end()
	switch {
	case d.violations > 0:
		code = 1
	case err != nil:
		code = 70
	case d.episodes == 0:
		d.say("no episode was run")
		code = 69
	}
	if code != 0 {
		os.Remove(program)
		kept = true
		d.say("what the episodes said is in %s", log.Name())
	}
	return code, nil
}

// A display is one line that changes, on a terminal, and else a line now and then.
type display struct {
	terminal                       bool
	began, over, shown             time.Time
	episodes, violations, holds, n int
	running                        []string
}

func newDisplay(stores []string, minutes float64) *display {
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	d := &display{terminal: err == nil, began: time.Now()}
	d.over = d.began.Add(time.Duration(minutes * float64(time.Minute)))
	d.say("%s, %v in all", strings.Join(stores, ", "), d.over.Sub(d.began).Round(time.Second))
	return d
}

// say prints a line above the one that changes.
func (d *display) say(format string, args ...any) {
	if d.terminal {
		fmt.Print("\r\x1b[K")
	}
	fmt.Printf(format+"\n", args...)
}

func (d *display) show(now bool) {
	if !d.terminal && !now && time.Since(d.shown) < 10*time.Second {
		return
	}
	d.shown = time.Now()
	left := max(time.Until(d.over), 0).Round(time.Second)
	text := fmt.Sprintf("%d episodes  %d holds  %d histories  %d violations  %v left  %s", d.episodes, d.holds, d.n, d.violations, left, strings.Join(d.running, "; "))
	if !d.terminal {
		fmt.Println(text)
		return
	}
	if size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 1 {
		text = text[:min(len(text), int(size.Col)-1)]
	}
	fmt.Printf("\r\x1b[K%s", text)
}

func (d *display) tell(text string) {
	var p struct {
		Store, Fault, Picture string
		Begins                bool
		Holds, Histories      int
		Found, Files          []string
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		d.say("%v: %s", err, text)
		return
	}
	this := p.Store + ": " + p.Fault
	switch {
	case len(p.Files) > 0:
		if p.Picture != "" {
			d.say("\n%s", p.Picture)
		}
		d.say("kept: %s", strings.Join(p.Files, " "))
		return
	case p.Begins:
		d.running = append(d.running, this)
	default:
		if i := slices.Index(d.running, this); i >= 0 {
			d.running = slices.Delete(d.running, i, i+1)
		}
		d.episodes, d.holds, d.n, d.violations = d.episodes+1, d.holds+p.Holds, d.n+p.Histories, d.violations+len(p.Found)
		for _, v := range p.Found {
			d.say("%s: %s", this, v)
		}
	}
	if d.terminal {
		d.show(true)
	}
}

func (d *display) end() {
	d.running = nil
	if d.terminal {
		fmt.Print("\r\x1b[K")
	}
	d.say("%d episodes, %d holds, %d histories of one name, %d violations in %v", d.episodes, d.holds, d.n, d.violations, time.Since(d.began).Round(time.Second))
}

// judgeAgain judges a history that was kept.
func judgeAgain(path string) int {
	failed := func(err error) int {
		fmt.Fprintf(os.Stderr, "verify chaos: %s: %v\n", path, err)
		return 66
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return failed(err)
	}
	h, then, err := story.Read(bytes.NewReader(file))
	if err != nil {
		return failed(err)
	}
	found := h.Judge()
	for _, v := range found {
		fmt.Println(v)
	}
	for _, v := range then {
		if !slices.Contains(found, v) {
			fmt.Println("found then, by what is not in the file:", v)
		}
	}
	if p := h.Picture(found); p != nil {
		fmt.Printf("\n%s", p.Text())
		name := strings.TrimSuffix(path, filepath.Ext(path)) + ".svg"
		svg, err := os.Create(name)
		if err == nil {
			err = errors.Join(p.SVG(svg), svg.Close())
		}
		if err != nil {
			return failed(err)
		}
		fmt.Println("drawn:", name)
	}
	if len(found) > 0 {
		return 1
	}
	fmt.Printf("%s: nothing is wrong; %d holds, %d histories of one name\n", h.Title, len(h.Holds()), h.Names())
	return 0
}

package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

const topHelp = `usage: holdfast top [flags] [PREFIX]

Shows the locks in use, or those whose names begin with PREFIX, as list does, and
keeps the list up to date, as top(1) does. Without a terminal, or with --once, it shows
the list once and exits. For a stream of changes use watch.

  q          quit                        j k, arrows   select a line
  s          sort by the next column     b             break the selected claim: asks
  /          show what has a text                      for the reason, then once more

{flags}

examples:
  holdfast top
  holdfast top --sort for deploy/

exit status: 0; 64 usage; 69 store
`

func topVerb(a *cli.App) *cobra.Command {
	t := &top{}
	var once bool
	delay := cli.Span{Duration: 2 * time.Second, Given: false}
	c := &cobra.Command{
		Use: "top [PREFIX]", Short: "Keep showing the names in use", Long: topHelp, ValidArgsFunction: a.CompleteNames, Args: onePrefix,
	}
	c.Flags().VarP(&delay, "delay", "d", "`DUR` between two looks")
	c.Flags().BoolVar(&once, "once", false, "show it once and end")
	selectFlags(c, &t.sel)
	sortFlag(c, &t.sort)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := t.sel.check(); err != nil {
			return cli.Usage("top: %v", err)
		}
		if err := checkSort(t.sort); err != nil {
			return cli.Usage("top: %v", err)
		}
		ctx, prefix := c.Context(), strings.Join(args, "")
		if once || !cli.IsTerminal(os.Stdout) || !cli.IsTerminal(os.Stdin) {
			return list(ctx, a, &listing{prefix: prefix, sel: t.sel, sort: t.sort})
		}
		return showTop(ctx, a, t, prefix, max(delay.Duration, 100*time.Millisecond))
	}
	return c
}

// A sight is what was seen at a time.
type sight struct {
	rows []row
	err  error
}

// pressed yields what is typed, until the input ends.
func pressed() <-chan string {
	keys := make(chan string)
	go func() {
		buf := make([]byte, 64)
		for {
			n, err := os.Stdin.Read(buf)
			if err != nil {
				close(keys)
				return
			}
			keys <- string(buf[:n])
		}
	}()
	return keys
}

// showTop shows what is in use until somebody presses q, or a signal comes. On every way out the
// terminal is restored.
func showTop(ctx context.Context, a *cli.App, t *top, prefix string, delay time.Duration) error {
	s, err := a.Look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	was, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return cli.Fail(cli.ExitFault, "cannot use the terminal: %v", err)
	}
	os.Stdout.WriteString("\x1b[?1049h\x1b[?25l") // another screen, and no cursor
	defer func() {
		os.Stdout.WriteString("\x1b[?25h\x1b[?1049l")
		term.Restore(int(os.Stdin.Fd()), was)
	}()
	t.store = s.Target.String()
	t.breaks = make(chan string, 1)
	t.breakRow = func(r row, reason string) { go func() { t.breaks <- breakOf(ctx, a, r, reason) }() }
	keys := pressed()
	looks := make(chan sight, 1)
	see := func() {
		rows, err := rowsOf(ctx, s, prefix, &t.sel)
		looks <- sight{rows, err}
	}
	go see()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-looks:
			t.saw(l.rows)
			if t.failed = ""; l.err != nil {
				t.failed = s.Cause(l.err)
			}
			again = time.After(delay)
		case <-again:
			again = nil
			go see()
		case t.message = <-t.breaks:
		case text, ok := <-keys:
			if !ok || t.press(text) {
				return nil
			}
		}
		width, height, err := term.GetSize(int(os.Stdout.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24
		}
		os.Stdout.WriteString("\x1b[H" + strings.Join(t.view(width, height), "\x1b[K\r\n") + "\x1b[K\x1b[J")
	}
}

// breakOf breaks a claim, with the right to lock, and says what became of it.
func breakOf(ctx context.Context, a *cli.App, r row, reason string) string {
	s, err := a.Open(ctx, nil)
	if err == nil {
		defer s.Close()
		err = s.BreakClaim(ctx, *r.claim, holdfast.BreakOptions{Reason: reason})
		if err != nil && !errors.Is(err, holdfast.ErrReleased) {
			err = s.Unusable(err, "")
		}
	}
	switch {
	case errors.Is(err, holdfast.ErrReleased):
		return fmt.Sprintf("%s has let go of %s already", cli.ShortWho(r.claim.Owner), cli.Quote(r.info.Name))
	case err != nil:
		text, _, _ := strings.Cut(err.Error(), "\n")
		return text
	}
	return fmt.Sprintf("broken: %s has let go of %s", cli.ShortWho(r.claim.Owner), cli.Quote(r.info.Name))
}

// A top is what the screen shows, without the terminal.
type top struct {
	store    string
	sel      selection
	sort     string
	rows     []row
	filter   string
	selected int
	first    int // of the rows that are shown
	message  string
	failed   string // why the last look saw nothing, or not all

	asks     string // what is being typed: filter, reason, sure; "": nothing
	input    string
	reason   string
	target   row
	breakRow func(r row, reason string)
	breaks   chan string
}

// saw shows what a look has found. The selected claim stays selected.
func (t *top) saw(rows []row) {
	var at string
	if shown := t.shown(); t.selected < len(shown) {
		at = shown[t.selected].key()
	}
	t.rows = rows
	sortRows(t.rows, t.sort)
	t.reselect(at)
}

func (t *top) reselect(at string) {
	shown := t.shown()
	if i := slices.IndexFunc(shown, func(r row) bool { return r.key() == at }); i >= 0 {
		t.selected = i
	}
	t.selected = max(0, min(t.selected, len(shown)-1))
}

// key tells a claim from all others.
func (r row) key() string { return r.claim.Owner.Session + r.claim.ID + "\x00" + r.info.Name }

// shown returns the rows that contain the text of the filter.
func (t *top) shown() []row {
	if t.filter == "" {
		return t.rows
	}
	return slices.DeleteFunc(slices.Clone(t.rows), func(r row) bool {
		return !strings.Contains(strings.Join(r.cells(true), "\x00"), t.filter)
	})
}

// press acts on what was typed, and reports whether to end.
func (t *top) press(text string) (ends bool) {
	for text != "" {
		key, size := text, len(text)
		switch {
		case strings.HasPrefix(text, "\x1b[") && len(text) >= 3:
			size = 3
		case text[0] == '\x1b' && len(text) == 1:
		default:
			_, size = utf8.DecodeRuneInString(text)
		}
		key, text = text[:size], text[size:]
		if t.pressKey(key) {
			return true
		}
	}
	return false
}

func (t *top) pressKey(key string) (ends bool) {
	if key == "\x03" { // Ctrl-C
		return true
	}
	if t.asks != "" {
		t.answer(key)
		return false
	}
	t.message = ""
	shown := t.shown()
	switch key {
	case "q":
		return true
	case "j", "\x1b[B":
		t.selected = min(t.selected+1, max(0, len(shown)-1))
	case "k", "\x1b[A":
		t.selected = max(t.selected-1, 0)
	case "s":
		at := ""
		if t.selected < len(shown) {
			at = shown[t.selected].key()
		}
		t.sort = orders[(slices.Index(orders, t.sort)+1)%len(orders)]
		slices.SortStableFunc(t.rows, func(a, b row) int { return strings.Compare(a.info.Name, b.info.Name) })
		sortRows(t.rows, t.sort)
		t.reselect(at)
	case "/":
		t.asks, t.input = "filter", t.filter
	case "b":
		if t.selected < len(shown) {
			t.asks, t.input, t.target = "reason", "", shown[t.selected]
		}
	}
	return false
}

// answer acts on a key of an answer.
func (t *top) answer(key string) {
	switch {
	case key == "\x1b":
		t.asks = ""
	case t.asks == "sure":
		t.asks, t.message = "", "nothing was broken"
		if key == "y" || key == "Y" {
			t.message = "telling " + cli.ShortWho(t.target.claim.Owner) + " to stop …"
			t.breakRow(t.target, t.reason)
		}
	case key == "\r" || key == "\n":
		switch {
		case t.asks == "filter":
			t.asks, t.filter = "", t.input
			t.reselect("")
		case t.input == "" || len(t.input) > 200:
			t.asks, t.message = "", "a reason is needed, of at most 200 bytes; nothing was broken"
		default:
			t.asks, t.reason = "sure", t.input
		}
	case key == "\x7f" || key == "\b":
		_, size := utf8.DecodeLastRuneInString(t.input)
		t.input = t.input[:len(t.input)-size]
	case key == "\x15": // Ctrl-U
		t.input = ""
	case key[0] >= ' ':
		t.input += key
	}
}

// view is the screen: a line on top, the table, and what is asked or said at the bottom.
func (t *top) view(width, height int) (lines []string) {
	shown := t.shown()
	waiting := 0
	for _, r := range t.rows {
		waiting += min(r.place, 1)
	}
	head := fmt.Sprintf("%s  %s  %d held, %d waiting, by %s", t.store, time.Now().Format(time.TimeOnly), len(t.rows)-waiting, waiting, t.sort)
	if t.filter != "" {
		head += ", with " + cli.Quote(t.filter)
	}
	if t.failed != "" {
		head += "; " + t.failed
	}
	room := max(height-3, 1)
	t.first = max(0, min(t.first, t.selected, len(shown)-room), t.selected-room+1)
	page := shown[min(t.first, len(shown)):min(t.first+room, len(shown))]
	lines = append(lines, cli.Cut(head, width))
	for i, line := range tableOf(page, false).Lines(width) {
		if i == 0 || t.first+i-1 == t.selected {
			line = "\x1b[7m" + line + strings.Repeat(" ", max(0, width-cli.DisplayWidth(line))) + "\x1b[0m"
		}
		lines = append(lines, line)
	}
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	foot := t.message
	switch t.asks {
	case "filter":
		foot = "show what has: " + cli.Escape(t.input)
	case "reason":
		foot = fmt.Sprintf("break %s of %s, why? %s", cli.Quote(t.target.info.Name), cli.ShortWho(t.target.claim.Owner), cli.Escape(t.input))
	case "sure":
		foot = question(t.target.info.Name, *t.target.claim) + " Break it? [y/N] "
	case "":
		if foot == "" {
			foot = "q quit  s sort  / filter  j k select  b break"
		}
	}
	return append(lines[:max(height-1, 0)], cli.Cut(foot, width))
}

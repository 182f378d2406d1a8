package page

import (
	"fmt"
	"html/template"
	"path"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/printable"
)

// words are the functions of the templates. Text from others goes through shown, which escapes
// characters that reorder, hide or end text; html/template escapes the rest.
var words = template.FuncMap{
	"shown":      shown,
	"brief":      brief,
	"ago":        func(t time.Time) string { return brief(time.Since(t)) },
	"clock":      func(t time.Time) string { return t.UTC().Format("15:04:05") },
	"stamp":      func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"day":        func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" },
	"owner":      func(c holdfast.Claim) string { return ownerOnly(c.Owner) },
	"program":    program,
	"directory":  func(name string) string { return shown(directory(name)) },
	"base":       func(name string) string { return shown(name[len(directory(name)):]) },
	"lease":      newLease,
	"granted":    granted,
	"sign":       stateOf,
	"thousands":  thousands,
	"add":        func(a, b int) int { return a + b },
	"dots":       func(n int) []struct{} { return make([]struct{}, min(n, 5)) },
	"seconds":    func(d time.Duration) float64 { return d.Seconds() },
	"shortToken": shortToken,
	"quoteSQL":   func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" },
	"plural": func(n int, one, many string) string {
		if n == 1 {
			return one
		}
		return many
	},
}

// shown makes text from others fit to be looked at.
func shown(s string) string { return printable.Escape(s) }

// plain is an error on one line.
func plain(s string) string { return shown(printable.OneLine(s)) }

func cut(s string, n int) string {
	r := []rune(s)
	if len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func owner(o holdfast.Owner) string { return shown(o.String()) }

// ownerOnly is an owner without its process.
func ownerOnly(o holdfast.Owner) string {
	o.PID = 0
	return shown(o.String())
}

// program is what runs there: "deploy.py · pid 4711".
func program(c holdfast.Claim) string {
	var parts []string
	if c.Owner.Program != "" {
		parts = append(parts, shown(path.Base(c.Owner.Program)))
	}
	if c.Owner.PID != 0 {
		parts = append(parts, fmt.Sprintf("pid %d", c.Owner.PID))
	}
	return strings.Join(parts, " · ")
}

// granted is when a claim was granted or, if that is not known, when it was requested.
func granted(c holdfast.Claim) time.Time {
	if c.Granted.IsZero() {
		return c.Requested
	}
	return c.Granted
}

// A lease is the bar that is full at a heartbeat and empty when others may take over.
type lease struct {
	Kind  string // "", low, gone, det
	Left  int    // percent
	Text  string
	Title string
	TTL   float64 // seconds; 0: it does not run
	Age   float64
}

func newLease(c holdfast.Claim) lease {
	if c.Detached {
		left := time.Until(c.Ends)
		l := lease{Kind: "det", Title: "nothing beats for it; it ends at " + c.Ends.UTC().Format("15:04:05") + " UTC", Text: "ends in " + brief(left)}
		if c.TTL > 0 {
			l.Left = percent(left, c.TTL)
		}
		if left <= 0 {
			l.Text = "is over"
		}
		return l
	}
	if c.BeatAge < 0 || c.TTL <= 0 {
		return lease{Text: "not known", Title: "this store has no clock that all share, so a heartbeat has no age"}
	}
	l := lease{Left: percent(c.TTL-c.BeatAge, c.TTL), TTL: c.TTL.Seconds(), Age: c.BeatAge.Seconds(),
		Text: brief(c.BeatAge) + " ago", Title: fmt.Sprintf("last heartbeat %s ago, TTL %s", brief(c.BeatAge), brief(c.TTL))}
	switch {
	case l.Left == 0:
		l.Kind = "gone"
	case l.Left < 45:
		l.Kind = "low"
	}
	return l
}

func percent(part, whole time.Duration) int { return int(min(max(part*100/whole, 0), 100)) }

// brief is a duration as people say it: 0.8s, 12s, 3m 42s, 2h 11m, 6d 4h.
func brief(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 10*time.Minute:
		return fmt.Sprintf("%dm %02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh %02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd %dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

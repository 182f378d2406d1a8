package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/printable"
)

// Escape makes text from others fit for a terminal.
func Escape(s string) string { return printable.Escape(s) }

// Quote is Escape between quotes.
func Quote(s string) string { return printable.Quote(s) }

// QuoteAll is "a", "b" and "c".
func QuoteAll(names []string) string {
	s := Quote(names[0])
	for i, name := range names[1:] {
		if i == len(names)-2 {
			s += " and " + Quote(name)
		} else {
			s += ", " + Quote(name)
		}
	}
	return s
}

// Who returns an owner as text for a terminal.
func Who(o holdfast.Owner) string { return Escape(o.String()) }

// ShortWho is the owner without its process.
func ShortWho(o holdfast.Owner) string {
	o.PID = 0
	return Escape(o.String())
}

// whose names a claim's owner, since when it holds, and why.
func whose(c holdfast.Claim) string {
	s := Who(c.Owner) + HeldFor(c)
	if c.Reason != "" {
		s += ", " + Quote(c.Reason)
	}
	return s
}

// HeldBy names the holders in the way.
func HeldBy(holders []holdfast.Claim) string {
	s := "held by " + whose(holders[0])
	if more := len(holders) - 1; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// KeptBy says until when a name is kept shut, and whose lock it was.
func KeptBy(c holdfast.Claim) string {
	return "kept until " + c.KeptUntil.Format(time.TimeOnly) + "; " + Who(c.Owner) + " has released it"
}

// HeldFor is " for 2s", since the grant, or nothing if that is not known.
func HeldFor(c holdfast.Claim) string {
	if c.Granted.IsZero() {
		return ""
	}
	return " for " + Brief(time.Since(c.Granted))
}

// LabelsText is labels as a person would type them: build=7 step="2 of 3".
func LabelsText(labels map[string]string) string {
	var b strings.Builder
	for i, key := range slices.Sorted(maps.Keys(labels)) {
		if i > 0 {
			b.WriteString(" ")
		}
		b.WriteString(word(key) + "=" + word(labels[key]))
	}
	return b.String()
}

// word quotes a text that is empty or has a blank, an equals sign or a quote.
func word(s string) string {
	if s == "" || strings.ContainsAny(s, " =\"") {
		return Quote(s)
	}
	return Escape(s)
}

// Brief is a duration as people say it: 41m, 3m12s, 10.5s, 200ms.
func Brief(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 20*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Minute)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Whole is Brief in whole units, for tables.
func Whole(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// CheckName refuses what the library would refuse, before anything is done.
func CheckName(name string) error {
	switch {
	case name == "":
		return Usage("name is empty")
	case len(name) > driver.MaxName:
		return Usage("name has %d bytes, at most %d", len(name), driver.MaxName)
	case !utf8.ValidString(name):
		return Usage("name is not UTF-8: %s", Quote(name))
	case strings.ContainsFunc(name, unicode.IsControl):
		return Usage("name %s has a control character", Quote(name))
	}
	return nil
}

// A Span is a duration as a flag: 90s, 10m, or plain seconds.
type Span struct {
	time.Duration
	Given bool
}

func (s *Span) String() string {
	if s.Duration == 0 && !s.Given {
		return ""
	}
	return Brief(s.Duration)
}

func (s *Span) Type() string { return "DUR" }

func (s *Span) Set(text string) error {
	d, err := ParseSpan(text)
	if err == nil {
		s.Duration, s.Given = d, true
	}
	return err
}

func ParseSpan(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if seconds, plain := strconv.ParseFloat(text, 64); plain == nil && seconds < 1e9 && seconds > -1e9 {
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s is no duration: write 90s, 10m, 1h30m, or plain seconds", Quote(text))
	case d < 0:
		return 0, fmt.Errorf("%s is negative", text)
	}
	return d, nil
}

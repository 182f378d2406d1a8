package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

// A row is a holder or a waiter, as list and top show it.
type row struct {
	info  *holdfast.Info
	claim *holdfast.Claim // in info
	place int             // in the queue; 0: it holds
}

// addRows adds the rows of a name that a selection admits.
func addRows(rows []row, info *holdfast.Info, sel *selection) []row {
	add := func(r row) {
		if sel.admits(r) {
			rows = append(rows, r)
		}
	}
	for i := range info.Holders {
		add(row{info, &info.Holders[i], 0})
	}
	for i := range info.Waiters {
		add(row{info, &info.Waiters[i], i + 1})
	}
	return rows
}

// states are what a row can be in, the most urgent first.
var states = []string{"dead", "dead?", "suspected", "kept", "detached", "ended", "held", "waiting"}

// state says how a claim stands.
func (r row) state() string {
	switch c := r.claim; {
	case over(*c):
		return "ended"
	case c.Dead:
		return "dead"
	case c.Silent:
		return "dead?"
	case r.place > 0:
		return "waiting"
	case c.Suspected:
		return "suspected"
	case c.Kept:
		return "kept"
	case c.Detached:
		return "detached"
	}
	return "held"
}

// over reports whether a claim that nothing kept alive has ended at its time.
func over(c holdfast.Claim) bool { return c.Dead && c.Detached }

// age is how long a claim has held, or has waited; negative: not known.
func (r row) age() time.Duration {
	switch c := r.claim; {
	case r.place > 0:
		return c.Waited
	case c.Granted.IsZero():
		return -1
	default:
		return time.Since(c.Granted)
	}
}

// heading is the head of a table of rows.
func heading(wide bool) []string {
	head := []string{"NAME", "MODE", "STATE", "OWNER", "PID", "FOR", "LAST BEAT"}
	if wide {
		head = append(head, "WAITED", "TOKEN", "CLAIM", "PROGRAM", "ADDRESS", "DEVICE", "LABELS")
	}
	return append(head, "REASON")
}

// cells are a row of the table.
func (r row) cells(wide bool) []string {
	c, name := r.claim, r.info.Name
	reason := cli.Escape(c.Reason)
	add := func(note string) { reason = strings.TrimSpace(reason + " (" + note + ")") }
	state := r.state()
	switch state {
	case "dead", "ended":
		add("goes to the next who asks")
	case "waiting":
		state = ordinal(r.place) + " waiting"
	case "kept":
		state = "kept until " + c.KeptUntil.Format(time.TimeOnly)
	case "suspected":
		if c.SuspectedBy != "" {
			add("asked for a beat by " + cli.Escape(c.SuspectedBy))
		}
	}
	if !c.Kept && !c.KeptUntil.IsZero() {
		add("at least until " + c.KeptUntil.Format(time.TimeOnly))
	}
	if c.Collecting != "" {
		add("has " + cli.Escape(c.Collecting) + " names")
	}
	if cli.CheckName(name) != nil {
		add("written by another program: ours refuses such names")
	}
	pid, token := "", ""
	if c.Owner.PID != 0 {
		pid = fmt.Sprint(c.Owner.PID)
	}
	if c.Token != 0 {
		token = fmt.Sprint(c.Token)
	}
	cells := append(make([]string, 0, 8), cli.Escape(name), c.Mode(), state, cli.ShortWho(c.Owner), pid, sinceText(*c), beatText(*c))
	if wide {
		cells = append(cells, cli.Whole(c.Waited), token, cli.Escape(c.ID), cli.Escape(c.Owner.Program), cli.Escape(c.Owner.Address), cli.Escape(c.Owner.Device), cli.LabelsText(c.Labels))
	}
	return append(cells, reason)
}

// ordinal is 1st, 2nd, 3rd and so on.
func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return strconv.Itoa(n) + suffix
}

// A selection says which claims are meant. Its zero value means all.
type selection struct {
	owner, host, session string
	state                string
	olderThan            cli.Span
}

// check refuses a state that does not exist.
func (s *selection) check() error {
	if s.state != "" && !slices.Contains(states, s.state) {
		return fmt.Errorf("--state %s: one of %s", cli.Quote(s.state), strings.Join(states, ", "))
	}
	return nil
}

func (s *selection) admits(r row) bool {
	c := r.claim
	switch {
	case s.owner != "" && !ownedBy(c.Owner, s.owner),
		s.host != "" && c.Owner.Host != s.host,
		s.session != "" && !strings.HasPrefix(c.Owner.Session, s.session),
		s.state != "" && r.state() != s.state && (s.state != "dead" || r.state() != "dead?"),
		s.olderThan.Given && r.age() <= s.olderThan.Duration:
		return false
	}
	return true
}

// all says that everything is meant.
func (s *selection) all() bool { return *s == selection{} }

// ownedBy reports whether a text names an owner: by its name, its user, or both user and host.
func ownedBy(o holdfast.Owner, who string) bool {
	return who == o.Name || who == o.User || who == o.User+"@"+o.Host
}

// orders are what rows can be sorted by.
var orders = []string{"name", "for", "state", "owner", "waiting"}

// sortRows sorts rows that are sorted by name.
func sortRows(rows []row, by string) {
	if by == "name" {
		return // they come in that order
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		switch by {
		case "for":
			return cmp.Compare(b.age(), a.age())
		case "state":
			return cmp.Compare(slices.Index(states, a.state()), slices.Index(states, b.state()))
		case "owner":
			return cmp.Or(strings.Compare(cli.ShortWho(a.claim.Owner), cli.ShortWho(b.claim.Owner)), cmp.Compare(a.claim.Owner.PID, b.claim.Owner.PID))
		case "waiting":
			return cmp.Compare(len(b.info.Waiters), len(a.info.Waiters))
		}
		return 0
	})
}

package command

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

const breakHelp = `usage: holdfast break NAME --token N --reason TEXT
       holdfast break NAME --claim ID --reason TEXT
       holdfast break --host HOST|--owner NAME|--session ID --reason TEXT

Ends a lock by force: exactly the one with this token, or the claim with this id,
which may still be waiting; show shows both. Its holder is asked to stop, and the
lock goes to the next when it has, or when it is dead (at most its TTL). The record
keeps who broke what, and why. With --host, --owner and --session it ends all claims
that fit, and lists them first. Whoever may take locks may break those of others.

{flags}

examples:
  holdfast show deploy
  holdfast break deploy --token 1795223942117306 --reason "stuck deploy, ticket 815"
  holdfast break --host db7 --reason "db7 is being taken down"

exit status: 0 broken; 1 not there, or not confirmed: nothing was broken, or not all;
64 usage; 69 store
`

type breaking struct {
	token       int64
	claim       string
	reason      string
	yes, atOnce bool
	sel         selection
}

func breakVerb(a *app) *cobra.Command {
	var b breaking
	c := &cobra.Command{
		Use: "break NAME --token N --reason TEXT", Short: "End a lock by force", Long: breakHelp,
		ValidArgsFunction: a.completeNames,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case b.sel.all():
				return oneName(c, args)
			case len(args) > 0 || b.token != 0 || b.claim != "":
				return usage("break: one claim of a name, or all of a host, owner or session, not both")
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&b.sel.host, "host", "", "all claims of `HOST`")
	f.StringVar(&b.sel.owner, "owner", "", "all claims of this `NAME` of an owner, user, or user@host")
	f.StringVar(&b.sel.session, "session", "", "all claims of session `ID`, or of those that begin so: as claims do")
	f.Int64Var(&b.token, "token", 0, "token `N` of the holder")
	f.StringVar(&b.claim, "claim", "", "claim `ID` of a holder or of one who waits")
	f.StringVar(&b.reason, "reason", "", "tell its holder `TEXT`, which is kept; up to 200 bytes")
	f.BoolVar(&b.yes, "yes", false, "do not ask; needed where there is no terminal")
	f.BoolVar(&b.atOnce, "now", false, "do not wait for the holder: if it still runs, only fenced writes are refused")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case b.sel.session != "" && len(b.sel.session) < 8:
			return usage("break: --session %s: at least eight digits", quote(b.sel.session))
		case len(args) > 0 && (args[0] == "" || len(args[0]) > driver.MaxName):
			return checkName(args[0])
		case len(args) > 0 && (b.token != 0) == (b.claim != ""):
			return usage("break: needs --token N or --claim ID, as shown by: %s", hint("show %s", shellWord(args[0])))
		case b.reason == "":
			return usage(`break: needs a --reason, which the holder gets and the record keeps`)
		case len(b.reason) > 200:
			return usage("break: --reason has %d bytes, at most 200", len(b.reason))
		case !b.yes && !isTerminal(os.Stdin):
			return usage("break: there is no terminal to ask on: add --yes if you are sure")
		}
		if len(args) == 0 {
			return a.breakAll(c.Context(), &b)
		}
		return a.breakLock(c.Context(), args[0], &b)
	}
	return c
}

func (a *app) breakLock(ctx context.Context, name string, b *breaking) error {
	s, err := a.open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	info, err := s.Show(ctx, name)
	if err != nil {
		return s.unusable(err, "; nothing was broken")
	}
	claim, ok := b.find(info)
	if !ok {
		return fail(exitNo, "%s. Nothing was broken", b.missing(info))
	}
	if !b.yes && !b.confirm(name, claim) {
		return fail(exitNo, "nothing was broken")
	}
	began := time.Now()
	err = s.BreakClaim(ctx, claim, holdfast.BreakOptions{Reason: b.reason, Now: b.atOnce})
	switch {
	case errors.Is(err, holdfast.ErrReleased):
		return fail(exitNo, "%s has let go of %s already. Nothing was broken", shortWho(claim.Owner), quote(name))
	case err != nil:
		return s.unusable(err, "; it may have been broken, look: "+hint("show %s", shellWord(name)))
	}
	next := "; it is free now"
	if info, err := s.Show(ctx, name); err != nil {
		next = ""
	} else if len(info.Holders) > 0 {
		next = fmt.Sprintf("; %s holds it now", shortWho(info.Holders[0].Owner))
	}
	switch {
	case claim.Token == 0:
		say("broken: %s no longer waits for %s", shortWho(claim.Owner), quote(name))
	case b.atOnce:
		say("broken: %s was taken from %s, which may still run%s", quote(name), shortWho(claim.Owner), next)
	default:
		say("broken: %s has let go of %s after %s%s", shortWho(claim.Owner), quote(name), brief(time.Since(began)), next)
	}
	return nil
}

// breakAll breaks all claims that the selection admits.
func (a *app) breakAll(ctx context.Context, b *breaking) error {
	s, err := a.open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	rows, err := s.rows(ctx, "", &b.sel)
	switch {
	case err != nil:
		return s.unusable(err, "; nothing was broken")
	case len(rows) == 0:
		return fail(exitNo, "no such claim in %s. Nothing was broken", s.target)
	}
	if err := tableOf(rows, false).write(os.Stderr, limitOf(os.Stderr)); err != nil {
		return cannotWrite(err)
	}
	if !b.yes && !b.confirmAll(len(rows)) {
		return fail(exitNo, "nothing was broken")
	}
	// Those that wait go first: else they would be let in on the way.
	slices.SortStableFunc(rows, func(x, y row) int { return cmp.Compare(min(y.place, 1), min(x.place, 1)) })
	waiting := slices.IndexFunc(rows, func(r row) bool { return r.place == 0 })
	if waiting < 0 {
		waiting = len(rows)
	}
	broken, gone := s.breakRows(ctx, rows[:waiting], b)
	more, left := s.breakRows(ctx, rows[waiting:], b)
	broken, gone = broken+more, gone+left
	switch {
	case broken+gone < len(rows):
		return fail(exitNo, "%d of %d were broken", broken, len(rows))
	case gone > 0:
		say("%d broken, and %d had let go before", broken, gone)
	default:
		say("%d broken", broken)
	}
	return nil
}

// breakRows breaks claims, some at the same time since each waits for its holder, and returns
// how many were broken, and how many were gone before.
func (s *session) breakRows(ctx context.Context, rows []row, b *breaking) (broken, gone int) {
	results := make([]error, len(rows))
	var wait sync.WaitGroup
	turns := make(chan struct{}, 16)
	for i, r := range rows {
		turns <- struct{}{}
		wait.Go(func() {
			defer func() { <-turns }()
			results[i] = s.BreakClaim(ctx, *r.claim, holdfast.BreakOptions{Reason: b.reason, Now: b.atOnce})
		})
	}
	wait.Wait()
	for i, r := range rows {
		switch err := results[i]; {
		case err == nil:
			broken++
		case errors.Is(err, holdfast.ErrReleased):
			gone++ // as those of a set do when another of it is broken
		default:
			say("%s of %s: %s; it may have been broken", quote(r.info.Name), shortWho(r.claim.Owner), s.cause(err))
		}
	}
	return broken, gone
}

// confirmAll asks the person at the terminal once for all.
func (b *breaking) confirmAll(n int) bool {
	if b.atOnce {
		fmt.Fprintf(os.Stderr, "--now does not wait: whoever still runs is not stopped, and only fenced writes are refused. Type the number of claims to go on: ")
		return readLine() == fmt.Sprint(n)
	}
	fmt.Fprintf(os.Stderr, "Break these %d? Those that live are asked to stop. [y/N] ", n)
	answer := strings.ToLower(readLine())
	return answer == "y" || answer == "yes"
}

// find returns the claim that is meant.
func (b *breaking) find(info holdfast.Info) (holdfast.Claim, bool) {
	for _, c := range append(info.Holders, info.Waiters...) {
		if b.claim != "" && c.ID == b.claim || b.token != 0 && c.Token == b.token {
			return c, true
		}
	}
	return holdfast.Claim{}, false
}

// missing says what stands where the claim should.
func (b *breaking) missing(info holdfast.Info) string {
	s := fmt.Sprintf("token %d does not hold %s", b.token, quote(info.Name))
	if b.claim != "" {
		s = fmt.Sprintf("claim %s neither holds %s nor waits for it", escape(b.claim), quote(info.Name))
	}
	if len(info.Holders) == 0 {
		return s + "; it is free"
	}
	h := info.Holders[0]
	if b.claim != "" {
		return s + fmt.Sprintf("; %s holds it, claim %s", who(h.Owner), escape(h.ID))
	}
	s += fmt.Sprintf("; %s does, with %d", who(h.Owner), h.Token)
	if more := len(info.Holders) - 1; more > 0 {
		s += fmt.Sprintf(", and %d more", more)
	}
	return s
}

// confirm asks the person at the terminal.
func (b *breaking) confirm(name string, c holdfast.Claim) bool {
	if b.atOnce && c.Token != 0 {
		fmt.Fprintf(os.Stderr, "--now does not wait: if %s still runs, only fenced writes are refused. Type the name to go on: ", shortWho(c.Owner))
		return readLine() == name
	}
	fmt.Fprintf(os.Stderr, "%s Break it? [y/N] ", question(name, c))
	answer := strings.ToLower(readLine())
	return answer == "y" || answer == "yes"
}

// question is what has to be known of a claim before it is broken.
func question(name string, c holdfast.Claim) string {
	switch {
	case c.Token == 0:
		return fmt.Sprintf("%s has been waiting for %s for %s.", who(c.Owner), quote(name), brief(c.Waited))
	case c.Dead:
		return fmt.Sprintf("%s is held by %s, which is dead: it goes to the next who asks.", quote(name), who(c.Owner))
	case c.Kept:
		return fmt.Sprintf("%s is %s.", quote(name), keptBy(c))
	case c.Detached:
		return fmt.Sprintf("%s is held by %s%s; nothing renews it, it %s: whoever uses it does not learn of it.", quote(name), who(c.Owner), heldFor(c), beatText(c))
	case c.BeatAge >= 0 && !c.Suspected:
		return fmt.Sprintf("%s is held by %s%s; its last beat came %s ago: it is alive and will be asked to stop.", quote(name), who(c.Owner), heldFor(c), brief(c.BeatAge))
	}
	return fmt.Sprintf("%s is held by %s%s; it will be asked to stop, and is waited for until it has, at most %s.", quote(name), who(c.Owner), heldFor(c), brief(c.TTL))
}

func readLine() string {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	return strings.TrimSpace(line)
}

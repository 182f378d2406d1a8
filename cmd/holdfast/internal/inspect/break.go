package inspect

import (
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
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
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

func breakVerb(a *cli.App) *cobra.Command {
	var b breaking
	c := &cobra.Command{
		Use: "break NAME --token N --reason TEXT", Short: "End a lock by force", Long: breakHelp,
		ValidArgsFunction: a.CompleteNames,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case b.sel.all():
				return cli.OneName(c, args)
			case len(args) > 0 || b.token != 0 || b.claim != "":
				return cli.Usage("break: one claim of a name, or all of a host, owner or session, not both")
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
			return cli.Usage("break: --session %s: at least eight digits", cli.Quote(b.sel.session))
		case len(args) > 0 && (args[0] == "" || len(args[0]) > driver.MaxName):
			return cli.CheckName(args[0])
		case len(args) > 0 && (b.token != 0) == (b.claim != ""):
			return cli.Usage("break: needs --token N or --claim ID, as shown by: %s", cli.Hint("show %s", cli.ShellWord(args[0])))
		case b.reason == "":
			return cli.Usage(`break: needs a --reason, which the holder gets and the record keeps`)
		case len(b.reason) > 200:
			return cli.Usage("break: --reason has %d bytes, at most 200", len(b.reason))
		case !b.yes && !cli.IsTerminal(os.Stdin):
			return cli.Usage("break: there is no terminal to ask on: add --yes if you are sure")
		}
		if len(args) == 0 {
			return breakAll(c.Context(), a, &b)
		}
		return breakLock(c.Context(), a, args[0], &b)
	}
	return c
}

func breakLock(ctx context.Context, a *cli.App, name string, b *breaking) error {
	s, err := a.Open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	info, err := s.Show(ctx, name)
	if err != nil {
		return s.Unusable(err, "; nothing was broken")
	}
	found := b.find(info)
	switch len(found) {
	case 0:
		return cli.Fail(cli.ExitNo, "%s. Nothing was broken", b.missing(info))
	case 1:
	default:
		return cli.Fail(cli.ExitNo, "%d claims of %s have the id %s. Nothing was broken. Put all of owner.session in the place of its first digits, as shown by: %s",
			len(found), cli.Quote(name), cli.Escape(b.claim), cli.Hint("show --json %s", cli.ShellWord(name)))
	}
	claim := found[0]
	if !b.yes && !b.confirm(name, claim) {
		return cli.Fail(cli.ExitNo, "nothing was broken")
	}
	began := time.Now()
	err = s.BreakClaim(ctx, claim, holdfast.BreakOptions{Reason: b.reason, Now: b.atOnce})
	switch {
	case errors.Is(err, holdfast.ErrReleased):
		return cli.Fail(cli.ExitNo, "%s has let go of %s already. Nothing was broken", cli.ShortWho(claim.Owner), cli.Quote(name))
	case err != nil:
		return s.Unusable(err, "; it may have been broken, look: "+cli.Hint("show %s", cli.ShellWord(name)))
	}
	next := "; it is free now"
	if info, err := s.Show(ctx, name); err != nil {
		next = ""
	} else if len(info.Holders) > 0 {
		next = fmt.Sprintf("; %s holds it now", cli.ShortWho(info.Holders[0].Owner))
	}
	switch {
	case claim.Token == 0:
		cli.Say("broken: %s no longer waits for %s", cli.ShortWho(claim.Owner), cli.Quote(name))
	case b.atOnce:
		cli.Say("broken: %s was taken from %s, which may still run%s", cli.Quote(name), cli.ShortWho(claim.Owner), next)
	default:
		cli.Say("broken: %s has let go of %s after %s%s", cli.ShortWho(claim.Owner), cli.Quote(name), cli.Brief(time.Since(began)), next)
	}
	return nil
}

// breakAll breaks all claims that the selection admits.
func breakAll(ctx context.Context, a *cli.App, b *breaking) error {
	s, err := a.Open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	rows, err := rowsOf(ctx, s, "", &b.sel)
	switch {
	case err != nil:
		return s.Unusable(err, "; nothing was broken")
	case len(rows) == 0:
		return cli.Fail(cli.ExitNo, "no such claim in %s. Nothing was broken", s.Target)
	}
	if err := tableOf(rows, false).Write(os.Stderr, cli.LimitOf(os.Stderr)); err != nil {
		return cli.CannotWrite(err)
	}
	if !b.yes && !b.confirmAll(len(rows)) {
		return cli.Fail(cli.ExitNo, "nothing was broken")
	}
	// Waiters go first: else they would be granted the lock in between.
	slices.SortStableFunc(rows, func(x, y row) int { return cmp.Compare(min(y.place, 1), min(x.place, 1)) })
	waiting := slices.IndexFunc(rows, func(r row) bool { return r.place == 0 })
	if waiting < 0 {
		waiting = len(rows)
	}
	broken, gone := breakRows(ctx, s, rows[:waiting], b)
	more, left := breakRows(ctx, s, rows[waiting:], b)
	broken, gone = broken+more, gone+left
	switch {
	case broken+gone < len(rows):
		return cli.Fail(cli.ExitNo, "%d of %d were broken", broken, len(rows))
	case gone > 0:
		cli.Say("%d broken, and %d had let go before", broken, gone)
	default:
		cli.Say("%d broken", broken)
	}
	return nil
}

// breakRows breaks claims, some at the same time since each waits for its holder, and returns
// how many were broken, and how many were gone before.
func breakRows(ctx context.Context, s *cli.Session, rows []row, b *breaking) (broken, gone int) {
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
			gone++ // as the claims of a set are when another of the set is broken
		default:
			cli.Say("%s of %s: %s; it may have been broken", cli.Quote(r.info.Name), cli.ShortWho(r.claim.Owner), s.Cause(err))
		}
	}
	return broken, gone
}

// confirmAll asks the person at the terminal once for all.
func (b *breaking) confirmAll(n int) bool {
	if b.atOnce {
		fmt.Fprintf(os.Stderr, "--now does not wait: whoever still runs is not stopped, and only fenced writes are refused. Type the number of claims to go on: ")
		return cli.ReadLine() == fmt.Sprint(n)
	}
	fmt.Fprintf(os.Stderr, "Break these %d? Those that live are asked to stop. [y/N] ", n)
	answer := strings.ToLower(cli.ReadLine())
	return answer == "y" || answer == "yes"
}

// find returns the claims that are meant: several may have the same id.
func (b *breaking) find(info holdfast.Info) (found []holdfast.Claim) {
	for _, c := range slices.Concat(info.Holders, info.Waiters) {
		if b.claim != "" && (c.ID == b.claim || c.FullID() == b.claim) || b.token != 0 && c.Token == b.token {
			found = append(found, c)
		}
	}
	return found
}

// missing says that there is no such claim, and what is there instead.
func (b *breaking) missing(info holdfast.Info) string {
	s := fmt.Sprintf("token %d does not hold %s", b.token, cli.Quote(info.Name))
	if b.claim != "" {
		s = fmt.Sprintf("claim %s neither holds %s nor waits for it", cli.Escape(b.claim), cli.Quote(info.Name))
	}
	if len(info.Holders) == 0 {
		return s + "; it is free"
	}
	h := info.Holders[0]
	if b.claim != "" {
		return s + fmt.Sprintf("; %s holds it, claim %s", cli.Who(h.Owner), cli.Escape(h.ID))
	}
	s += fmt.Sprintf("; %s does, with %d", cli.Who(h.Owner), h.Token)
	if more := len(info.Holders) - 1; more > 0 {
		s += fmt.Sprintf(", and %d more", more)
	}
	return s
}

// confirm asks the person at the terminal.
func (b *breaking) confirm(name string, c holdfast.Claim) bool {
	if b.atOnce && c.Token != 0 {
		fmt.Fprintf(os.Stderr, "--now does not wait: if %s still runs, only fenced writes are refused. Type the name to go on: ", cli.ShortWho(c.Owner))
		return cli.ReadLine() == name
	}
	fmt.Fprintf(os.Stderr, "%s Break it? [y/N] ", question(name, c))
	answer := strings.ToLower(cli.ReadLine())
	return answer == "y" || answer == "yes"
}

// question is what a person has to know of a claim before breaking it.
func question(name string, c holdfast.Claim) string {
	switch {
	case c.Token == 0:
		return fmt.Sprintf("%s has been waiting for %s for %s.", cli.Who(c.Owner), cli.Quote(name), cli.Brief(c.Waited))
	case c.Dead:
		return fmt.Sprintf("%s is held by %s, which is dead: it goes to the next who asks.", cli.Quote(name), cli.Who(c.Owner))
	case c.Kept:
		return fmt.Sprintf("%s is %s.", cli.Quote(name), cli.KeptBy(c))
	case c.Detached:
		return fmt.Sprintf("%s is held by %s%s; nothing renews it, it %s: whoever uses it does not learn of it.", cli.Quote(name), cli.Who(c.Owner), cli.HeldFor(c), beatText(c))
	case c.BeatAge >= 0 && !c.Suspected:
		return fmt.Sprintf("%s is held by %s%s; its last beat came %s ago: it is alive and will be asked to stop.", cli.Quote(name), cli.Who(c.Owner), cli.HeldFor(c), cli.Brief(c.BeatAge))
	}
	return fmt.Sprintf("%s is held by %s%s; it will be asked to stop, and is waited for until it has, at most %s.", cli.Quote(name), cli.Who(c.Owner), cli.HeldFor(c), cli.Brief(c.TTL))
}

package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
)

const breakHelp = `usage: holdfast break NAME --token N --reason TEXT
       holdfast break NAME --claim ID --reason TEXT

Ends a lock by force: exactly the one with this token, or the claim with this id,
which may still be waiting; show shows both. Its holder is told to stop, and the
lock goes to the next when it has, or when it is dead (at most its TTL). Who broke
what and why stays on record.

{flags}

examples:
  holdfast show deploy
  holdfast break deploy --token 1795223942117306 --reason "stuck deploy, ticket 815"

exit status: 0 broken; 1 not there, or not confirmed: nothing was broken;
64 usage; 69 store
`

type breaking struct {
	token       int64
	claim       string
	reason      string
	yes, atOnce bool
}

func breakVerb(a *app) *cobra.Command {
	var b breaking
	c := &cobra.Command{
		Use: "break NAME --token N --reason TEXT", Short: "End a lock by force", Long: breakHelp,
		Args: oneName, ValidArgsFunction: a.completeNames,
	}
	f := c.Flags()
	f.Int64Var(&b.token, "token", 0, "token `N` of the holder")
	f.StringVar(&b.claim, "claim", "", "claim `ID` of a holder or of one who waits")
	f.StringVar(&b.reason, "reason", "", "tell its holder `TEXT`, which is kept; up to 200 bytes")
	f.BoolVar(&b.yes, "yes", false, "do not ask; needed where there is no terminal")
	f.BoolVar(&b.atOnce, "now", false, "do not wait for the holder: if it still runs, only fenced writes are refused")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case args[0] == "" || len(args[0]) > 255:
			return checkName(args[0])
		case (b.token != 0) == (b.claim != ""):
			return usage("break: needs --token N or --claim ID, as shown by: holdfast show %s", escape(args[0]))
		case b.reason == "":
			return usage(`break: needs a --reason; it is told to the holder and kept`)
		case len(b.reason) > 200:
			return usage("break: --reason has %d bytes, at most 200", len(b.reason))
		case !b.yes && !isTerminal(os.Stdin):
			return usage("break: there is no terminal to ask on: add --yes if you are sure")
		}
		return a.breakLock(orBackground(c.Context()), args[0], &b)
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
	switch {
	case claim.Token == 0:
		err = s.BreakWaiter(ctx, claim, b.reason)
	case b.atOnce:
		err = s.BreakNow(ctx, name, claim.Token, b.reason)
	default:
		err = s.Break(ctx, name, claim.Token, b.reason)
	}
	switch {
	case errors.Is(err, holdfast.ErrReleased):
		return fail(exitNo, "%s has let go of %s already. Nothing was broken", shortWho(claim.Owner), quote(name))
	case err != nil:
		return s.unusable(err, "; perhaps it was broken, look: holdfast show "+escape(name))
	}
	next := "; it is free now"
	if info, err := s.Show(ctx, name); err != nil {
		next = ""
	} else if len(info.Holders) > 0 {
		next = fmt.Sprintf("; %s holds it now", shortWho(info.Holders[0].Owner))
	}
	switch {
	case claim.Token == 0:
		say("broken: %s waits for %s no more", shortWho(claim.Owner), quote(name))
	case b.atOnce:
		say("broken: %s was taken from %s, which may still run%s", quote(name), shortWho(claim.Owner), next)
	default:
		say("broken: %s has let go of %s after %s%s", shortWho(claim.Owner), quote(name), brief(time.Since(began)), next)
	}
	return nil
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
	case c.Detached:
		return fmt.Sprintf("%s is held by %s%s; nothing renews it, it %s: whoever uses it will not be told.", quote(name), who(c.Owner), heldFor(c), beatText(c))
	case c.BeatAge >= 0 && !c.Suspected:
		return fmt.Sprintf("%s is held by %s%s; its last beat came %s ago: it is alive and will be told to stop.", quote(name), who(c.Owner), heldFor(c), brief(c.BeatAge))
	}
	return fmt.Sprintf("%s is held by %s%s; it will be told to stop, and is waited for until it has, at most %s.", quote(name), who(c.Owner), heldFor(c), brief(c.TTL))
}

func readLine() string {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	return strings.TrimSpace(line)
}

package admin

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

const claimsHelp = `usage: holdfast claims [flags] TABLE

Lists the claims in TABLE: the locks of JanusGraph, and of programs that use package
claims beside it. TABLE is edgestore_lock_, graphindex_lock_ or another with that
ending, in the keyspace of --store (Cassandra). Nothing else of the store is used.

STATE is "first" for the claim that holds the lock or is about to, "waiting" for those
behind it, and "expired" for claims that no program counts any more. KEY and COLUMN are
shown as plain text where they are that, else in hexadecimal.

--remove removes expired claims. That is safe if --expire is the one that all programs
use. With --live it also removes claims that still count. Their owners do not learn of
it and go on until they look, beside the next owner. Use it only if the owner is gone.

{flags}

examples:
  holdfast claims edgestore_lock_ --store cassandra://db1.example/janusgraph
  holdfast claims edgestore_lock_ --remove
  holdfast claims edgestore_lock_ --remove --live --owner 0a00000112-db71 --yes

exit status: 0; 1 no was answered; 64 usage; 69 store
`

// ClaimTable opens a table of claims in the store of a URL. It is nil if this program has no
// client for such a store, and is set before Main is called.
var ClaimTable func(ctx context.Context, at *driver.Location, table string) (claims.Table, func() error, error)

// A claimsCall is a call of holdfast claims.
type claimsCall struct {
	*cli.App
	table                   string
	expire                  cli.Span
	owner, key              string
	remove, live, yes, json bool
}

func claimsVerb(a *cli.App) *cobra.Command {
	v := &claimsCall{App: a, expire: cli.Span{Duration: 5 * time.Minute, Given: true}}
	c := &cobra.Command{Use: "claims TABLE", Short: "List and remove JanusGraph's claims", Long: claimsHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage("claims: which table? holdfast claims edgestore_lock_; see: holdfast claims --help")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			v.table = args[0]
			return v.run(c.Context())
		}}
	f := c.Flags()
	f.Var(&v.expire, "expire", "age at which a claim counts no more: JanusGraph's storage.lock.expiry-time")
	f.StringVar(&v.owner, "owner", "", "only claims of this `NAME`: JanusGraph's graph.unique-instance-id")
	f.StringVar(&v.key, "key", "", "only claims to this `KEY`, as it is shown")
	f.BoolVar(&v.remove, "remove", false, "remove the claims that have expired")
	f.BoolVar(&v.live, "live", false, "with --remove: also those that count, of one --owner or --key")
	f.BoolVarP(&v.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&v.json, "json", false, "one object per claim and line; keys and columns in hexadecimal")
	return c
}

func (v *claimsCall) run(ctx context.Context) error {
	switch {
	case v.live && !v.remove:
		return cli.Usage("claims: --live goes with --remove")
	case v.live && v.owner == "" && v.key == "":
		return cli.Usage("claims: --live needs --owner or --key: the claims of an owner that is gone, or to one key")
	case v.live && !v.yes && !cli.IsTerminal(os.Stdin):
		return cli.Usage("claims: there is no terminal to ask on: add --yes if you are sure")
	}
	t, err := cli.ParseStore(v.Store)
	if err != nil {
		return err
	}
	if ClaimTable == nil || t.Kind.Name != "cassandra" {
		return cli.Usage("claims: %s has no tables of claims; they are in cassandra://HOST/KEYSPACE", t)
	}
	table, close, err := ClaimTable(ctx, t.Location, v.table)
	if err != nil {
		return t.Unusable(err, "")
	}
	defer close()
	found, err := v.find(ctx, table)
	if err != nil {
		return t.Unusable(err, "")
	}
	if err := v.show(found); err != nil {
		return cli.CannotWrite(err)
	}
	switch {
	case len(found) == 0 && v.remove:
		cli.Say("nothing to remove")
		return nil
	case !v.remove:
		return nil
	case v.live && !v.yes:
		fmt.Fprintf(os.Stderr, "An owner that still runs does not learn of it. Remove these %d? [y/N] ", len(found))
		if answer := strings.ToLower(cli.ReadLine()); answer != "y" && answer != "yes" {
			return cli.Fail(cli.ExitNo, "nothing was removed")
		}
	}
	if err := claims.Remove(ctx, table, found...); err != nil {
		return t.Unusable(err, "; some may have been removed")
	}
	cli.Say("removed %d", len(found))
	return nil
}

// find returns the claims that the flags select.
func (v *claimsCall) find(ctx context.Context, table claims.Table) (found []claims.Claim, err error) {
	for c, err := range claims.List(ctx, table, v.expire.Duration) {
		switch {
		case err != nil:
			return nil, err
		case v.owner != "" && c.Owner != v.owner, v.key != "" && bytesText(c.Key) != v.key, v.remove && !v.live && !c.Expired:
		default:
			found = append(found, c)
		}
	}
	return found, nil
}

func (v *claimsCall) show(found []claims.Claim) error {
	t := cli.Table{{"KEY", "COLUMN", "STATE", "AGE", "OWNER", "KIND"}}
	for _, c := range found {
		state, kind := "waiting", "janusgraph"
		switch {
		case c.Expired:
			state = "expired"
		case c.First:
			state = "first"
		}
		if c.Locker {
			kind = "holdfast"
		}
		if v.json {
			err := asjson.Encode(os.Stdout, struct {
				Key    string    `json:"key"`
				Column string    `json:"column"`
				State  string    `json:"state"`
				Time   time.Time `json:"time"`
				Age    float64   `json:"age"`
				Owner  string    `json:"owner"`
				Kind   string    `json:"kind"`
			}{hex.EncodeToString(c.Key), hex.EncodeToString(c.Column), state, c.Time, time.Since(c.Time).Seconds(), c.Owner, kind})
			if err != nil {
				return err
			}
			continue
		}
		t = append(t, []string{bytesText(c.Key), bytesText(c.Column), state, cli.Whole(time.Since(c.Time)), cli.Escape(c.Owner), kind})
	}
	if v.json || len(found) == 0 {
		return nil
	}
	return t.Write(os.Stdout, cli.LimitOf(os.Stdout))
}

// bytesText returns bytes as they are if they are plain text, else in hexadecimal.
func bytesText(b []byte) string {
	s := string(b)
	if utf8.ValidString(s) && !strings.HasPrefix(s, "0x") && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return "0x" + hex.EncodeToString(b)
}

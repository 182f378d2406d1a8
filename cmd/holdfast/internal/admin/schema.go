package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/spf13/cobra"
)

const schemaHelp = `usage: holdfast schema print|apply|verify
       holdfast schema grants --role NAME [--read-only]

The tables that Holdfast needs in the store, or the mark by which it knows a
directory that is one.

  print     write the statements that make them to standard output; connects to
            nothing
  apply     make what is missing; may be repeated, and while others use the store.
            An SQLite file is created if need be; a directory, a database and a
            keyspace are not
  verify    compare what is there with what this program needs
  grants    write the statements that let a role take locks, or with --read-only look
            at them and no more, to standard output; connects to nothing

On a server the tables may have a place and a name of their own: ?schema=NAME
(PostgreSQL) and ?prefix=NAME in the store's URL. Give both to all who use them.
Only apply needs the right to make tables: the owner runs it, or what print prints.

examples:
  holdfast --store sqlite:/srv/app/app.db schema apply
  holdfast --store dir:/mnt/share/locks schema apply
  holdfast --store postgres://owner@db/shop schema apply
  holdfast --store 'postgres://db/shop?schema=locks' schema print | psql shop
  holdfast --store mysql://db/shop schema print | mariadb shop
  holdfast --store cassandra://db1,db2/shop schema print | cqlsh db1
  holdfast schema verify

exit status: 0; 1 verify: not as it should be; 64 usage; 69 store
`

func schemaVerb(a *cli.App) *cobra.Command {
	schema := &cobra.Command{
		Use: "schema print|apply|verify|grants", Short: "Make or check the tables of the store", Long: schemaHelp,
		RunE: func(c *cobra.Command, args []string) error {
			return cli.Usage("schema: print, apply, verify or grants? As in: holdfast schema verify")
		},
	}
	for verb, f := range map[string]func(context.Context, cli.Target) error{
		"print": schemaPrint, "apply": schemaApply, "verify": schemaVerify,
	} {
		schema.AddCommand(&cobra.Command{
			Use: verb, Long: schemaHelp,
			Args: func(_ *cobra.Command, args []string) error {
				if len(args) > 0 {
					return cli.Usage("schema %s: takes no arguments; the store is named by --store or HOLDFAST_STORE", verb)
				}
				return nil
			},
			RunE: func(c *cobra.Command, _ []string) error {
				t, err := cli.ParseStore(a.Store)
				if err != nil {
					return err
				}
				if t.Kind.Schema == nil {
					return cli.Usage("schema: the store %s has no tables", t)
				}
				return f(c.Context(), t)
			},
		})
	}
	schema.AddCommand(grantsVerb(a))
	return schema
}

const grantsHelp = `usage: holdfast schema grants --role NAME [--read-only]

Writes the statements that let a role take locks, or only look, to standard output.
It connects to nothing; whoever owns the tables runs what it prints. Whoever may
take locks may break those of others, too; a role that only looks may not. A file and
a directory have no roles: write access is the right to lock, read access to look.

{flags}

examples:
  holdfast --store postgres://db/shop schema grants --role app | psql shop
  holdfast --store mysql://db/shop schema grants --role dba@10.0.0.% --read-only

exit status: 0; 64 usage
`

func grantsVerb(a *cli.App) *cobra.Command {
	var role string
	var readOnly bool
	c := &cobra.Command{
		Use: "grants", Long: grantsHelp, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			t, err := cli.ParseStore(a.Store)
			switch {
			case err != nil:
				return err
			case t.Kind.Grants == nil && !t.Kind.Server:
				return cli.Usage("schema grants: the store %s has no roles: write access is the right to lock, read access the right to look", t)
			case t.Kind.Grants == nil:
				return cli.Usage("schema grants: for %s the page docs/stores/%s.md says what a user needs", t, t.Kind.Name)
			case role == "":
				return cli.Usage("schema grants: needs --role NAME, of the role that is to lock, or to look")
			}
			statements, err := t.Kind.Grants(t.Location, role, readOnly)
			if err != nil {
				return cli.Usage("schema grants: %v", err)
			}
			if _, err := fmt.Println(strings.Join(statements, ";\n") + ";"); err != nil {
				return cli.CannotWrite(err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&role, "role", "", "`NAME` of the role, or of the user as app@10.0.0.% (MySQL)")
	c.Flags().BoolVar(&readOnly, "read-only", false, "for what looks, as list, show, watch and doctor --read-only")
	return c
}

func schemaPrint(_ context.Context, t cli.Target) error {
	text, err := t.Kind.Schema(t.Location)
	if err != nil {
		return cli.Usage("%s: %s", t, t.Redact(err.Error()))
	}
	if _, err := os.Stdout.WriteString(text); err != nil {
		return cli.CannotWrite(err)
	}
	return nil
}

func schemaApply(ctx context.Context, t cli.Target) error {
	if err := t.Kind.Migrate(ctx, t.Location); err != nil {
		return t.Unusable(err, "")
	}
	cli.Say("%s is ready", t)
	return nil
}

func schemaVerify(ctx context.Context, t cli.Target) error {
	err := cli.AsUsage(t.Kind.Verify(ctx, t.Location))
	var f *cli.Failure
	reached := t.Kind.ReachOf(err)
	switch {
	case err == nil:
		if _, err := fmt.Printf("%s is as it should be\n", t); err != nil {
			return cli.CannotWrite(err)
		}
		return nil
	case errors.As(err, &f), errors.Is(err, fs.ErrPermission), reached == driver.Unreachable, reached == driver.NotLetIn:
		return t.Unusable(err, "")
	}
	return cli.Fail(cli.ExitNo, "%s", cli.WithHints(t.Redact(err.Error())))
}

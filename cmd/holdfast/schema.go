package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast/sqlite"
)

const schemaHelp = `usage: holdfast schema print|apply|verify

The tables that Holdfast needs in the store.

  print     write the statements that make them to standard output; connects to
            nothing
  apply     make what is missing; may be repeated, and while others use the store.
            A file is created if need be
  verify    compare what is there with what this program needs

examples:
  holdfast --store sqlite:/srv/app/app.db schema apply
  holdfast --store sqlite:/srv/app/app.db schema verify
  holdfast --store sqlite:any schema print | less

exit status: 0; 1 verify: not as it should be; 64 usage; 69 store
`

func schemaVerb(a *app) *cobra.Command {
	schema := &cobra.Command{
		Use: "schema print|apply|verify", Short: "Make or check the tables of the store", Long: schemaHelp,
		RunE: func(c *cobra.Command, args []string) error {
			return usage("schema: print, apply or verify? As in: holdfast schema verify")
		},
	}
	for verb, f := range map[string]func(context.Context, target) error{
		"print": schemaPrint, "apply": schemaApply, "verify": schemaVerify,
	} {
		schema.AddCommand(&cobra.Command{
			Use: verb, Long: schemaHelp,
			Args: func(_ *cobra.Command, args []string) error {
				if len(args) > 0 {
					return usage("schema %s: takes no arguments; the store is named by --store or HOLDFAST_STORE", verb)
				}
				return nil
			},
			RunE: func(c *cobra.Command, _ []string) error {
				t, err := parseStore(a.store)
				if err != nil {
					return err
				}
				if t.scheme == "memory" {
					return usage("schema: the memory store has no tables")
				}
				return f(orBackground(c.Context()), t)
			},
		})
	}
	return schema
}

func schemaPrint(context.Context, target) error {
	if _, err := os.Stdout.WriteString(sqlite.Schema()); err != nil {
		return cannotWrite(err)
	}
	return nil
}

func schemaApply(ctx context.Context, t target) error {
	if t.own {
		if err := os.MkdirAll(filepath.Dir(t.rest), 0o700); err != nil {
			return t.unusable(err, "")
		}
	}
	if err := sqlite.Migrate(ctx, t.rest); err != nil {
		return t.unusable(err, "")
	}
	say("%s is ready", t)
	return nil
}

func schemaVerify(ctx context.Context, t target) error {
	err := sqlite.Verify(ctx, t.rest)
	switch {
	case err == nil:
		fmt.Printf("%s is as it should be\n", t)
		return nil
	case errors.Is(err, fs.ErrPermission):
		return t.unusable(err, "")
	}
	return fail(exitNo, "%s", t.redact(err.Error()))
}

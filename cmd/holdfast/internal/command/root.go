package command

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/admin"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/hold"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/inspect"
)

const rootHelp = `Locks, leases and leader election in the database you already run.

  holdfast run nightly -- ./backup.sh      one at a time, wherever it is started

Use it      run elect acquire extend release state cache
See it      list top show watch history break doctor
Serve it    serve (over HTTP, for every language)
Set it up   schema config sweep completion version help
JanusGraph  claims

Store       --store URL or HOLDFAST_STORE: %s
            without either a file of this user on this host, which no other user and
            no other host meets: ~/.local/state/holdfast/holdfast.db, or in
            $XDG_STATE_HOME
            ?allow=NAME accepts a danger by the name that doctor gives it
Owner       HOLDFAST_OWNER: what others know this process by, such as a pod or a node
Log         -v, or --log json|text[:FILE]: what happens to claims, one event a line
Servers     postgres://USER@HOST/DB?schema=NAME&prefix=NAME&sslmode=verify-full
            mysql://USER@HOST/DB?prefix=NAME&tls=true&socket=PATH
            cassandra://USER@HOST,HOST/KEYSPACE?dc=NAME&prefix=NAME&tls=verify&ca=FILE
            schema and prefix: where the tables are; on PostgreSQL and MySQL what is not
            ours is the driver's
Passwords   not in --store: ps shows it to all users of this host. In HOLDFAST_STORE,
            PGPASSWORD, PGPASSFILE, PGSERVICE, MYSQL_PWD, CASSANDRA_PASSWORD or
            CASSANDRA_PASSWORD_FILE no other user sees them. To etcd and Cassandra they
            go unencrypted without tls=verify
More        holdfast run --help, and so for each verb

exit status: 0 done; 1 the answer is no; 64 usage; 69 store; 70 a fault of ours;
see run --help for more
`

// newRoot makes the command with all its verbs.
func newRoot(args []string) *cobra.Command {
	a := &cli.App{Args: args, Store: os.Getenv("HOLDFAST_STORE")}
	root := &cobra.Command{
		Use:               "holdfast",
		Short:             "Locks, leases and leader election in the database you already run",
		Long:              strings.Replace(rootHelp, "%s", cli.Stores(), 1),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				near := ""
				if s := c.SuggestionsFor(args[0]); len(s) > 0 {
					near = "; did you mean " + s[0] + "?"
				}
				return cli.Usage("unknown command %s%s; see: holdfast --help", cli.Quote(args[0]), near)
			}
			return nil
		},
		SuggestionsMinimumDistance: 2,
		Version:                    versionText(),
		RunE: func(*cobra.Command, []string) error {
			return cli.Usage("a verb is missing, as in: holdfast run nightly -- ./backup.sh; see: holdfast --help")
		},
	}
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if c.Flags().Changed("store") {
			cli.GivenStore = a.Store
		}
		return a.Log.Open()
	}
	root.SetVersionTemplate("{{.Version}}")
	root.PersistentFlags().StringVar(&a.Store, "store", a.Store, "URL of the store")
	a.Log.Flags(root.PersistentFlags())
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		c.OutOrStdout().Write([]byte(helpOf(c)))
	})
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if !slices.Contains(args, "--") && strings.Contains(err.Error(), "unknown") {
			if err := hold.NoDashes(c); err != nil {
				return err
			}
		}
		text, _, _ := strings.Cut(err.Error(), "\n")
		return cli.Usage("%s: %s%s; see: %s --help", cli.VerbOf(c), cli.Escape(text), nearFlag(c, text), c.CommandPath())
	})
	for _, verb := range slices.Concat(hold.Verbs, inspect.Verbs, admin.Verbs) {
		root.AddCommand(verb(a))
	}
	root.AddCommand(versionVerb())
	root.SetHelpCommand(helpVerb(root))
	return root
}

// nearFlag names the flag that an unknown one may have been meant for.
func nearFlag(c *cobra.Command, text string) string {
	_, typed, ok := strings.Cut(text, "unknown flag: --")
	if !ok {
		return ""
	}
	flags := &cobra.Command{SuggestionsMinimumDistance: 2} // for its suggestions
	c.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if near := flags.SuggestionsFor(typed); len(near) > 0 {
		return "; did you mean --" + near[0] + "?"
	}
	return ""
}

// helpOf returns the help of a verb: its text, with the descriptions of its flags.
func helpOf(c *cobra.Command) string {
	if c.Long == "" {
		return c.Short + "\n" + c.UsageString()
	}
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = false
	c.Flags().SortFlags = false
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			own.AddFlag(f)
		}
	})
	return strings.Replace(c.Long, "{flags}\n", own.FlagUsagesWrapped(88), 1)
}

package admin

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

const configHelp = `usage: holdfast config get [SETTING]
       holdfast config set SETTING VALUE

The settings that all who use this store share. They can be changed while everything
runs: each program follows within its TTL. A program with a --ttl of its own keeps it,
and follows history within two minutes.

  ttl      how long a holder may be silent before its lock goes to the next; 15s.
           dead-node-timeout is another name for it
  history  how many of the last holds of each name are kept: 32, 128 or off. It is
           off by default where each write takes a round of consensus, as on etcd and
           Cassandra

examples:
  holdfast config get            ttl 15s
                                 history 32
  holdfast config get ttl        15s
  holdfast config set ttl 30s
  holdfast config set history off

exit status: 0; 64 usage; 69 store
`

// A setting of the store, as the command reads and writes it.
type setting struct {
	name, also string
	get        func(context.Context, *holdfast.Client) (string, error)
	// parse returns a function that sets the value, and the message to print then.
	parse func(value string) (set func(context.Context, *holdfast.Client) error, said string, err error)
}

var settings = []setting{
	{"ttl", "dead-node-timeout", func(ctx context.Context, c *holdfast.Client) (string, error) {
		ttl, err := c.StoreTTL(ctx)
		return cli.Brief(ttl), err
	}, parseTTL},
	{"history", "", func(ctx context.Context, c *holdfast.Client) (string, error) {
		holds, err := c.StoreHistory(ctx)
		return historyText(holds), err
	}, parseHistory},
}

func historyText(holds int) string {
	if holds == 0 {
		return "off"
	}
	return strconv.Itoa(holds)
}

func parseTTL(value string) (set func(context.Context, *holdfast.Client) error, said string, err error) {
	ttl, err := cli.ParseSpan(value)
	switch {
	case err != nil:
		return nil, "", cli.Usage("config set ttl: %v", err)
	case ttl < holdfast.MinTTL:
		return nil, "", cli.Usage("config set ttl: %v is below %v", ttl, holdfast.MinTTL)
	case ttl > holdfast.MaxTTL:
		return nil, "", cli.Usage("config set ttl: %v is above %v", ttl, holdfast.MaxTTL)
	}
	return func(ctx context.Context, c *holdfast.Client) error { return c.SetStoreTTL(ctx, ttl) },
		fmt.Sprintf("ttl is %s now; running programs follow within their TTL, those with a --ttl of their own do not", cli.Brief(ttl)), nil
}

func parseHistory(value string) (set func(context.Context, *holdfast.Client) error, said string, err error) {
	holds, ok := map[string]int{"off": 0, "0": 0, "32": 32, "128": 128}[value]
	if !ok {
		return nil, "", cli.Usage("config set history: %s is none of off, 32 and 128", cli.Quote(value))
	}
	return func(ctx context.Context, c *holdfast.Client) error { return c.SetStoreHistory(ctx, holds) },
		fmt.Sprintf("history is %s now; running programs follow within their TTL, those with a --ttl of their own within two minutes", historyText(holds)), nil
}

func configVerb(a *cli.App) *cobra.Command {
	config := &cobra.Command{
		Use: "config get|set", Short: "Read or change the store's settings", Long: configHelp,
		RunE: func(c *cobra.Command, args []string) error {
			return cli.Usage("config: get or set? As in: holdfast config set ttl 30s")
		},
	}
	config.AddCommand(&cobra.Command{
		Use: "get [SETTING]", Long: configHelp, ValidArgs: []string{"ttl", "history"},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usage("config get: one setting, not %d", len(args))
			}
			return configGet(c.Context(), a, args)
		},
	}, &cobra.Command{
		Use: "set SETTING VALUE", Long: configHelp, ValidArgs: []string{"ttl", "history"},
		RunE: func(c *cobra.Command, args []string) error {
			var which setting
			if len(args) > 0 {
				var err error
				if which, err = findSetting(args[0]); err != nil {
					return err
				}
			}
			if len(args) != 2 {
				return cli.Usage("config set: a setting and its value, as in: holdfast config set ttl 30s")
			}
			return configSet(c.Context(), a, which, args[1])
		},
	})
	return config
}

func findSetting(name string) (setting, error) {
	for _, s := range settings {
		if name == s.name || name == s.also && name != "" {
			return s, nil
		}
	}
	return setting{}, cli.Usage("config: unknown setting %s: there are ttl (or dead-node-timeout, which is the same) and history", cli.Quote(name))
}

func configGet(ctx context.Context, a *cli.App, args []string) error {
	shown := settings
	if len(args) == 1 {
		one, err := findSetting(args[0])
		if err != nil {
			return err
		}
		shown = []setting{one}
	}
	s, err := a.Look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, which := range shown {
		text, err := which.get(ctx, s.Client)
		if err != nil {
			return s.Unusable(err, "")
		}
		if len(args) == 0 {
			text = which.name + " " + text
		}
		if _, err := fmt.Println(text); err != nil {
			return cli.CannotWrite(err)
		}
	}
	return nil
}

func configSet(ctx context.Context, a *cli.App, which setting, value string) error {
	set, said, err := which.parse(value)
	if err != nil {
		return err
	}
	s, err := a.Open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := set(ctx, s.Client); err != nil {
		return s.Unusable(err, "")
	}
	cli.Say("%s", said)
	return nil
}

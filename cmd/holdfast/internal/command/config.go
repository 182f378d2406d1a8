package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
)

const configHelp = `usage: holdfast config get [ttl]
       holdfast config set ttl DUR

The settings that all who use this store share. There is one:

  ttl    how long a holder may be silent before its lock goes to the next; 15s.
         dead-node-timeout is another word for it. It can be changed while
         everything runs: each program follows at its next heartbeat.

examples:
  holdfast config get            ttl 15s
  holdfast config get ttl        15s
  holdfast config set ttl 30s

exit status: 0; 64 usage; 69 store
`

func configVerb(a *app) *cobra.Command {
	config := &cobra.Command{
		Use: "config get|set", Short: "Read or change the store's settings", Long: configHelp,
		RunE: func(c *cobra.Command, args []string) error {
			return usage("config: get or set? As in: holdfast config set ttl 30s")
		},
	}
	config.AddCommand(&cobra.Command{
		Use: "get [ttl]", Long: configHelp, ValidArgs: []string{"ttl"},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("config get: one setting, not %d", len(args))
			}
			if err := knownSetting(args); err != nil {
				return err
			}
			return a.configGet(orBackground(c.Context()), len(args) == 1)
		},
	}, &cobra.Command{
		Use: "set ttl DUR", Long: configHelp, ValidArgs: []string{"ttl"},
		RunE: func(c *cobra.Command, args []string) error {
			if err := knownSetting(args); err != nil {
				return err
			}
			if len(args) != 2 {
				return usage("config set: a setting and its value, as in: holdfast config set ttl 30s")
			}
			return a.configSet(orBackground(c.Context()), args[1])
		},
	})
	return config
}

func knownSetting(args []string) error {
	if len(args) > 0 && args[0] != "ttl" && args[0] != "dead-node-timeout" {
		return usage("config: unknown setting %s: there is ttl (or dead-node-timeout, which is the same)", quote(args[0]))
	}
	return nil
}

func (a *app) configGet(ctx context.Context, bare bool) error {
	s, err := a.look(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	ttl, err := s.StoreTTL(ctx)
	if err != nil {
		return s.unusable(err, "")
	}
	text := "ttl " + brief(ttl)
	if bare {
		text = brief(ttl)
	}
	if _, err := fmt.Println(text); err != nil {
		return cannotWrite(err)
	}
	return nil
}

func (a *app) configSet(ctx context.Context, value string) error {
	ttl, err := parseSpan(value)
	if err != nil {
		return usage("config set ttl: %v", err)
	}
	if ttl < holdfast.MinTTL {
		return usage("config set ttl: %v is below %v", ttl, holdfast.MinTTL)
	}
	if ttl > holdfast.MaxTTL {
		return usage("config set ttl: %v is above %v", ttl, holdfast.MaxTTL)
	}
	s, err := a.open(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.SetStoreTTL(ctx, ttl); err != nil {
		return s.unusable(err, "")
	}
	say("ttl is %s now; running programs follow at their next beat, those with a --ttl of their own do not", brief(ttl))
	return nil
}

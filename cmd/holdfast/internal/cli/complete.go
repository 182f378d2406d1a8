package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// CompleteNames offers the names in use to the shell, before "--".
func (a *App) CompleteNames(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	// ArgsLenAtDash is of no use here: it finds a "--" that cobra adds.
	if slices.Contains(a.Args[:max(len(a.Args)-1, 0)], "--") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Second)
	defer cancel()
	s, err := a.Look(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer s.Close()
	var names []string
	for info, err := range s.List(ctx, prefix) {
		if err != nil || len(names) >= 200 {
			break
		}
		if CheckName(info.Name) == nil {
			names = append(names, info.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

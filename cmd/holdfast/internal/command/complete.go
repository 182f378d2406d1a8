package command

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// completeNames offers the names in use to the shell, before "--".
func (a *app) completeNames(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	// What ArgsLenAtDash says here is that of a "--" which cobra adds.
	if slices.Contains(a.args[:max(len(a.args)-1, 0)], "--") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Second)
	defer cancel()
	s, err := a.look(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer s.Close()
	var names []string
	for info, err := range s.List(ctx, prefix) {
		if err != nil || len(names) >= 200 {
			break
		}
		if checkName(info.Name) == nil {
			names = append(names, info.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

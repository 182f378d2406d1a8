package command

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Help names every verb, says something of every flag, and has examples.
func TestHelp(t *testing.T) {
	root := newRoot(nil)
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if !strings.Contains(rootHelp, strings.Fields(c.CommandPath())[1]) {
			t.Errorf("holdfast --help does not name %s", c.Name())
		}
		text := helpOf(c)
		if !strings.HasPrefix(text, "usage: holdfast ") || !strings.Contains(text, "example") {
			t.Errorf("the help of %s has no usage or no example", c.CommandPath())
		}
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && (f.Usage == "" || !strings.Contains(text, "--"+f.Name)) {
				t.Errorf("the help of %s does not say what --%s does", c.CommandPath(), f.Name)
			}
		})
		for _, line := range strings.Split(text, "\n") {
			if len(line) > 88 {
				t.Errorf("the help of %s has a long line: %s", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	for _, c := range root.Commands() {
		check(c)
	}
}

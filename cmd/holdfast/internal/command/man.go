package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

const helpHelp = `usage: holdfast help [VERB...] [--man DIR]

Prints the help of a verb, as --help does. With --man it writes all of it as manual
pages: holdfast.1, holdfast-run.1 and so on.

{flags}

example:
  holdfast help --man /usr/local/share/man/man1

exit status: 0; 64 usage; 70 the pages cannot be written
`

func helpVerb(root *cobra.Command) *cobra.Command {
	dir := ""
	c := &cobra.Command{Use: "help [VERB...]", Short: "Print the help of a verb, or write manual pages", Long: helpHelp}
	c.Flags().StringVar(&dir, "man", "", "write manual pages to `DIR`")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if dir != "" {
			if err := writePages(root, dir); err != nil {
				return cli.Fail(cli.ExitFault, "cannot write the manual pages: %v", err)
			}
			return nil
		}
		verb, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return root.Args(root, append(rest, args...)[:1])
		}
		return verb.Help()
	}
	return c
}

// writePages writes the help of a verb and of those below it as manual pages.
func writePages(c *cobra.Command, dir string) error {
	title := strings.ReplaceAll(c.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, title+".1"), []byte(manPage(title, c.Short, helpOf(c))), 0o644); err != nil {
		return err
	}
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Name() == "completion" {
			continue
		}
		if err := writePages(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

// manPage returns a manual page that shows a text as it is.
func manPage(title, short, text string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n.nf\n", strings.ToUpper(roff(title)), roff(title), roff(short))
	for line := range strings.Lines(text) {
		b.WriteString(roff(line))
	}
	b.WriteString(".fi\n")
	return b.String()
}

// roff escapes a line, so that nothing in it is taken for a request.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	var b strings.Builder
	for _, r := range line {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}

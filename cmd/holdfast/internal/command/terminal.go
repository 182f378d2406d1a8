package command

import (
	"os"

	"golang.org/x/term"
)

// isTerminal reports whether a person looks at f.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// columns is the width of the terminal.
func columns(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width == 0 {
		return 80
	}
	return width
}

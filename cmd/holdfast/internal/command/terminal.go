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

// limitOf is the width to which lines are cut: that of a terminal; 0 elsewhere.
func limitOf(f *os.File) int {
	if !isTerminal(f) {
		return 0
	}
	return columns(f)
}

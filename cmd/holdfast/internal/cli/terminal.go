package cli

import (
	"bufio"
	"os"
	"strings"

	"golang.org/x/term"
)

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Columns is the width of the terminal.
func Columns(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width == 0 {
		return 80
	}
	return width
}

// LimitOf is the width to which lines are cut: that of a terminal; 0 elsewhere.
func LimitOf(f *os.File) int {
	if !IsTerminal(f) {
		return 0
	}
	return Columns(f)
}

// ReadLine reads what a person answers.
func ReadLine() string {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	return strings.TrimSpace(line)
}

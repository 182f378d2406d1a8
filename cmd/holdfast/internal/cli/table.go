package cli

import (
	"bytes"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Table is lines of cells whose text is fit for a terminal.
type Table [][]string

// Lines returns the lines of a table, in columns. limit is the width of the terminal, to which
// they are cut; 0: none. Each column but the last takes at most a third of it, to leave room for
// the others.
func (t Table) Lines(limit int) []string {
	var widths []int
	for _, cells := range t {
		for i, cell := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], DisplayWidth(cell))
			if limit > 0 && i < len(cells)-1 {
				widths[i] = min(widths[i], max(limit/3, 12))
			}
		}
	}
	lines := make([]string, len(t))
	var line strings.Builder
	for n, cells := range t {
		line.Reset()
		for i, cell := range cells {
			last := i == len(cells)-1
			if limit > 0 && !last {
				cell = Cut(cell, widths[i])
			}
			line.WriteString(cell)
			if !last {
				line.WriteString(strings.Repeat(" ", widths[i]-DisplayWidth(cell)+2))
			}
		}
		lines[n] = strings.TrimRight(line.String(), " ")
		if limit > 0 {
			lines[n] = Cut(lines[n], limit)
		}
	}
	return lines
}

// Write writes the table to a file or, cut to its width, to a terminal.
func (t Table) Write(w io.Writer, limit int) error {
	var b bytes.Buffer
	for _, line := range t.Lines(limit) {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Cut shortens a text to at most width cells of a terminal; an ellipsis stands for the rest.
func Cut(s string, width int) string {
	if len(s) <= width || DisplayWidth(s) <= width {
		return s
	}
	used := 0
	for i, r := range s {
		if w := runeWidth(r); used+w > width-1 {
			return s[:i] + "…"
		} else {
			used += w
		}
	}
	return s
}

// DisplayWidth is how many cells of a terminal a text takes.
func DisplayWidth(s string) (width int) {
	i := 0
	for i < len(s) && s[i] < utf8.RuneSelf {
		i++
	}
	if i == len(s) { // each character takes one
		return i
	}
	for _, r := range s {
		width += runeWidth(r)
	}
	return width
}

// wide are the characters that take two cells: East Asian scripts, full-width forms, emoji.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{{0x1100, 0x115f, 1}, {0x2e80, 0x303e, 1}, {0x3041, 0xa4cf, 1}, {0xac00, 0xd7a3, 1},
		{0xf900, 0xfaff, 1}, {0xfe30, 0xfe6f, 1}, {0xff00, 0xff60, 1}, {0xffe0, 0xffe6, 1}},
	R32: []unicode.Range32{{0x1f300, 0x1f64f, 1}, {0x1f900, 0x1f9ff, 1}, {0x20000, 0x3fffd, 1}},
}

func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

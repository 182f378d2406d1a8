package holdfast_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// documents are the pages that a reader meets.
func documents(t *testing.T) []string {
	t.Helper()
	if !isDir("verify") {
		t.Skip("another module is not here: the pages show and link what is in all of them")
	}
	pages := []string{"README.md", "DESIGN.md", "CONTRIBUTING.md"}
	err := filepath.WalkDir("docs", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".md" {
			pages = append(pages, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// Each block of Go or SQL in a page stands, line for line, in a file that is compiled and
// run: a test or a program in examples.
func TestShownCode(t *testing.T) {
	pages := documents(t)
	sources := shownSources(t)
	found := 0
	for _, page := range pages {
		for _, code := range blocks(trimmedLines(t, page)) {
			found++
			if !slices.ContainsFunc(sources, func(s string) bool { return strings.Contains(s, code) }) {
				t.Errorf("%s shows code that no test or example has:\n%s\n", page, code)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d blocks of code were found", found)
	}
}

// shownSources are all tests and examples, each line without the blanks around it.
func shownSources(t *testing.T) (sources []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		name = filepath.ToSlash(name)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || len(entry.Name()) > 1 && entry.Name()[0] == '.'):
			return filepath.SkipDir
		case strings.HasSuffix(name, "_test.go"), strings.HasPrefix(name, "examples/") && strings.HasSuffix(name, ".go"):
			sources = append(sources, strings.Join(trimmedLines(t, name), "\n"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sources
}

// blocks are the blocks of Go and SQL in the lines of a page.
func blocks(lines []string) (codes []string) {
	var block []string
	in, wanted := false, false
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "```") && in:
			if wanted {
				codes = append(codes, strings.Join(block, "\n"))
			}
			in, block = false, nil
		case strings.HasPrefix(line, "```"):
			in, wanted = true, line == "```go" || line == "```sql"
		case in:
			block = append(block, line)
		}
	}
	return codes
}

func trimmedLines(t *testing.T, name string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip(err) // another module, where each is alone
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

// Each link of a page to a file or to a heading leads there, and the index of docs has
// each of its pages.
func TestLinks(t *testing.T) {
	pages := documents(t)
	anchors := make(map[string][]string)
	for _, page := range pages {
		_, anchors[page] = prose(trimmedLines(t, page))
	}
	n, indexed := 0, make(map[string]bool)
	for _, page := range pages {
		text, _ := prose(trimmedLines(t, page))
		for _, m := range append(link.FindAllStringSubmatch(text, -1), picture.FindAllStringSubmatch(text, -1)...) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			n++
			file := page
			if target != "" {
				file = path.Join(path.Dir(page), target)
			}
			if page == "docs/README.md" {
				indexed[file] = true
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors[file], anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", page, m[1], file)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d links were found", n)
	}
	for _, page := range pages {
		if strings.HasPrefix(page, "docs/") && page != "docs/README.md" && page != "docs/SUMMARY.md" && !indexed[page] {
			t.Errorf("docs/README.md does not lead to %s", page)
		}
	}
}

var (
	picture  = regexp.MustCompile(`\bsrc(?:set)?="([^"\s]+)"`)
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	codeSpan = regexp.MustCompile("`[^`]*`")
)

// prose is the text of a page without its code, and the anchors of its headings as
// GitHub makes them.
func prose(lines []string) (text string, anchors []string) {
	var b strings.Builder
	times := make(map[string]int)
	in := false
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "```"):
			in = !in
		case in:
		case strings.HasPrefix(line, "#"):
			a := anchor(strings.TrimSpace(strings.TrimLeft(line, "#")))
			if n := times[a]; n > 0 {
				anchors = append(anchors, fmt.Sprintf("%s-%d", a, n))
			} else {
				anchors = append(anchors, a)
			}
			times[a]++
		default:
			b.WriteString(codeSpan.ReplaceAllString(line, "") + "\n")
		}
	}
	return b.String(), anchors
}

func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// Site is a preprocessor for mdBook. Pages link to files by their place in the repository. On the
// site a link leads to the page or the picture, if the site has it, and otherwise to the repository
// on the web.
package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"path"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "supports" {
		return // every renderer
	}
	if err := preprocess(os.Stdin, os.Stdout, os.DirFS(".").(statFS)); err != nil {
		log.Fatal(err)
	}
}

// preprocess reads a context and a book, as mdBook sends them, and writes the book.
func preprocess(r io.Reader, w io.Writer, files statFS) error {
	var in [2]map[string]any
	if err := json.NewDecoder(r).Decode(&in); err != nil {
		return err
	}
	address, ok := at(in[0], "config", "output", "html", "git-repository-url").(string)
	if !ok {
		return errors.New("book.toml has no git-repository-url for links that leave the site")
	}
	s := site{pages: make(map[string]string), files: files, repository: address}
	chapters(in[1], func(c map[string]any) {
		if source, ok := c["source_path"].(string); ok {
			file := path.Join("docs", source)
			s.pages[file] = place(file)
		}
	})
	chapters(in[1], func(c map[string]any) {
		if source, ok := c["source_path"].(string); ok {
			file := path.Join("docs", source)
			c["path"] = s.pages[file]
			c["content"] = s.links(file, c["content"].(string))
		}
	})
	return json.NewEncoder(w).Encode(in[1])
}

// chapters calls do for each chapter below a node of a book.
func chapters(node any, do func(map[string]any)) {
	switch node := node.(type) {
	case []any:
		for _, n := range node {
			chapters(n, do)
		}
	case map[string]any:
		if c, ok := node["Chapter"].(map[string]any); ok {
			do(c)
			chapters(c["sub_items"], do)
		}
		chapters(node["items"], do)
	}
}

func at(node any, names ...string) any {
	for _, name := range names {
		m, _ := node.(map[string]any)
		node = m[name]
	}
	return node
}

type statFS interface {
	Stat(name string) (os.FileInfo, error)
}

type site struct {
	pages      map[string]string // a file of the repository, and where the site has it
	files      statFS            // the repository
	repository string            // its address
}

// place is where the site has a page, with docs for its root. The README of the repository is its
// front page.
func place(file string) string {
	if file == "docs/README.md" {
		return "documentation.md"
	}
	file = strings.TrimPrefix(file, "docs/")
	if path.Base(file) == "README.md" {
		return path.Join(path.Dir(file), "index.md")
	}
	return file
}

var codeOrLink = regexp.MustCompile("`[^`]*`|\\]\\([^()\\s]+\\)")

// links is the text of a page with its links changed to fit the site.
func (s *site) links(file, text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if !code {
			line = codeOrLink.ReplaceAllStringFunc(line, func(m string) string {
				if m[0] == '`' {
					return m
				}
				return "](" + s.link(file, m[2:len(m)-1]) + ")"
			})
		}
		b.WriteString(line)
	}
	return b.String()
}

// link is what a link of a page has to be on the site.
func (s *site) link(file, link string) string {
	target, anchor, has := strings.Cut(link, "#")
	if target == "" || strings.Contains(link, ":") {
		return link
	}
	if has {
		anchor = "#" + anchor
	}
	target = path.Join(path.Dir(file), target)
	to, ok := s.pages[target]
	info, err := s.files.Stat(target)
	switch {
	case ok:
	case err == nil && !info.IsDir() && strings.HasPrefix(target, "docs/"):
		to = strings.TrimPrefix(target, "docs/")
	case err == nil && info.IsDir():
		return s.repository + "/tree/main/" + target + anchor
	default:
		return s.repository + "/blob/main/" + target + anchor
	}
	return strings.Repeat("../", strings.Count(s.pages[file], "/")) + to + anchor
}

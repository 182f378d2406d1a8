package main

import (
	"bytes"
	"encoding/json"
	"html"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const repository = "https://github.com/holdfast-lock/holdfast"

// In these tests the working directory is the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// summary are the pages that docs/SUMMARY.md lists, by their paths from the root.
func summary(t *testing.T) (pages []string) {
	t.Helper()
	if _, err := os.Stat("verify"); err != nil {
		t.Skip("another module is not here: the pages link what is in all of them")
	}
	for _, m := range regexp.MustCompile(`\]\(([^()\s]+)\)`).FindAllStringSubmatch(read(t, "docs/SUMMARY.md"), -1) {
		pages = append(pages, path.Join("docs", m[1]))
	}
	return pages
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The summary lists each page once.
func TestSummary(t *testing.T) {
	got := summary(t)
	want := []string{"README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md"}
	err := filepath.WalkDir("docs", func(name string, _ fs.DirEntry, err error) error {
		if name = filepath.ToSlash(name); path.Ext(name) == ".md" && name != "docs/SUMMARY.md" {
			want = append(want, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := filepath.Glob("clients/*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, clients...)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		for _, page := range want {
			if !slices.Contains(got, page) {
				t.Errorf("docs/SUMMARY.md does not list %s", page)
			}
		}
		t.Errorf("docs/SUMMARY.md lists %d pages, and there are %d", len(got), len(want))
	}
}

// Each link of the site leads to a page or a file of the site, or to the repository, which has it.
func TestPreprocess(t *testing.T) {
	type chapter = map[string]any
	var items []any
	for _, page := range summary(t) {
		source, err := filepath.Rel("docs", page)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, chapter{"Chapter": chapter{"source_path": filepath.ToSlash(source), "content": read(t, page), "sub_items": []any{}}})
	}
	// Chapters may lie below each other, and a draft has no file.
	last := items[len(items)-1].(chapter)["Chapter"].(chapter)
	items = items[:len(items)-1]
	items[3].(chapter)["Chapter"].(chapter)["sub_items"] = []any{chapter{"Chapter": last}}
	items = append(items, "Separator", chapter{"PartTitle": "Inside"}, chapter{"Chapter": chapter{"source_path": nil, "content": ""}})
	var in, out bytes.Buffer
	err := json.NewEncoder(&in).Encode([]any{
		chapter{"config": chapter{"output": chapter{"html": chapter{"git-repository-url": repository}}}},
		chapter{"items": items},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := preprocess(&in, &out, os.DirFS(".").(statFS)); err != nil {
		t.Fatal(err)
	}
	var book any
	if err := json.NewDecoder(&out).Decode(&book); err != nil {
		t.Fatal(err)
	}
	contents := make(map[string]string)
	chapters(book, func(c chapter) {
		if c["source_path"] == nil {
			return
		}
		at := c["path"].(string)
		if _, twice := contents[at]; twice {
			t.Errorf("two pages are at %s", at)
		}
		contents[at] = c["content"].(string)
	})
	n := make(map[string]int)
	for at, text := range contents {
		for _, m := range regexp.MustCompile("(?s)```.*?```|`[^`\n]*`|\\]\\(([^()\\s]+)\\)").FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			file, ours := strings.CutPrefix(target, repository)
			switch {
			case target == "":
			case ours:
				n["repository"]++
				_, file, _ = strings.Cut(strings.TrimPrefix(file, "/"), "/main/")
				if _, err := os.Stat(file); err != nil {
					t.Errorf("%s links to %s: %v", at, target, err)
				}
			case strings.Contains(target, ":"):
			default:
				file := path.Join(path.Dir(at), target)
				if _, ok := contents[file]; ok {
					n["page"]++
				} else if _, err := os.Stat(path.Join("docs", file)); err != nil || path.Ext(file) == ".md" {
					t.Errorf("%s links to %s, which is not in the site", at, target)
				} else {
					n["file"]++
				}
			}
		}
	}
	if n["page"] < 200 || n["file"] < 4 || n["repository"] < 20 {
		t.Errorf("found links of these kinds: %v", n)
	}
}

// What mdBook renders has no link within the site that leads nowhere.
func TestRendered(t *testing.T) {
	summary(t)
	mdbook, err := exec.LookPath("mdbook")
	if err != nil {
		t.Skip("there is no mdbook: cargo install mdbook")
	}
	site := t.TempDir()
	if out, err := exec.Command(mdbook, "build", "-d", site).CombinedOutput(); err != nil || bytes.Contains(out, []byte("WARN")) {
		t.Fatalf("mdbook build: %v\n%s", err, out)
	}
	ids := make(map[string][]string)
	hrefs := make(map[string][]string)
	err = filepath.WalkDir(site, func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) != ".html" || filepath.Base(name) == "404.html" || filepath.Base(name) == "toc.html" {
			return err
		}
		text := read(t, name)
		for _, m := range regexp.MustCompile(`\s(id|href|src)="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			if m[1] == "id" {
				ids[name] = append(ids[name], html.UnescapeString(m[2]))
			} else {
				hrefs[name] = append(hrefs[name], html.UnescapeString(m[2]))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for page, links := range hrefs {
		for _, link := range links {
			u, err := url.Parse(link)
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			if u.Scheme != "" || u.Host != "" {
				continue
			}
			n++
			file := page
			if u.Path != "" {
				file = filepath.Join(filepath.Dir(page), u.Path)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", page, link, err)
			} else if u.Fragment != "" && !slices.Contains(ids[file], u.Fragment) {
				t.Errorf("%s links to %s, which has no such heading", page, link)
			}
		}
	}
	if len(hrefs) < 50 || n < 1000 {
		t.Errorf("found %d pages, and %d links in them", len(hrefs), n)
	}
}

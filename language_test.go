package holdfast_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// A text is what a user or a reader meets, without code.
type passage struct {
	where string
	lines []string // as they stand
	prose string   // of one paragraph each line
}

// What a user reads has no sentence with a headless "who" for its subject, nobody "is told" or
// "has it", and no line is longer than 100 characters: pages, public doc comments, and what the
// command says.
func TestLanguage(t *testing.T) {
	texts := append(pages(t), comments(t)...)
	texts = append(texts, sayings(t)...)
	if len(texts) < 1500 {
		t.Errorf("only %d texts were found", len(texts))
	}
	for _, text := range texts {
		for paragraph := range strings.Lines(text.prose) {
			for _, fault := range faults(paragraph) {
				t.Errorf("%s: %q", text.where, fault)
			}
		}
		for _, line := range text.lines {
			if n := utf8.RuneCountInString(line); n > 100 {
				t.Errorf("%s: a line of %d characters: %s", text.where, n, line)
			}
		}
	}
}

var (
	sentence = regexp.MustCompile(`[^.?!]*(?:[.?!]+[^ .?!][^.?!]*)*[.?!]*`)
	isTold   = regexp.MustCompile(`(?i)\b\w+ (?:is|are|was|were|be|been|being) told\b(?: apart)?`)
	// A clause whose subject is who without a noun. One in a list of questions ("what it is, and who
	// has it") is none, nor is one about a person named before it ("the user, who").
	headless = regexp.MustCompile(`(?:^|; |\b(?:than|for|but|so|if|while|where|of|by|from|to) )[Ww]ho (?:\w+ ){0,6}\w+`)
	listed   = regexp.MustCompile(`(?:: |\band )who (?:\w+ ){0,6}\w+`)
	question = regexp.MustCompile(`(?i)\b(?:what|which|how|where|whose|when|why|says?|sees?|tells?|knows?|shows?)\b`)
)

// faults are the clauses of a paragraph that a native reader would stumble over.
func faults(paragraph string) (found []string) {
	for _, s := range sentence.FindAllString(paragraph, -1) {
		s = strings.TrimSpace(s)
		for _, m := range isTold.FindAllString(s, -1) {
			if !strings.HasSuffix(m, " apart") {
				found = append(found, m)
			}
		}
		if strings.HasSuffix(s, "?") {
			continue
		}
		found = append(found, headless.FindAllString(s, -1)...)
		if !question.MatchString(s) {
			found = append(found, listed.FindAllString(s, -1)...)
		}
	}
	return found
}

// The rule finds what it is for, and no sentence that is right.
func TestFaults(t *testing.T) {
	for text, want := range map[string]string{
		"Who waits asks.":                              "Who waits asks",
		"The lock is free. Who comes later waits.":     "Who comes later waits",
		"A role may lock; who only looks may not.":     "; who only looks may not",
		"A flag for who is suspected.":                 "for who is suspected",
		"Its holder is told to stop.":                  "holder is told",
		"Readers are told of it before.":               "Readers are told",
		"A mark, and who comes by writes a heartbeat.": "and who comes by writes a heartbeat",
		"Who may break this?":                          "",
		"It shows what is held, and who waits.":        "",
		"The user, who may do everything.":             "",
		"Those who wait are served in order.":          "",
		"Two names that cannot be told apart.":         "",
	} {
		if got := strings.Join(faults(text), "|"); got != want {
			t.Errorf("%q: found %q, want %q", text, got, want)
		}
	}
}

// pages are the paragraphs of the pages, without tables, code and links.
func pages(t *testing.T) (texts []passage) {
	for _, page := range append(documents(t), "deploy/README.md", "clients/python/README.md", "clients/typescript/README.md") {
		if page == "CONTRIBUTING.md" {
			continue
		}
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		it := passage{where: page}
		var b strings.Builder
		code := false
		for line := range strings.Lines(string(raw)) {
			line = strings.TrimRight(line, "\n")
			switch trimmed := strings.TrimSpace(line); {
			case strings.HasPrefix(trimmed, "```"):
				code = !code
			case code || strings.HasPrefix(line, "    "):
			case trimmed == "":
				b.WriteByte('\n')
			case strings.HasPrefix(trimmed, "|"):
				b.WriteString("\n" + strings.ReplaceAll(trimmed, "|", "\n") + "\n")
			default:
				if strings.HasPrefix(trimmed, "- ") {
					b.WriteByte('\n')
				}
				b.WriteString(strings.TrimPrefix(trimmed, "- ") + " ")
				if !strings.Contains(line, "](") && !strings.Contains(line, "://") {
					it.lines = append(it.lines, line)
				}
			}
		}
		it.prose = plain(b.String())
		texts = append(texts, it)
	}
	return texts
}

// plain is prose without code, links and emphasis.
func plain(s string) string {
	s = codeSpan.ReplaceAllString(s, "X")
	s = link.ReplaceAllString(s, "]")
	return strings.NewReplacer("**", "", "*", "", "[", "", "]", "").Replace(s)
}

// comments are the doc comments of all public packages.
func comments(t *testing.T) (texts []passage) {
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch name = filepath.ToSlash(name); {
		case err != nil:
			return err
		case !entry.IsDir() || name == ".":
			if name != "." {
				return nil
			}
		case entry.Name()[0] == '.' || entry.Name() == "testdata" || entry.Name() == "internal" || name == "verify" || name == "bench":
			return filepath.SkipDir
		}
		files, fset := sources(t, name)
		if len(files) == 0 {
			return nil
		}
		pkg, err := doc.NewFromFiles(fset, files, "example.com/"+name)
		if err != nil {
			return err
		}
		add := func(what, comment string) {
			if comment == "" {
				return
			}
			it := passage{where: path.Join(name, what)}
			var b strings.Builder
			for line := range strings.Lines(comment) {
				switch trimmed := strings.TrimSpace(line); {
				case strings.HasPrefix(line, "\t"):
				case trimmed == "":
					b.WriteByte('\n')
				default:
					b.WriteString(trimmed + " ")
					if !strings.Contains(line, "://") {
						it.lines = append(it.lines, "// "+strings.TrimRight(line, "\n"))
					}
				}
			}
			it.prose = plain(b.String())
			texts = append(texts, it)
		}
		add("", pkg.Doc)
		values := func(vs []*doc.Value) {
			for _, v := range vs {
				add(strings.Join(v.Names, ","), v.Doc)
			}
		}
		funcs := func(of string, fs []*doc.Func) {
			for _, f := range fs {
				add(of+f.Name, f.Doc)
			}
		}
		values(pkg.Consts)
		values(pkg.Vars)
		funcs("", pkg.Funcs)
		for _, typ := range pkg.Types {
			add(typ.Name, typ.Doc)
			values(typ.Consts)
			values(typ.Vars)
			funcs("", typ.Funcs)
			funcs(typ.Name+".", typ.Methods)
			ast.Inspect(typ.Decl, func(n ast.Node) bool {
				if f, ok := n.(*ast.Field); ok && len(f.Names) > 0 && f.Names[0].IsExported() {
					add(typ.Name+"."+f.Names[0].Name, f.Doc.Text())
					add(typ.Name+"."+f.Names[0].Name, f.Comment.Text())
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// sayings are the help texts of the command, and what it and the packages say of errors and dangers.
func sayings(t *testing.T) (texts []passage) {
	for _, dir := range append(packages(t), "cmd/holdfast/internal/command", "cmd/holdfast/internal/hold", "cmd/holdfast/internal/inspect",
		"cmd/holdfast/internal/admin", "cmd/holdfast/internal/cli", "cmd/holdfast/internal/guard", "internal/sqlstore", "serve", "serve/access", "state") {
		files, fset := sources(t, dir)
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				value, err := strconv.Unquote(lit.Value)
				if err != nil || !strings.Contains(value, " ") {
					return true
				}
				it := passage{where: fset.Position(lit.Pos()).String()}
				var b strings.Builder
				for line := range strings.Lines(value) {
					if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "  ") {
						b.WriteByte('\n')
					}
					b.WriteString(strings.TrimSpace(line) + " ")
					if strings.HasPrefix(dir, "cmd/") && lit.Value[0] == '`' && !strings.Contains(line, "://") {
						it.lines = append(it.lines, strings.TrimRight(line, "\n"))
					}
				}
				it.prose = b.String()
				texts = append(texts, it)
				return true
			})
		}
	}
	return texts
}

// sources are the files of a package that are not tests, of whatever system.
func sources(t *testing.T, dir string) (files []*ast.File, fset *token.FileSet) {
	fset = token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files, fset
}

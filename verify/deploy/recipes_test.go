package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// holdfast is the command, built once.
func holdfast(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "hf"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", built.dir, ".")
		build.Dir = "../../cmd/holdfast"
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "holdfast")
}

var built struct {
	sync.Once
	dir string
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(built.dir)
	os.Exit(code)
}

// shown are the blocks of a language in a recipe.
func shown(t *testing.T, page, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/recipes", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(m[1]))
	}
	if len(blocks) == 0 {
		t.Fatalf("%s shows no %s", page, language)
	}
	return blocks
}

// systemd understands the units of the recipe.
func TestRecipeUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze")
	}
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, unit := range shown(t, "systemd.md", "ini") {
		first, _, _ := strings.Cut(unit, "\n")
		path := filepath.Join(dir, filepath.Base(first))
		args = append(args, path)
		unit = strings.ReplaceAll(unit, "/usr/local/bin/holdfast", "/bin/true") // it need not be installed
		if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || regexp.MustCompile("nightly|scheduler").Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

// The line of the crontab has five fields, a user, and a command that runs its job on one of three
// hosts, and says nothing on the others.
func TestRecipeCrontab(t *testing.T) {
	dir := t.TempDir()
	job := filepath.Join(dir, "backup.sh")
	if err := os.WriteFile(job, []byte("#!/bin/sh\necho ran >>"+dir+"/runs\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "XDG_STATE_HOME="+dir, "HOLDFAST_STORE=", "PATH="+filepath.Dir(holdfast(t))+":"+os.Getenv("PATH"))
	var commands []string
	for line := range strings.Lines(shown(t, "cron.md", "crontab")[0]) {
		line = strings.TrimSpace(line)
		switch name, _, isSetting := strings.Cut(line, "="); {
		case strings.HasPrefix(line, "#") || isSetting && !strings.ContainsAny(name, " \t"):
		default:
			command, err := cronCommand(line)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			commands = append(commands, strings.ReplaceAll(command, "/srv/app/backup.sh", job))
		}
	}
	if len(commands) != 1 {
		t.Fatalf("commands %q", commands)
	}
	var hosts sync.WaitGroup
	for host := range 3 {
		runtime := filepath.Join(dir, fmt.Sprint("host", host))
		if err := os.Mkdir(runtime, 0o700); err != nil {
			t.Fatal(err)
		}
		hosts.Go(func() {
			c := exec.Command("/bin/sh", "-c", commands[0])
			c.Env = append(slices.Clip(env), "XDG_RUNTIME_DIR="+runtime)
			if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("host %d: %v, and cron mails: %s", host, err, out)
			}
		})
	}
	hosts.Wait()
	if runs, err := os.ReadFile(filepath.Join(dir, "runs")); string(runs) != "ran\n" {
		t.Errorf("the job ran %d times: %v", bytes.Count(runs, []byte("\n")), err)
	}
}

// cronCommand reads a line of /etc/cron.d as crontab(5) has it.
func cronCommand(line string) (string, error) {
	m := regexp.MustCompile(`^(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+([a-z_][a-z0-9_-]*)\s+(.+)$`).FindStringSubmatch(line)
	if m == nil {
		return "", errors.New("not five fields, a user and a command")
	}
	for i, most := range []int{59, 23, 31, 12, 7} {
		for part := range strings.SplitSeq(m[i+1], ",") {
			value, step, stepped := strings.Cut(part, "/")
			if n, err := strconv.Atoi(step); stepped && (err != nil || n < 1) {
				return "", fmt.Errorf("the step %q", part)
			}
			for end := range strings.SplitSeq(value, "-") {
				if n, err := strconv.Atoi(end); value != "*" && (err != nil || n < 0 || n > most) {
					return "", fmt.Errorf("the field %q", m[i+1])
				}
			}
		}
	}
	if strings.Contains(m[7], "%") {
		return "", errors.New("cron makes a new line of %")
	}
	return m[7], nil
}

// As the first process of a container holdfast hands on the status and signals, leaves nothing
// behind, and is succeeded at once by another container that shares its runtime directory.
func TestRecipeFirstProcess(t *testing.T) {
	isolate := []string{"--pid", "--fork", "--kill-child", "--mount-proc", "--"}
	if out, err := exec.Command("unshare", append(isolate, "true")...).CombinedOutput(); err != nil {
		t.Skipf("no pid namespace can be made here: %v: %s", err, out)
	}
	dir := t.TempDir()
	container := func(args ...string) *exec.Cmd {
		c := exec.Command("unshare", slices.Concat(isolate, []string{holdfast(t), "run", "nightly", "--"}, args)...)
		c.Env = append(os.Environ(), "XDG_STATE_HOME="+dir, "XDG_RUNTIME_DIR="+dir, "HOLDFAST_STORE=")
		return c
	}
	for _, test := range []struct {
		script string
		status int
		says   string
	}{
		{`exit 3`, 3, ""},
		{`trap 'exit 5' TERM; kill -TERM 1; while :; do sleep 0.05; done`, 5, ""},
		{`sleep 1000 & exit 4`, 4, `left 1 of its processes running; asked to end before "nightly" is released`},
	} {
		c := container("sh", "-c", test.script)
		out, _ := c.CombinedOutput()
		if got := c.ProcessState.ExitCode(); got != test.status || !strings.Contains(string(out), test.says) {
			t.Errorf("%s: status %d, want %d, and %s", test.script, got, test.status, out)
		}
	}
	killed := container("sh", "-c", "echo up; exec sleep 1000")
	out, err := killed.StdoutPipe()
	if err == nil {
		err = killed.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	out.Read(make([]byte, 3)) // it is up
	killed.Process.Kill()     // and all in its namespace with it
	began := time.Now()
	if out, err := container("true").CombinedOutput(); err != nil || time.Since(began) > 10*time.Second {
		t.Errorf("the next container has the lock after %v: %v: %s", time.Since(began), err, out)
	}
	killed.Wait()
}

// What the recipes run has flags that the command has.
func TestRecipeFlags(t *testing.T) {
	pages, err := filepath.Glob("../../docs/recipes/*.md")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]string)
	flag := regexp.MustCompile(`(?:^|\s)(-[a-zA-Z]|--[a-z-]+)\b`)
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte(", "), []byte(" ")) // a list of YAML
		for _, m := range regexp.MustCompile("holdfast (run|elect|acquire|extend|release|serve|show|history)([^\n`]*)").FindAllSubmatch(text, -1) {
			verb, line := string(m[1]), string(m[2])
			line, _, _ = strings.Cut(line, " -- ")
			line, _, _ = strings.Cut(line, ";")
			for _, f := range flag.FindAllStringSubmatch(line, -1) {
				if known[verb] == "" {
					help, err := exec.Command(holdfast(t), verb, "--help").Output()
					if err != nil {
						t.Fatal(err)
					}
					known[verb] = string(help)
				}
				found++
				if !regexp.MustCompile(regexp.QuoteMeta(f[1]) + `[ ,]`).MatchString(known[verb]) {
					t.Errorf("%s: holdfast %s has no %s", page, verb, f[1])
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d flags were found", found)
	}
}

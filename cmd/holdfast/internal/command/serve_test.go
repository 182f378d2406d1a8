//go:build linux

package command

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What docs/serve.md shows is what happens: each command in it is run, one after the other, and
// says what stands below it, where … is anything.
func TestServePage(t *testing.T) {
	for _, tool := range []string{"bash", "curl", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	page, err := os.ReadFile("../../../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"bin", "run"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(self, filepath.Join(dir, "bin", "holdfast")); err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("bash")
	shell.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "XDG_STATE_HOME="+filepath.Join(dir, "state"),
		"XDG_RUNTIME_DIR="+filepath.Join(dir, "run"), "HOLDFAST_STORE=", "NO_PROXY=*")
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.Stderr = shell.Stdout
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(2*time.Minute, func() { syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) })
	defer func() {
		stuck.Stop()
		syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		shell.Wait()
	}()
	said := bufio.NewScanner(out)
	said.Buffer(nil, 1<<20)
	line := func(command string) string {
		if !said.Scan() {
			t.Fatalf("%s: nothing came: %v", command, said.Err())
		}
		return said.Text()
	}
	const end = "== the command has ended"
	ran := 0
	lines := strings.Split(string(page), "\n")
	for i := 0; i < len(lines); i++ {
		command, ok := strings.CutPrefix(lines[i], "    $ ")
		if !ok {
			continue
		}
		var want []string
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "    ") && !strings.HasPrefix(lines[i+1], "    $ ") {
			i++
			want = append(want, strings.TrimPrefix(lines[i], "    "))
		}
		ran++
		var got []string
		if strings.HasSuffix(command, "&") {
			io.WriteString(in, command+"\n")
			for range want {
				got = append(got, line(command))
			}
		} else {
			fmt.Fprintf(in, "%s\necho '%s'\n", command, end)
			for text := line(command); text != end; text = line(command) {
				if before, ended := strings.CutSuffix(text, end); ended { // its last line has no end
					got = append(got, before)
					break
				}
				got = append(got, text)
			}
		}
		if !saysWhat(want, got) {
			t.Errorf("$ %s\nsays\n%s\nand the page shows\n%s", command, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if ran < 15 {
		t.Errorf("only %d commands were found", ran)
	}
}

// saysWhat compares lines with those that a page shows.
func saysWhat(want, got []string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.Join(want, "\n")), "…", `[^\n]*`)
	return regexp.MustCompile("^" + pattern + "$").MatchString(strings.Join(got, "\n"))
}

//go:build linux

package command

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What serve.md, security.md and the recipes show is what happens: each command in them is run, one after the
// other, and says what stands below it, where … is anything, and a line of … any lines.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob("../../../../docs/recipes/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	for _, page := range append(pages, "../../../../docs/serve.md", "../../../../docs/security.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		if slices.ContainsFunc(lines, shown) {
			t.Run(filepath.Base(page), func(t *testing.T) {
				t.Parallel()
				play(t, lines)
			})
		}
	}
}

func shown(line string) bool { return strings.HasPrefix(line, "    $ ") }

// play runs the commands of a page in one shell, with a store of its own.
func play(t *testing.T, lines []string) {
	for _, tool := range []string{"bash", "curl", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
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
}

// saysWhat compares lines with those that a page shows.
func saysWhat(want, got []string) bool {
	pattern := regexp.QuoteMeta(strings.Join(want, "\n"))
	if before, ok := strings.CutSuffix(pattern, "\n…"); ok || pattern == "…" { // the rest
		pattern = strings.TrimSuffix(before, "…") + "(?s:.*)"
	}
	pattern = strings.ReplaceAll(pattern, "…", `[^\n]*`)
	return regexp.MustCompile("^" + pattern + "$").MatchString(strings.Join(got, "\n"))
}

// systemd hears that the server is ready, that it lives, and that it ends; SIGTERM ends it well,
// and check says what it is at that time.
func TestServeNotify(t *testing.T) {
	cert, key := selfSigned(t)
	for how, args := range map[string][]string{
		"socket": {"--listen", "-"},
		"TLS":    {"--socket", "-", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key},
	} {
		t.Run(how, func(t *testing.T) { serveNotify(t, args, how == "socket") })
	}
}

// serveNotify is TestServeNotify of one server. checked: holdfast serve check finds it.
func serveNotify(t *testing.T, args []string, checked bool) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "holdfast")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	heard, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Close()
	heard.SetReadDeadline(time.Now().Add(time.Minute))
	hear := func(want string) {
		t.Helper()
		text := make([]byte, 100)
		n, err := heard.Read(text)
		if got := string(text[:n]); err != nil || got != want {
			t.Fatalf("systemd hears %q, %v, want %q", got, err, want)
		}
	}
	env := append(os.Environ(), "XDG_STATE_HOME="+dir, "XDG_RUNTIME_DIR="+dir, "RUNTIME_DIRECTORY="+dir, "HOLDFAST_STORE=")
	check := func() error {
		c := exec.Command(program, "serve", "check")
		c.Env = env
		return c.Run()
	}
	if check() == nil {
		t.Error("check finds a server that is not there")
	}
	server := exec.Command(program, append([]string{"serve", "--log", "none"}, args...)...)
	server.Env = append(env, "NOTIFY_SOCKET="+filepath.Join(dir, "notify"), "WATCHDOG_USEC=300000")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Process.Kill()
	hear("READY=1")
	hear("WATCHDOG=1")
	if err := check(); checked && err != nil {
		t.Errorf("check: %v", err)
	}
	server.Process.Signal(syscall.SIGTERM)
	for text := make([]byte, 100); ; {
		n, err := heard.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		if string(text[:n]) == "STOPPING=1" {
			break
		}
	}
	if err := server.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// selfSigned makes a certificate and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

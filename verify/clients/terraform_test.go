package clients

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// Terraform itself locks its state by way of a server, is refused while another run has it, and
// takes it from one that was killed by force-unlock.
func TestTerraform(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("terraform")
	if err != nil {
		program = tool(t, "tofu")
	}
	client, err := holdfast.New(memory.New(), &holdfast.Options{RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	api := serve.New(client, nil)
	locks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, secret, _ := r.BasicAuth(); secret != "secret" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		p := &access.Principal{Name: "ci", Verbs: access.Take | access.Break, Prefixes: []string{"tf/"}}
		api.ServeHTTP(w, r.WithContext(access.WithPrincipal(r.Context(), p)))
	}))
	defer locks.Close()
	states := httptest.NewServer(&stateServer{})
	defer states.Close()

	dir, fifo := t.TempDir(), filepath.Join(t.TempDir(), "go")
	at := locks.URL + "/v1/terraform/tf/network"
	config := fmt.Sprintf(`terraform {
  backend "http" {
    address        = %q
    lock_address   = "%s?for=1h"
    unlock_address = %q
    username       = "ci"
    password       = "secret"
  }
}
variable "turn" {}
resource "terraform_data" "x" {
  triggers_replace = var.turn
  provisioner "local-exec" { command = "echo begun; if [ -p %s ]; then cat %s; fi" }
}
`, states.URL, at, at, fifo, fifo)
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	terraform := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), program, args...)
		c.Dir, c.Env = dir, append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "HOME="+dir, "TF_CLI_CONFIG_FILE=/dev/null")
		return c
	}
	apply := func(turn int) *exec.Cmd {
		return terraform("apply", "-input=false", "-no-color", "-auto-approve", fmt.Sprintf("-var=turn=%d", turn))
	}
	holders := func() []holdfast.Claim {
		info, err := client.Show(t.Context(), "tf/network")
		if err != nil {
			t.Fatal(err)
		}
		return info.Holders
	}
	for _, c := range []*exec.Cmd{terraform("init", "-input=false", "-no-color"), apply(1)} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
	}
	if h := holders(); len(h) != 0 {
		t.Fatalf("after an apply its state is locked by %+v", h)
	}

	// One run is in the middle, and is killed there.
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first := apply(2)
	stdout, err := first.StdoutPipe()
	if err == nil {
		err = first.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	gone := sync.OnceFunc(func() { first.Process.Kill(); first.Wait() })
	defer gone()
	if !readsTo(stdout, "begun") {
		t.Fatal("the apply does not begin")
	}
	h := holders()
	if len(h) != 1 || h[0].Reason != "terraform apply" || !h[0].Detached {
		t.Fatalf("during an apply its state is locked by %+v", h)
	}
	out, err := apply(3).CombinedOutput()
	if err == nil || !strings.Contains(string(out), h[0].Labels["id"]) || !strings.Contains(string(out), "Error acquiring the state lock") {
		t.Errorf("a second apply: %v\n%s", err, out)
	}
	gone()
	if f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil { // its provisioner ends, too
		f.Close()
	}
	os.Remove(fifo)
	if out, err := terraform("force-unlock", "-force", h[0].Labels["id"]).CombinedOutput(); err != nil {
		t.Errorf("force-unlock: %v\n%s", err, out)
	}
	if h := holders(); len(h) != 0 {
		t.Errorf("after force-unlock the state is locked by %+v", h)
	}
	if out, err := apply(4).CombinedOutput(); err != nil {
		t.Errorf("the apply after that: %v\n%s", err, out)
	}
}

// readsTo reads until a line has a word.
func readsTo(r io.Reader, word string) bool {
	var all []byte
	buf, found := make([]byte, 4096), regexp.MustCompile(regexp.QuoteMeta(word))
	for {
		n, err := r.Read(buf)
		if all = append(all, buf[:n]...); found.Match(all) {
			go io.Copy(io.Discard, r)
			return true
		}
		if err != nil {
			return false
		}
	}
}

// A stateServer keeps the state of a test.
type stateServer struct {
	mu    sync.Mutex
	state []byte
}

func (s *stateServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Method {
	case http.MethodGet:
		if s.state == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Write(s.state)
	case http.MethodPost:
		s.state, _ = io.ReadAll(r.Body)
	}
}

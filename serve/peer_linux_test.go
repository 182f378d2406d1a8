package serve

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-lock/holdfast/memory"
)

// The kernel says who has connected. Another user may do what its line of the tokens file says,
// and without one nothing, whatever it claims to be.
func TestPeers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	socket, tokens := filepath.Join(dir, "s"), filepath.Join(dir, "tokens")
	someone, err := user.LookupId("1")
	if err != nil {
		t.Skip(err)
	}
	writeTokens(t, tokens, "d unix:"+someone.Username+" look a/", "overflow unix:nobody look a/") // whom the kernel cannot show is nobody
	r := newReplica(t, memory.New(), &Options{Access: opened(t, tokens)})
	started(t, r, Listen{Socket: socket, Everybody: true})
	as := func(uid uint32, path string) string {
		c := exec.CommandContext(t.Context(), curl, "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", socket, "http://holdfast"+path)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		c.Dir = "/"
		out, _ := c.Output()
		return strings.TrimSpace(string(out))
	}
	for _, c := range []struct {
		uid    uint32
		path   string
		status string
	}{
		{0, "/v1/locks/b", "200"}, {1, "/v1/locks/a/x", "200"}, {1, "/v1/locks/b", "403"}, {1, "/v1/sessions", "403"}, {2, "/v1/locks/a/x", "401"}, {65534, "/v1/locks/a/x", "401"},
	} {
		if got := as(c.uid, c.path); got != c.status {
			t.Errorf("user %d, %s: %s, want %s", c.uid, c.path, got, c.status)
		}
	}
	private := filepath.Join(dir, "p")
	started(t, r, Listen{Socket: private})
	socket = private
	if got := as(1, "/v1/locks/a/x"); got != "000" {
		t.Errorf("another user at the private socket: %s", got)
	}
}

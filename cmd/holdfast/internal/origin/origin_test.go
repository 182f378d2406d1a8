//go:build linux && (amd64 || arm64)

package origin

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// The test binary is also a program that tells where its signals come from.
func TestMain(m *testing.M) {
	if os.Getenv("ORIGIN_TEST") == "" {
		os.Exit(m.Run())
	}
	signals := make(chan os.Signal, 16)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		signal.Notify(signals, sig)
		if !Watch(sig) {
			panic("not watched")
		}
	}
	fmt.Println("ready")
	for sig := range signals {
		from := "terminal"
		if Sent(sig.(syscall.Signal)) {
			from = "process"
		}
		fmt.Println(sig, "from", from)
	}
}

func TestOrigin(t *testing.T) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), "ORIGIN_TEST=1")
	tty, err := pty.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close(); c.Process.Kill(); c.Wait() })
	tty.SetReadDeadline(time.Now().Add(time.Minute))
	out := bufio.NewReader(tty)
	said := func(want string) {
		t.Helper()
		line, err := out.ReadString('\n')
		if got := strings.TrimSpace(strings.NewReplacer("^C", "", `^\`, "").Replace(line)); got != want {
			t.Fatalf("got %q (%v), want %q", got, err, want)
		}
	}
	said("ready")
	for range 100 {
		tty.WriteString("\x03")
		said("interrupt from terminal")
		c.Process.Signal(syscall.SIGINT)
		said("interrupt from process")
		c.Process.Signal(syscall.SIGQUIT)
		said("quit from process")
		tty.WriteString("\x1c")
		said("quit from terminal")
	}
}

// What has no handler is not watched: the kernel goes on to do what it does.
func TestNotCaught(t *testing.T) {
	if Watch(syscall.SIGKILL) {
		t.Error("a signal without a handler is watched")
	}
}

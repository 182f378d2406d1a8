//go:build linux

package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// own says that this process, and all that it starts, is in a network namespace
// of its own, where packets may be dropped.
var own = os.Getenv("CHAOS_NAMESPACE") != ""

var ofPackets = []fault{
	{"one cut off, packets dropped either way", func(e *episode) { e.drop(true, true, e.who(false)) }, nil},
	{"one cut off, packets to the server dropped", func(e *episode) { e.drop(true, false, e.who(false)) }, nil},
	{"one cut off, packets from the server dropped", func(e *episode) { e.drop(false, true, e.who(false)) }, nil},
	{"all cut off, packets dropped", func(e *episode) {
		way := e.rng.IntN(3)
		e.drop(way != 1, way != 2, e.workers...)
	}, nil},
}

// drop has the kernel drop packets between some workers and the server, for a while.
func (e *episode) drop(toServer, toWorker bool, some ...*process) {
	var rules [][]string
	for _, p := range some {
		_, port, err := net.SplitHostPort(p.proxy.Addr())
		must(e.t, err)
		if toServer {
			rules = append(rules, []string{"--dport", port})
		}
		if toWorker {
			rules = append(rules, []string{"--sport", port})
		}
	}
	tell := func(what string) {
		for _, r := range rules {
			args := append([]string{"-w", what, "INPUT", "-p", "tcp", "-j", "DROP"}, r...)
			out, err := exec.Command("iptables", args...).CombinedOutput()
			if err != nil {
				e.t.Errorf("iptables %v: %v: %s", args, err, out)
			}
		}
	}
	d := e.part(0.4, 2.3)
	tell("-A")
	for _, p := range some {
		e.note("for %v packets are dropped of %s", d, p.ID)
	}
	e.sleep(d)
	tell("-D")
}

// inNamespace runs the faults of packets in a process that is alone in its
// network, and adds its ledger to ours.
func inNamespace(t *testing.T) {
	const up = `ip link set lo up && iptables -w -A INPUT -p tcp --dport 9 -j DROP && iptables -w -F INPUT && exec "$0" "$@"`
	if out, err := exec.Command("unshare", "-n", "--", "/bin/sh", "-c", up, "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no network namespace with iptables here, so dropped packets are not tested: %v: %s", err, out)
	}
	self, err := os.Executable()
	must(t, err)
	c := exec.Command("unshare", "-n", "--", "/bin/sh", "-c", up, self, "-test.run=^TestFaults$", "-test.v", "-test.timeout=0",
		fmt.Sprint("-full=", *full), fmt.Sprint("-seed=", *seed), fmt.Sprint("-keep=", *keep))
	c.Env = append(os.Environ(), "CHAOS_NAMESPACE=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.CombinedOutput()
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		text, found := strings.CutPrefix(lines.Text(), entryMark)
		if !found {
			continue
		}
		var e entry
		must(t, json.Unmarshal([]byte(text), &e))
		enter(e)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

//go:build !portableguard

package guard

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Usable says why commands cannot be guarded here, if they cannot: the guard finds
// processes by their numbers in /proc, and these have to be the numbers by which
// it may signal them.
func Usable() error {
	self := strconv.Itoa(os.Getpid())
	if number := field("NSpid"); number != "" && number != self {
		return errForeign
	}
	if link, err := os.Readlink("/proc/self"); err != nil || link != self {
		return errForeign
	}
	return nil
}

var errForeign = errors.New("/proc is missing, or is that of another pid namespace: what a command starts could not be found and ended; " +
	"mount it (unshare --mount-proc, bwrap --proc /proc, or: mount -t proc proc /proc)")

// Hides reports whether /proc does not show this process what other users run.
func Hides() bool {
	if seesAll() {
		return false
	}
	for _, m := range mounts() {
		if m.point != "/proc" || m.kind != "proc" {
			continue
		}
		for option := range strings.SplitSeq(m.options, ",") {
			if value, ok := strings.CutPrefix(option, "hidepid="); ok {
				return value != "0" && value != "off"
			}
		}
	}
	return false
}

// seesAll reports whether hidepid hides nothing from this process: it may trace every process,
// in the initial user namespace. Root in a container often may not.
func seesAll() bool {
	has, err := strconv.ParseUint(field("CapEff"), 16, 64)
	users, _ := os.ReadFile("/proc/self/uid_map")
	return err == nil && has>>unix.CAP_SYS_PTRACE&1 == 1 && slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"})
}

// Boxed is the control group in which each command of this process would have its own, or "".
func Boxed() string {
	b := newBox()
	defer b.remove()
	if b == nil {
		return ""
	}
	return b.parent
}

// ownStatus is what /proc says of this process, as it was when it was first asked.
var ownStatus = sync.OnceValue(func() []byte {
	text, _ := os.ReadFile("/proc/self/status")
	return text
})

// field is one of its lines, without spaces around it.
func field(name string) string {
	_, value, _ := bytes.Cut(ownStatus(), []byte("\n"+name+":"))
	value, _, _ = bytes.Cut(value, []byte("\n"))
	return string(bytes.TrimSpace(value))
}

// A mount is a line of /proc/self/mountinfo.
type mount struct{ root, point, kind, options string }

func mounts() (all []mount) {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		first, second, ok := strings.Cut(line, " - ")
		about, of := strings.Fields(first), strings.Fields(second)
		if ok && len(about) >= 5 && len(of) >= 3 {
			all = append(all, mount{about[3], about[4], of[0], of[2]})
		}
	}
	return all
}

package access

import (
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	modesMatter = true // of files

	// KnowsPeers reports whether the kernel says who has connected to a unix socket.
	KnowsPeers = true
)

// peerOf asks the kernel who has connected to a unix socket.
func peerOf(c *net.UnixConn) (p peer, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, false
	}
	var cred *syscall.Ucred
	if raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}) != nil || err != nil {
		return p, false
	}
	if cred.Uid == overflow() { // of a user that this namespace does not know
		return p, false
	}
	return peer{uid: cred.Uid, own: int(cred.Uid) == os.Geteuid()}, true
}

// overflow is the user that the kernel shows in place of those that it cannot show.
func overflow() uint32 {
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil && bad == nil {
		return uint32(n)
	}
	return 65534
}

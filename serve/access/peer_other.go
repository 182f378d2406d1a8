//go:build !linux

package access

import (
	"net"
	"os"
	"runtime"
)

const (
	modesMatter = runtime.GOOS != "windows" // of files

	// KnowsPeers reports whether the kernel says who has connected to a unix socket.
	KnowsPeers = false
)

// peerOf trusts the mode of the socket and its directory: only their owner can connect.
func peerOf(*net.UnixConn) (p peer, ok bool) { return peer{uid: uint32(os.Geteuid()), own: true}, true }

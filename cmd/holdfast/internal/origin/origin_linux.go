//go:build linux && (amd64 || arm64)

package origin

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// sent has bit n set if a process has sent signal n; the handler sets it.
var sent uint64

// next is the runtime's handler, which is the same for all signals.
var next uintptr

// An action is what the kernel calls a sigaction.
type action struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// handler notes where a signal comes from and goes on with next.
func handler()

// address is that of handler.
func address() uintptr

// Watch begins to note where a signal comes from; os/signal has been asked to catch
// it. It reports false if that cannot be told.
func Watch(sig syscall.Signal) bool {
	var now action
	if !sigaction(sig, nil, &now) || now.handler <= 1 || next != 0 && next != now.handler {
		return false
	}
	next = now.handler
	now.handler = address()
	return sigaction(sig, &now, nil)
}

func sigaction(sig syscall.Signal, to, from *action) bool {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(from)), 8, 0, 0)
	return errno == 0
}

// Sent reports whether a process has sent a signal that is watched, since it was
// asked last.
func Sent(sig syscall.Signal) bool {
	bit := uint64(1) << sig
	return atomic.AndUint64(&sent, ^bit)&bit != 0
}

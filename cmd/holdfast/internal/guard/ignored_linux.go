package guard

import (
	"bytes"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
)

// Ignored reports whether a signal is ignored by this process, as its caller
// wanted. os/signal knows only of some.
func Ignored(sig os.Signal) bool {
	s, ok := sig.(syscall.Signal)
	return signal.Ignored(sig) || ok && s > 0 && s <= 64 && ignored()>>(s-1)&1 == 1
}

var ignored = sync.OnceValue(func() uint64 {
	text, _ := os.ReadFile("/proc/self/status")
	_, mask, _ := bytes.Cut(text, []byte("\nSigIgn:\t"))
	mask, _, _ = bytes.Cut(mask, []byte("\n"))
	n, _ := strconv.ParseUint(string(mask), 16, 64)
	return n
})

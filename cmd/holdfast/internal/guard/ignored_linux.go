//go:build !portableguard

package guard

import (
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
)

// Ignored reports whether this process ignores a signal, as its caller wanted.
// os/signal knows only some of the ignored signals.
func Ignored(sig os.Signal) bool {
	s, ok := sig.(syscall.Signal)
	return signal.Ignored(sig) || ok && s > 0 && s <= 64 && ignored()>>(s-1)&1 == 1
}

var ignored = sync.OnceValue(func() uint64 {
	n, _ := strconv.ParseUint(field("SigIgn"), 16, 64)
	return n
})

package guard

import (
	"strings"
	"unsafe"
)

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }

// hide takes arguments out of what ps and pkill -f see of this process, and returns
// copies. They are the command's, and who kills by them shall not meet the guard.
func hide(args []string) (copies []string) {
	for _, arg := range args {
		copies = append(copies, strings.Clone(arg))
		clear(unsafe.Slice(unsafe.StringData(arg), len(arg))) // memory that the kernel gave for them
	}
	return copies
}

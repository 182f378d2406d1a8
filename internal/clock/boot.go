package clock

import (
	"os"
	"strings"
	"sync"
)

// Boot names this run of this kernel, and the time namespace of this process, which may shift
// its clock; "": not known.
var Boot = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, _ := os.Readlink("/proc/self/ns/time")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id)) + " " + namespace
})

package holdfast

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
)

// terminal is the controlling terminal of the process, such as "pts/3"; "": it has none.
var terminal = sync.OnceValue(func() string {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return ""
	}
	return terminalOf(stat)
})

// terminalOf reads what proc(5) calls tty_nr.
func terminalOf(stat []byte) string {
	_, rest, ok := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(") "))
	fields := bytes.Fields(rest) // from the third on
	if !ok || len(fields) < 5 {
		return ""
	}
	nr, err := strconv.ParseInt(string(fields[4]), 10, 64)
	if err != nil {
		return ""
	}
	major, minor := uint32(nr)>>8&0xfff, uint32(nr)&0xff|uint32(nr)>>12&0xfff00
	switch {
	case major >= 136 && major <= 143:
		return fmt.Sprintf("pts/%d", (major-136)<<8+minor)
	case major == 4 && minor >= 64:
		return fmt.Sprintf("ttyS%d", minor-64)
	case major == 4:
		return fmt.Sprintf("tty%d", minor)
	}
	return ""
}

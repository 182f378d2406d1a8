//go:build faultinject

package holdfast

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/machine"
)

// ofProcess is a machine whose clock runs as the file HOLDFAST_FAULT_CLOCK says,
// in millionths of true time: "950000" is 5 % slow. It is read again twenty times
// a second. For tests of real processes.
var ofProcess = bentClock(os.Getenv("HOLDFAST_FAULT_CLOCK"))

func bentClock(path string) *machine.Machine {
	if path == "" {
		return nil
	}
	m := machine.New(machine.True, uint64(time.Now().UnixNano()))
	go func() {
		for last := int64(machine.True); ; time.Sleep(50 * time.Millisecond) {
			text, _ := os.ReadFile(path)
			if rate, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && rate > 0 && rate != last {
				m.Set(rate)
				last = rate
			}
		}
	}()
	return m
}

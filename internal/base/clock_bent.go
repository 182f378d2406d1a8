//go:build faultinject

package base

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/machine"
)

// ofProcess is a machine for tests of real processes. The file HOLDFAST_FAULT_CLOCK
// gives the rate of its clock in millionths of true time: "950000" is 5 % slow. A second
// number, in nanoseconds since 1970, puts the machine to sleep until then: its timers
// stand still, and its clock goes on. The test that writes this number also suspends the
// process until then. The file is read again twenty times a second.
var ofProcess = bentClock(os.Getenv("HOLDFAST_FAULT_CLOCK"))

func bentClock(path string) *machine.Machine {
	if path == "" {
		return nil
	}
	m := machine.New(machine.True, uint64(time.Now().UnixNano()))
	go func() {
		last, slept := int64(machine.True), int64(0)
		for ; ; time.Sleep(50 * time.Millisecond) {
			text, _ := os.ReadFile(path)
			first, second, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
			if rate, err := strconv.ParseInt(first, 10, 64); err == nil && rate > 0 && rate != last {
				m.Set(rate)
				last = rate
			}
			if until, err := strconv.ParseInt(second, 10, 64); err == nil && until > slept {
				m.Sleep(time.Until(time.Unix(0, until)))
				slept = until
			}
		}
	}()
	return m
}

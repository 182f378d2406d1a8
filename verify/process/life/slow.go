//go:build linux

package life

import (
	"os"
	"time"
)

// Slowness measures by how much this machine is late to wake who sleeps, and how
// long its disk takes, so that a limit on others is not a limit on them: a
// hand-over is a few wake-ups and writes. It writes to a file in dir.
func Slowness(dir string) (stop func() time.Duration, err error) {
	file, err := os.CreateTemp(dir, "gauge-")
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	worst := func(do func() time.Duration) chan time.Duration {
		most := make(chan time.Duration, 1)
		go func() {
			var worst time.Duration
			for {
				select {
				case <-done:
					most <- worst
					return
				default:
					worst = max(worst, do())
				}
			}
		}()
		return most
	}
	late := worst(func() time.Duration {
		before := Now()
		time.Sleep(time.Millisecond)
		return time.Duration(Now()-before) - time.Millisecond
	})
	disk := worst(func() time.Duration {
		time.Sleep(20 * time.Millisecond)
		before := Now()
		file.WriteAt(make([]byte, 4096), 0)
		file.Sync()
		return time.Duration(Now() - before)
	})
	return func() time.Duration {
		close(done)
		defer file.Close()
		return 2*<-late + 3*<-disk
	}, nil
}

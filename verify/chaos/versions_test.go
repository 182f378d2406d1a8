//go:build linux

package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// earlier is the commit whose workers run beside ours: the first with all stores.
const earlier = "738ba5d"

var earlierWorker struct {
	sync.Once
	path string
	err  error
}

// ofVersions are what can happen while some still run an earlier version. Where its
// sources are not at hand they are skipped aloud.
func ofVersions(t *testing.T) []fault {
	w := &earlierWorker
	w.Do(func() {
		dir, err := os.MkdirTemp("", "holdfast-earlier-")
		if err != nil {
			w.err = err
			return
		}
		defer os.RemoveAll(dir)
		const script = `set -e; root=$(git rev-parse --show-toplevel); mkdir "$1/src"
			git -C "$root" archive -o "$1/tar" "$2"; tar -x -f "$1/tar" -C "$1/src"; cd "$1/src"; go test -c -o "$3" ./verify/faults`
		path := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-earlier-%d.test", os.Getpid()))
		atEnd = append(atEnd, func() { os.Remove(path) })
		if out, err := exec.Command("/bin/sh", "-c", script, "sh", dir, earlier, path).CombinedOutput(); err != nil {
			w.err = fmt.Errorf("%w: %.300s", err, out)
			return
		}
		w.path = path
	})
	if w.err != nil {
		t.Logf("SKIPPED: no earlier version to run beside this one: %v", w.err)
		return nil
	}
	return []fault{{"an earlier version beside this one", besideEarlier, nil}}
}

// startEarlier starts a worker of the earlier version.
func (e *episode) startEarlier(host string) *process {
	flags := []string{earlierFlag}
	if e.store.DB == nil {
		flags = append(flags, "-fences=false")
	}
	return e.start(host, flags...)
}

const earlierFlag = "-earlier"

// besideEarlier has workers of both versions come and go, as those of a service do
// when it is brought up to date, or back.
func besideEarlier(e *episode) {
	for range 2 {
		e.startEarlier(fmt.Sprint(e.rng.IntN(2)))
	}
	from := life.Now()
	e.await("workers of both versions hold locks", func() bool { return e.each(story.Granted, from) })
	e.sleep(e.part(0.3, 0.8))
	e.kill(e.who(false))
	e.startEarlier(fmt.Sprint(e.rng.IntN(2)))
	e.sleep(e.part(0.2, 0.6))
	e.stop(e.who(false), e.part(0.8, 1.6))
	e.kill(e.who(true))
	e.start(fmt.Sprint(e.rng.IntN(2)))
	e.sleep(e.part(0.3, 0.8))
}

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
	"github.com/holdfast-lock/holdfast/verify/stores"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// earlierOf is the commit whose workers run beside ours on a store: the first that works with
// the schema of today. Programs before it say that the schema is newer, or not as published.
// pkg is where its chaos tests are.
func earlierOf(kind string) (commit, pkg string) {
	for _, k := range stores.Kinds {
		if k.Name == kind && k.Earlier != "" {
			return k.Earlier, "./verify/chaos"
		}
	}
	return "738ba5d", "./verify/faults" // the first with all stores
}

// An earlierWorker is a program whose workers are of an earlier version.
type earlierWorker struct {
	build sync.Once
	path  string
	err   error
}

var earlierWorkers sync.Map // *earlierWorker by commit

func earlierWorkerOf(kind string) *earlierWorker {
	commit, pkg := earlierOf(kind)
	v, _ := earlierWorkers.LoadOrStore(commit, &earlierWorker{})
	w := v.(*earlierWorker)
	w.build.Do(func() {
		dir, err := os.MkdirTemp("", "holdfast-earlier-")
		if err != nil {
			w.err = err
			return
		}
		defer os.RemoveAll(dir)
		const script = `set -e; root=$(git rev-parse --show-toplevel); mkdir "$1/src"
			git -C "$root" archive -o "$1/tar" "$2"; tar -x -f "$1/tar" -C "$1/src"; cd "$1/src"; go test -c -o "$3" "$4"`
		path := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-earlier-%d-%s.test", os.Getpid(), commit))
		if out, err := exec.Command("/bin/sh", "-c", script, "sh", dir, commit, path, pkg).CombinedOutput(); err != nil {
			w.err = fmt.Errorf("%w: %.300s", err, out)
			return
		}
		w.path = path
	})
	return w
}

// removeEarlierWorkers removes what was built, at the end of all tests.
func removeEarlierWorkers() {
	for _, w := range earlierWorkers.Range {
		os.Remove(w.(*earlierWorker).path)
	}
}

// ofVersions are what can happen on a store while some still run an earlier version. Where
// its sources are not at hand they are skipped aloud.
func ofVersions(t *testing.T, kind string) []fault {
	if w := earlierWorkerOf(kind); w.err != nil {
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

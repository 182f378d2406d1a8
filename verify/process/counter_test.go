//go:build linux

package process

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/busy"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// again starts a shell that runs a command under a lock so often.
func (w *world) again(times int, flags, command string) *process {
	script := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do %s run %s -- %s || exit; i=$((i+1)); done`, times, holdfastPath, flags, command)
	return w.start(exec.Command("sh", "-c", script))
}

// Processes that add to one number, half of them through the command and half
// through the library, lose no addition; tokens grow in the order of the holds.
func TestCounter(t *testing.T) {
	t.Parallel()
	onStores(t, counter)
}

func counter(t *testing.T, fresh func(*testing.T) *world) {
	w := fresh(t)
	processes, times := w.crowd(number(20, 50)), number(5, 20)
	file := filepath.Join(w.dir, "f")
	must(t, os.WriteFile(file, []byte("0\n"), 0o600))
	began := life.Now()
	var all []*process
	for i := range processes {
		if i%2 == 0 {
			all = append(all, w.again(times, "-q counter", fmt.Sprintf(`sh -c 'n=$(cat f); %s -for %dms; echo $((n+1)) > f'`, strings.Join(w.actor(), " "), 2+i%9)))
			continue
		}
		all = append(all, w.program("hold", "-name", "counter", "-count", file, "-times", fmt.Sprint(times), "-for", fmt.Sprintf("%dms", 2+i%9)))
	}
	for _, p := range all {
		p.wantStatus(0)
	}
	took := time.Duration(life.Now() - began)
	text, err := os.ReadFile(file)
	must(t, err)
	if got, want := string(bytes.TrimSpace(text)), fmt.Sprint(processes*times); got != want {
		t.Errorf("the counter is at %s, want %s", got, want)
	}
	spans := w.spans()
	if len(spans) != processes*times {
		t.Errorf("%d holds, want %d", len(spans), processes*times)
	}
	inTurn(t, spans)
	t.Logf("figure: %d processes added one %d times each: %s, %d holds in turn, %v, %.0f holds/s",
		processes, times, bytes.TrimSpace(text), len(spans), took.Round(time.Millisecond), float64(len(spans))/took.Seconds())
}

// Of three slots no more than three are ever in use, and three are.
func TestSlots(t *testing.T) {
	t.Parallel()
	onStores(t, slots)
}

func slots(t *testing.T, fresh func(*testing.T) *world) {
	w := fresh(t)
	processes, times := w.crowd(number(10, 40)), number(5, 20)
	var first []*process // who are inside until all three are seen there
	for range 3 {
		first = append(first, w.runActor([]string{"-q", "--slots", "3", "x"}, "-stdin"))
	}
	await(t, "three are inside", func() bool { return len(w.spans()) == 3 })
	var all []*process
	for i := range processes {
		d := fmt.Sprintf("%dms", 60+9*(i%9))
		if i%2 == 0 {
			all = append(all, w.again(times, "-q --slots 3 x", strings.Join(w.actor("-for", d), " ")))
			continue
		}
		all = append(all, w.program("hold", "-slots", "3", "-times", fmt.Sprint(times), "-for", d))
	}
	await(t, "somebody waits", func() bool { return len(w.show("x").Waiters) > 0 })
	for _, p := range first {
		p.end()
		p.wantStatus(0)
	}
	for _, p := range all {
		p.wantStatus(0)
	}
	spans := w.spans()
	if len(spans) != 3+processes*times {
		t.Errorf("%d holds, want %d", len(spans), 3+processes*times)
	}
	most := crowd(spans)
	if most != 3 {
		t.Errorf("at most %d were inside at one time, want 3", most)
	}
	tokens := make(map[int64]bool)
	for _, s := range spans {
		if tokens[s.Token] {
			t.Errorf("token %d was given twice", s.Token)
		}
		tokens[s.Token] = true
	}
	t.Logf("figure: %d holds of 3 slots by %d processes: at most %d at one time", len(spans), processes, most)
}

// Readers are together, a writer is alone, and a stream of readers does not
// keep it waiting for longer than those who were there before it.
func TestReadersAndWriter(t *testing.T) {
	t.Parallel()
	onStores(t, readersAndWriter)
}

func readersAndWriter(t *testing.T, fresh func(*testing.T) *world) {
	w := fresh(t)
	var readers []*process
	for i := range number(8, 12) {
		if i%2 == 0 {
			// Each is two new processes, which are to leave time to the writers.
			readers = append(readers, w.again(1<<30, "-q -s x", strings.Join(w.actor("-for", "100ms"), " ")))
			continue
		}
		readers = append(readers, w.program("hold", "-slots", "0", "-times", "0", "-for", "10ms"))
	}
	await(t, "readers overlap", func() bool { return crowd(w.spans()) > 1 })
	var writers []life.Span
	passed := 0 // most readers that began from when a writer was started to when it was inside
	var waits figures
	slow := machine(t)
	asked := make(map[int64]int64) // by token
	for range number(10, 40) {
		began := life.Now()
		asked[w.writer(t)] = began
	}
	late := slow()
	for _, p := range readers {
		select {
		case <-p.done:
			t.Errorf("a reader has ended: %s", p.stderr.String())
		default:
		}
		p.end()
		p.signal(syscall.SIGTERM)
	}
	for _, p := range readers {
		<-p.done
	}
	spans := w.spans()
	for _, s := range spans {
		if began, ok := asked[s.Token]; ok {
			writers = append(writers, s)
			waits = append(waits, time.Duration(s.Begin-began))
			n := 0
			for _, r := range spans {
				if r.Begin > began && r.Begin < s.Begin {
					n++
				}
			}
			passed = max(passed, n)
		}
	}
	for _, one := range writers {
		for _, s := range spans {
			if s.Token != one.Token && s.Begin < one.Last && one.Begin < s.Last {
				t.Errorf("writer %d and %d were inside together for %v", one.Token, s.Token,
					time.Duration(min(s.Last, one.Last)-max(s.Begin, one.Begin)))
			}
		}
	}
	if len(writers) != number(10, 40) {
		t.Errorf("%d writers have been inside", len(writers))
	}
	if waits.at(1) > busy.Times(3*time.Second)+late {
		t.Errorf("a writer waited %v behind a stream of readers (slowness of the machine %v)", waits.at(1), late)
	}
	t.Logf("figure: %d readers, %d at one time; %d writers were alone; from start to inside: %v, meanwhile at most %d readers began", len(spans)-len(writers), crowd(spans), len(writers), waits, passed)
}

// writer runs a writer and returns its token.
func (w *world) writer(t *testing.T) (token int64) {
	t.Helper()
	p := w.holdfast("run", "-q", "x", "--", "sh", "-c", strings.Join(w.actor("-for", "5ms"), " ")+` && echo $HOLDFAST_TOKEN`)
	p.wantStatus(0)
	fmt.Sscan(p.stdout.String(), &token)
	return token
}

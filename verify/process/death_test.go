//go:build linux

package process

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// A heir is how a holder and those who follow it are started.
type heir func(w *world, ttl string) *process

func libraryHeir(w *world, ttl string) *process {
	return w.program("hold", "-ttl", ttl)
}

func runHeir(w *world, ttl string) *process {
	return w.runActor([]string{"-q", "--ttl", ttl, "x"}, "-alone", w.dir)
}

// inNamespace is an heir in a pid namespace of its own.
func inNamespace(heir heir) heir {
	return func(w *world, ttl string) *process { return heir(w.apart(), ttl) }
}

// succeed kills each holder with -9 when the next waits, so often, and
// returns how long the next took.
func succeed(t *testing.T, w *world, hosts []*world, heir heir, ttl string, rounds int, victim func(*process) int) (took figures, beats figures) {
	t.Helper()
	holder := heir(hosts[0], ttl)
	token := w.after(0, 1).Token
	for i := range rounds {
		next := heir(hosts[(i+1)%len(hosts)], ttl)
		w.queued("x", 1)
		session := w.show("x").Holders[0].Owner.Session
		killed := life.Now()
		must(t, syscall.Kill(victim(holder), syscall.SIGKILL))
		<-holder.done
		beat := w.lastBeat(session)
		span := w.after(token, 1)
		took = append(took, time.Duration(span.Begin-killed))
		if beat != 0 {
			beats = append(beats, time.Duration(span.Begin-beat))
		}
		holder, token = next, span.Token
	}
	must(t, syscall.Kill(victim(holder), syscall.SIGKILL))
	<-holder.done
	inTurn(t, w.spans())
	return took, beats
}

// lastBeat is when a session's last heartbeat was written, on the clock of the
// stamps: the version is the wall clock's time in microseconds. A mark of one who
// waits tells how old the heartbeat was. 0: it was declared dead.
func (w *world) lastBeat(session string) int64 {
	w.t.Helper()
	recs, err := w.store.Load(w.t.Context(), []driver.Key{{Space: driver.Sessions, Name: session}}, driver.Fresh)
	must(w.t, err)
	var rec struct {
		Dead      int64
		Suspected struct{ Age int64 }
	}
	must(w.t, json.Unmarshal(recs[0].Value, &rec))
	if rec.Dead != 0 {
		return 0 // nobody can tell any more
	}
	return life.Now() - (time.Now().UnixMicro()-recs[0].Version+rec.Suspected.Age)*1000
}

func itself(p *process) int { return p.Process.Pid }

// firstChild is the process in the namespace that p has made.
func firstChild(t *testing.T) func(p *process) int {
	return func(p *process) (pid int) {
		await(t, "unshare starts its program", func() bool {
			for _, child := range children(p.Process.Pid) {
				pid = child
			}
			return pid != 0
		})
		return pid
	}
}

func needNamespaces(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("unshare", "-p", "-f", "--mount-proc", "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no pid namespaces here, so death in another one is not tested: %v: %s", err, out)
	}
}

// On one host the next holds the lock as soon as the holder is dead, whatever
// the lease, by the kernel's proof, which also crosses pid namespaces.
func TestDeathOfHolder(t *testing.T) { onStores(t, deathOfHolder) }

func deathOfHolder(t *testing.T, fresh func(*testing.T) *world) {
	for _, c := range []struct {
		name   string
		heir   heir
		apart  bool
		rounds int
	}{
		{"library", libraryHeir, false, number(30, 200)},
		{"run", runHeir, false, number(30, 200)},
		{"library in another pid namespace", inNamespace(libraryHeir), true, number(10, 50)},
		{"run in another pid namespace", inNamespace(runHeir), true, number(10, 50)},
	} {
		t.Run(c.name, func(t *testing.T) {
			victim := itself
			if c.apart {
				needNamespaces(t)
				victim = firstChild(t)
			}
			w := fresh(t)
			if w.onServer() {
				c.rounds = max(c.rounds/3, 5)
			}
			late := machine(t)
			took, _ := succeed(t, w, []*world{w}, c.heir, "15s", c.rounds, victim)
			slow := late()
			// One in ten, or the one of few, may meet a processor that others are at;
			// none may have been forgotten until the next poll.
			if took.at(min(0.89, 1-1.1/float64(c.rounds))) > 100*time.Millisecond+slow || took.at(1) > 500*time.Millisecond+slow {
				t.Errorf("after kill -9 the next held the lock after %v (slowness of the machine %v)", took, slow)
			}
			t.Logf("figure: %s: from kill -9 to the next holder: %v (TTL 15s, slowness of the machine %v)", c.name, took, slow.Round(100*time.Microsecond))
		})
	}
}

// Where the kernel's proof is not seen the lease decides: the next comes after
// the TTL, and never before.
func TestDeathOnAnotherHost(t *testing.T) {
	t.Parallel()
	onStores(t, deathOnAnotherHost)
}

func deathOnAnotherHost(t *testing.T, fresh func(*testing.T) *world) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		heir  heir
		apart bool
	}{
		{"library", libraryHeir, false},
		{"run", runHeir, false},
		{"library in another pid namespace", inNamespace(libraryHeir), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			victim := itself
			if c.apart {
				needNamespaces(t)
				victim = firstChild(t)
			}
			t.Parallel()
			w := fresh(t)
			ttl, text := lease(2 * time.Second)
			late := machine(t)
			rounds := number(3, 30)
			if w.onServer() {
				rounds = number(2, 10)
			}
			took, beats := succeed(t, w, []*world{w.host("a"), w.host("b")}, c.heir, text, rounds, victim)
			if len(beats) == 0 {
				t.Skip("SKIPPED: this machine is so slow that each was declared dead before it could be looked at")
			}
			if least := slices.Min(beats); least < ttl {
				t.Errorf("the next held the lock %v after the last heartbeat, before the TTL of %v", least, ttl)
			}
			if most := slices.Max(beats); most > ttl+time.Second+300*time.Millisecond+spare(late()) {
				t.Errorf("the next held the lock only %v after the last heartbeat; TTL %v", most, ttl)
			}
			t.Logf("figure: %s, another host: from the last heartbeat to the next holder: least %v, %v; from kill -9: %v (TTL %v)",
				c.name, slices.Min(beats).Round(time.Millisecond), beats, took, ttl)
		})
	}
}

// A client that looks at a copy of the runtime directory, as an image of a container or of a
// disk has one, or sees it through an overlay, does not take the living for dead.
func TestProofSeenElsewhere(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]func(t *testing.T, w *world) *world{
		"copy": func(t *testing.T, w *world) *world {
			h := w.host("copy")
			must(t, exec.Command("cp", "-a", w.runtime+"/holdfast", h.runtime).Run())
			return h
		},
		"overlay": func(t *testing.T, w *world) *world {
			h := w.host("overlay")
			script := `mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$3" && shift 3 && exec "$@"`
			for _, dir := range []string{"upper", "work"} {
				must(t, os.MkdirAll(filepath.Join(w.dir, "layers", dir), 0o700))
			}
			h.wrap = []string{"unshare", "-m", "sh", "-c", script, "sh", w.runtime, filepath.Join(w.dir, "layers"), h.runtime}
			if out, err := h.command("true").CombinedOutput(); err != nil {
				t.Skipf("SKIPPED: no overlay can be mounted here, so a proof seen through one is not tested: %v: %s", err, out)
			}
			return h
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			holder := w.runActor([]string{"-q", "--ttl", "30s", "x"}, "-stdin")
			w.after(0, 1)
			next := elsewhere(t, w).runActor([]string{"-q", "--ttl", "30s", "-w", "2", "x"}, "-for", "1ms")
			next.wantStatus(1)
			if n := len(w.spans()); n != 1 {
				t.Errorf("%d commands have run while the first held the lock", n)
			}
			holder.end()
			holder.wantStatus(0)
		})
	}
}

// Ten that died in the queue cost the next one lease together, not ten.
func TestManyDeadAhead(t *testing.T) {
	t.Parallel()
	onStores(t, manyDeadAhead)
}

func manyDeadAhead(t *testing.T, fresh func(*testing.T) *world) {
	t.Parallel()
	w := fresh(t)
	ttl, _ := lease(2 * time.Second)
	switch { // a crowd asks it, and a heartbeat waits behind them
	case w.onCassandra(), w.onEmulator():
		ttl *= 4
	case w.onServer():
		ttl *= 2
	}
	late := machine(t)
	seconds := strconv.Itoa(int(ttl / time.Second))
	holder := w.host("a").runActor([]string{"--ttl", seconds, "x"}, "-stdin")
	token := w.after(0, 1).Token
	var dead []*process
	for i := range 10 {
		if i%2 == 0 {
			dead = append(dead, w.host("a").program("hold", "-ttl", ttl.String()))
		} else {
			dead = append(dead, w.host("a").runActor([]string{"-q", "--ttl", seconds, "x"}))
		}
		w.queued("x", i+1)
	}
	next := w.host("b").program("hold", "-ttl", ttl.String(), "-for", "1ms")
	w.queued("x", 11)
	killed := life.Now()
	for _, p := range dead {
		p.signal(syscall.SIGKILL)
	}
	for _, p := range dead {
		<-p.done
	}
	holder.end()
	holder.wantStatus(0)
	took := time.Duration(w.after(token, 1).Begin - killed)
	next.wantStatus(0)
	if took > ttl+ttl/2+300*time.Millisecond+spare(late()) {
		t.Errorf("behind ten dead the next waited %v; TTL %v", took, ttl)
	}
	if n := len(w.spans()); n != 2 {
		t.Errorf("%d have held the lock, want 2", n)
	}
	t.Logf("figure: behind 10 waiters killed at once, another host: the next held the lock after %v (TTL %v); swept clean %v later",
		took.Round(time.Millisecond), ttl, w.sweep().Round(time.Millisecond))
}

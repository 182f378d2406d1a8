//go:build linux

package git

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/state"
)

// A soak is a repository with those who write and read it.
type soak struct {
	*repository
	t        *testing.T
	id       string // in the environment of all it starts
	contents string
	length   time.Duration
	workers  map[string]*exec.Cmd
	killed   map[string]int
	kills    []time.Duration     // of those that have the hook's lease
	told     map[string][]string // what contents say
}

const refs = 10000

func newSoak(t *testing.T, length time.Duration) *soak {
	needGit(t)
	t.Setenv("PATH", filepath.Dir(holdfastPath)+":"+os.Getenv("PATH"))
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{repository: newRepository(t, dir, refs), t: t, id: fmt.Sprintf("%s.%d", t.Name(), os.Getpid()), contents: filepath.Join(dir, "contents"),
		workers: make(map[string]*exec.Cmd), killed: make(map[string]int), told: make(map[string][]string)}
	if err := os.Mkdir(s.contents, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.clear)
	s.length = length
	return s
}

// begin starts a worker.
func (s *soak) begin(role string, j job) {
	j.Dir, j.Repo, j.Contents = s.dir, s.path, s.contents
	text, err := json.Marshal(j)
	if err != nil {
		s.t.Fatal(err)
	}
	file := filepath.Join(s.dir, j.Name+".job")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	c := exec.Command(os.Args[0])
	c.Env = environment("GIT_ROLE="+role, "GIT_JOB="+file, marker+"="+s.id, "XDG_CACHE_HOME="+s.dir)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.workers[j.Name] = c
}

// processes are all that the soak has started and that run, by what they are.
func (s *soak) processes() map[string][]int {
	found := make(map[string][]int)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if !slices.Contains(strings.Split(string(env), "\x00"), marker+"="+s.id) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		found[what(args)] = append(found[what(args)], pid)
	}
	return found
}

// what tells processes apart by their arguments.
func what(args []string) string {
	for i, a := range args {
		args[i] = filepath.Base(a)
	}
	line := strings.Join(args, " ")
	for _, w := range []struct{ text, name string }{
		{"hf-guard", "holdfast's guard"},
		{" push ", "git push"},
		{"holdfast cache", "holdfast cache"},
		{"holdfast state write", "holdfast state write"},
		{"pre-receive keep", "the hook's keeper"},
		{"pre-receive wait", "the hook's section"},
		{"pre-receive", "the hook"},
		{"receive-pack", "git receive-pack"},
		{"upload-pack", "git upload-pack"},
		{"git.test", "worker"},
		{"git ", "another git"},
	} {
		if strings.Contains(line+" ", w.text) {
			return w.name
		}
	}
	return "another"
}

// kill waits, not for long, until one of what it is told runs, and kills it.
func (s *soak) kill(names []string) {
	for range 20 {
		running := s.processes()
		for _, i := range rand.Perm(len(names)) {
			if pids := running[names[i]]; len(pids) > 0 {
				if syscall.Kill(pids[rand.IntN(len(pids))], syscall.SIGKILL) == nil {
					s.killed[names[i]]++
				}
				if slices.Contains(hooksPrograms, names[i]) {
					s.kills = append(s.kills, now())
				}
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Whom a soak kills.
var (
	readersPrograms = []string{"holdfast cache", "git upload-pack"}
	pushersPrograms = []string{"git push", "git receive-pack", "the hook"}
	leasesPrograms  = []string{"holdfast state write", "holdfast's guard", "git receive-pack"}
	hooksPrograms   = []string{"holdfast state write", "holdfast's guard", "the hook's section"}
)

// clear ends all that still runs.
func (s *soak) clear() {
	for range 100 {
		running := s.processes()
		if len(running) == 0 {
			break
		}
		for _, pids := range running {
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, c := range s.workers {
		c.Wait()
	}
	if left := s.processes(); len(left) > 0 {
		s.t.Errorf("%v are left", left)
	}
}

// end ends a soak: the workers finish what they are at.
func (s *soak) end() {
	if err := os.WriteFile(filepath.Join(s.dir, "over"), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	for name, c := range s.workers {
		if err := c.Wait(); err != nil {
			s.t.Errorf("%s: %v", name, err)
		}
		delete(s.workers, name)
	}
}

// events are all that workers have written down.
func (s *soak) events(name string, each func(event)) {
	file, err := os.Open(filepath.Join(s.dir, name+".log"))
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // a torn line is that of one who was killed
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			s.t.Fatalf("%s: %v: %s", name, err, line)
		}
		each(e)
	}
}

// A verdict is what became of a soak.
type verdict struct {
	pushes, returned int
	answers          []answer
	faults           []fault
	took             map[string][]time.Duration // by way, hit or not
	failed           map[string]int             // questions and pushes that failed, by how
}

// judged judges all that writers and readers have written down.
func (s *soak) judged(writers, readers []string) verdict {
	v := verdict{took: make(map[string][]time.Duration), failed: make(map[string]int)}
	var pushes []push
	for _, name := range writers {
		s.events(name, func(e event) {
			if e.Refs != nil {
				pushes = append(pushes, push{e.Refs, e.Values, e.Begin, never})
				v.pushes++
			} else if e.Done {
				pushes[len(pushes)-1].end = e.End
				v.returned++
			} else {
				v.failed["push: "+firstLine(e.Error)]++
			}
		})
	}
	for _, name := range readers {
		s.events(name, func(e event) {
			if e.Error != "" {
				v.failed[e.Way+": "+firstLine(e.Error)]++
				return
			}
			v.answers = append(v.answers, answer{name + " by " + e.Way, e.Begin, e.End, e.Content})
			way := e.Way + " miss"
			if e.Hit {
				way = e.Way + " hit"
			}
			v.took[way] = append(v.took[way], e.End-e.Begin)
			if s.told[e.Content] == nil {
				text, err := os.ReadFile(filepath.Join(s.contents, e.Content))
				if err != nil {
					s.t.Fatal(err)
				}
				if s.told[e.Content], err = parse(text, s.refs); err != nil {
					s.t.Errorf("an advertisement that is not whole, by %s: %v", e.Way, err)
					s.told[e.Content] = slices.Clone(s.initial)
				}
			}
		})
	}
	v.faults = judge(s.initial, pushes, v.answers, s.told)
	return v
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s[:min(len(s), 150)]
}

func (v *verdict) report(t *testing.T) {
	t.Helper()
	hits, all := 0, 0
	for way, took := range v.took {
		slices.Sort(took)
		if way != "git miss" {
			if all += len(took); strings.HasSuffix(way, " hit") {
				hits += len(took)
			}
		}
		t.Logf("%-14s %6d, p50 %8.2f ms, p99 %8.2f ms", way, len(took), ms(took[len(took)/2]), ms(took[len(took)*99/100]))
	}
	t.Logf("%d advertisements, %d faults; %d of %d through the cache were hits (%.1f %%); %d pushes, %d returned", len(v.answers), len(v.faults), hits, all, 100*float64(hits)/float64(max(all, 1)), v.pushes, v.returned)
	for how, n := range v.failed {
		t.Logf("failed %d times: %s", n, how)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// owned are the refs of writer k of n.
func owned(k, n int) (own []int) {
	for i := k; i < refs; i += n {
		own = append(own, i)
	}
	return own
}

// No reader is told of refs older than a push that had returned, while pushes
// and readers run in eight processes, and some are killed: with the hook of the
// documentation, and with its receive-pack in place of git's.
func TestSoak(t *testing.T) {
	t.Run("hook", func(t *testing.T) {
		s := newSoak(t, length(10*time.Second, time.Minute))
		s.install(t, "pre-receive", "hooks/pre-receive")
		s.soak("", readersPrograms, pushersPrograms)
	})
	// The documentation says that a moment is left here.
	t.Run("hook that loses its lease", func(t *testing.T) {
		s := newSoak(t, length(8*time.Second, 20*time.Second))
		s.install(t, "pre-receive", "hooks/pre-receive")
		s.soak("", hooksPrograms)
	})
	t.Run("receive-pack", func(t *testing.T) {
		script, err := filepath.Abs("../../docs/git/receive-pack")
		if err != nil {
			t.Fatal(err)
		}
		newSoak(t, length(5*time.Second, 20*time.Second)).soak(script, readersPrograms, pushersPrograms, leasesPrograms)
	})
}

func length(short, long time.Duration) time.Duration {
	if *full {
		return long
	}
	return short
}

func (s *soak) soak(receive string, victims ...[]string) {
	const n = 4
	t := s.t
	var writers, readers []string
	jobs := make(map[string]job)
	for k := range n {
		j := job{Name: fmt.Sprintf("writer%d", k), Pause: min(s.length/8, 2*time.Second), Refs: owned(k, n), Receive: receive}
		j.Pool, j.Values = s.newValues(t, j.Name, 4000)
		jobs[j.Name] = j
		writers = append(writers, j.Name)
	}
	for k, way := range []string{"library", "library", "command", "script"} {
		name := fmt.Sprintf("reader%d", k)
		jobs[name] = job{Name: name, Way: way, Pause: 10 * time.Millisecond}
		readers = append(readers, name)
	}
	for name, j := range jobs {
		s.begin(strings.TrimRight(name, "0123456789"), j)
	}
	// A busy machine may take longer until there is something to judge.
	began := now()
	var v verdict
	enough := func() bool {
		if now() < began+s.length {
			return false
		}
		v = s.judged(writers, readers)
		return v.returned >= 5 && len(v.took["library hit"]) > 0 && len(v.took["command hit"])+len(v.took["script hit"]) > 0
	}
	for !enough() {
		if now() > began+s.length+2*time.Minute {
			t.Fatalf("%d answers and %d pushes that returned: that shows nothing", len(v.answers), v.returned)
		}
		time.Sleep(time.Duration(200+rand.IntN(1000)) * time.Millisecond)
		s.kill(victims[rand.IntN(len(victims))])
		if rand.IntN(8) == 0 { // a reader that uses the library
			name := readers[rand.IntN(2)]
			s.workers[name].Process.Kill()
			s.workers[name].Wait()
			s.killed["reader"]++
			s.begin("reader", jobs[name])
		}
	}
	s.end()
	v = s.judged(writers, readers)
	v.report(t)
	t.Logf("killed: %v", s.killed)
	if slices.ContainsFunc(victims, func(names []string) bool { return slices.Equal(names, hooksPrograms) }) {
		all := len(v.faults)
		v.faults = slices.DeleteFunc(v.faults, func(f fault) bool {
			return slices.ContainsFunc(s.kills, func(at time.Duration) bool { return at < f.end && f.begin < at+2*time.Second })
		})
		t.Logf("%d faults are within two seconds of the death of one who had the hook's lease", all-len(v.faults))
	}
	for _, f := range v.faults[:min(10, len(v.faults))] {
		t.Errorf("%s: %s", f.who, f.why)
	}
	s.quiet()
}

// quiet compares the cache with git when nobody writes, in what they say and in
// how long they take.
func (s *soak) quiet() {
	t := s.t
	st, err := state.Dir(s.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := state.OpenCache(filepath.Join(s.dir, "cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		k, err := st.Key(t.Context())
		if err == nil && !k.Writing {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a minute after the last push the key is %+v, %v", k, err)
		}
	}
	p50 := make(map[string]time.Duration)
	var want []byte
	var got bytes.Buffer // one, as a server would have
	for _, way := range []string{"git", "library", "command"} {
		var took []time.Duration
		for i := range 30 {
			got.Reset()
			began := now()
			_, err := ask(way, s.path, filepath.Join(s.dir, "cache"), st, cache, filepath.Join(s.dir, "quiet.trace"), &got)
			if took = append(took, now()-began); err != nil {
				t.Fatal(err)
			}
			if want == nil {
				want = bytes.Clone(got.Bytes())
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Fatalf("%s, question %d: not what git says", way, i)
			}
		}
		slices.Sort(took)
		p50[way] = took[len(took)/2]
	}
	t.Logf("with nothing else to do: git %.2f ms, a hit in the library %.2f ms (%.0f times as fast), the command as a whole %.2f ms (%.1f times)",
		ms(p50["git"]), ms(p50["library"]), float64(p50["git"])/float64(p50["library"]), ms(p50["command"]), float64(p50["git"])/float64(p50["command"]))
}

// Without the hook readers are told of what was before a push: the judge sees
// that.
func TestWithoutHook(t *testing.T) {
	s := newSoak(t, 0)
	w := job{Name: "writer0", Pause: 300 * time.Millisecond, Refs: owned(0, 4)}
	w.Pool, w.Values = s.newValues(t, w.Name, 200)
	s.begin("writer", w)
	s.begin("reader", job{Name: "reader0", Way: "library", Pause: 20 * time.Millisecond})
	s.begin("reader", job{Name: "reader1", Way: "command", Pause: 20 * time.Millisecond})
	var v verdict
	stale := make(map[string]int)
	for began := now(); (stale["library"] == 0 || stale["command"] == 0) && now() < began+2*time.Minute; {
		time.Sleep(time.Second)
		v = s.judged([]string{"writer0"}, []string{"reader0", "reader1"})
		clear(stale)
		for _, f := range v.faults {
			_, way, _ := strings.Cut(f.who, " by ")
			if strings.Contains(f.why, "STALE") {
				stale[way]++
			}
		}
	}
	s.end()
	v.report(t)
	if v.returned < 1 || stale["library"] == 0 || stale["command"] == 0 || stale["git"] > 0 {
		t.Errorf("%d pushes without the hook, and stale answers: %v; want some of library and command, none of git", v.returned, stale)
	}
}

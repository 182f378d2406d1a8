//go:build linux

package command

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// What docs/git.md shows is what docs/git has, and that is what these tests run.
func TestGitShown(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/git.md")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip(err) // another module, where each is alone
	}
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllSubmatch(text, -1)
	files, err := filepath.Glob("../../../../docs/git/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		script, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, block := range shown {
			found = found || bytes.Equal(block[1], script)
		}
		if !found {
			t.Errorf("docs/git.md does not show %s as it is", file)
		}
	}
	if len(shown) != len(files) {
		t.Errorf("docs/git.md shows %d scripts, there are %d", len(shown), len(files))
	}
}

// A repo is a bare repository whose refs are cached, and a clone.
type repo struct {
	place
	bare, work, scripts string
	env                 []string
	url                 string // of the bare one
}

// newRepo makes one with the hook of docs/git, unless push is by other means.
func newRepo(t *testing.T, hook bool) *repo {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("there is no git: what docs/git.md says is not tested")
	}
	scripts, err := filepath.Abs("../../../../docs/git")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(scripts); err != nil {
		t.Skip(err)
	}
	p := newPlace(t)
	r := &repo{place: p, bare: filepath.Join(p.dir, "srv", "a b.git"), work: filepath.Join(p.dir, "work"), scripts: scripts}
	r.url = r.bare
	// Readers have a git that notes when it has to say what the refs are.
	r.script("bin/git", "#!/bin/sh\ncase $1 in upload-pack | http-backend) echo $1 $REQUEST_METHOD >>'"+p.dir+"/runs' ;; esac\nexec '"+git+"' \"$@\"\n")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GIT_") && !strings.HasPrefix(v, "PATH=") {
			r.env = append(r.env, v)
		}
	}
	r.env = append(r.env, "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"), "HOME="+p.dir, "XDG_CACHE_HOME="+filepath.Join(p.dir, "cache"),
		"XDG_STATE_HOME="+p.dir, "XDG_RUNTIME_DIR="+p.dir, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=ana", "GIT_AUTHOR_EMAIL=ana@example.com", "GIT_COMMITTER_NAME=ana", "GIT_COMMITTER_EMAIL=ana@example.com")
	r.git("init", "-q", "--bare", "-b", "main", r.bare)
	r.git("init", "-q", "-b", "main", r.work)
	if hook {
		text, err := os.ReadFile(filepath.Join(scripts, "pre-receive"))
		if err != nil {
			t.Fatal(err)
		}
		r.hook("pre-receive", string(text))
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(r.bare, "holdfast.log"))
			t.Logf("holdfast.log:\n%s", log)
		}
		r.await("all writers have left", func() bool { return len(r.pending()) == 0 })
	})
	return r
}

func (r *repo) script(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repo) hook(name, text string) { r.script("srv/a b.git/hooks/"+name, text) }

// try runs a program where the clone is.
func (r *repo) try(name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir, c.Env = r.dir, r.env
	if _, err := os.Stat(r.work); err == nil {
		c.Dir = r.work
	}
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), err
}

func (r *repo) git(args ...string) string {
	r.t.Helper()
	out, err := r.try("git", args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// commit makes one and returns its name.
func (r *repo) commit() string {
	r.t.Helper()
	r.git("commit", "-q", "--allow-empty", "-m", "x")
	return r.git("rev-parse", "HEAD")
}

func (r *repo) push(refs ...string) error {
	_, err := r.try("git", append([]string{"push", "-q", r.url}, refs...)...)
	return err
}

func (r *repo) mustPush(refs ...string) {
	r.t.Helper()
	if err := r.push(refs...); err != nil {
		r.t.Fatal(err)
	}
}

// truth is what git says of the refs.
func (r *repo) truth() map[string]string {
	r.t.Helper()
	return refsOf(r.git("--git-dir="+r.bare, "for-each-ref", "--format=%(objectname) %(refname)"))
}

// read is what a reader sees of them.
func (r *repo) read() (map[string]string, error) {
	out, err := r.try(filepath.Join(r.scripts, "info-refs"), r.bare)
	return refsOf(out), err
}

var refLine = regexp.MustCompile(`([0-9a-f]{40})\s(refs/\S+)`)

func refsOf(text string) map[string]string {
	refs := make(map[string]string)
	for _, m := range refLine.FindAllStringSubmatch(strings.ReplaceAll(text, "\x00", " "), -1) {
		refs[m[2]] = m[1]
	}
	delete(refs, "refs/heads/main:") // symref=HEAD:refs/heads/main
	return refs
}

// right fails if a reader is not told what git says.
func (r *repo) right(when string) {
	r.t.Helper()
	want := r.truth()
	got, err := r.read()
	if err != nil {
		r.t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		r.t.Errorf("%s a reader is told %v, git says %v", when, got, want)
	}
}

// cached waits until a reader is answered without git.
func (r *repo) cached() {
	r.t.Helper()
	r.await("an answer comes from the cache", func() bool {
		before := r.runs()
		if _, err := r.read(); err != nil {
			r.t.Fatal(err)
		}
		return r.runs() == before
	})
}

func (r *repo) runs() int {
	text, _ := os.ReadFile(filepath.Join(r.dir, "runs"))
	return bytes.Count(text, []byte("\n"))
}

// pending are the processes that hold a lease.
func (r *repo) pending() (pids []int) {
	entries, _ := filepath.Glob(filepath.Join(r.bare, "state", "pending", "*"))
	for _, name := range entries {
		text, _ := os.ReadFile(name)
		if m := regexp.MustCompile(`"pid":(\d+)`).FindSubmatch(text); m != nil {
			pid, _ := strconv.Atoi(string(m[1]))
			pids = append(pids, pid)
		}
	}
	return pids
}

// holder is the one process that holds a lease.
func (r *repo) holder() int {
	r.t.Helper()
	pids := r.pending()
	if len(pids) != 1 {
		r.t.Fatalf("the lease is held by %v", pids)
	}
	return pids[0]
}

// receiver is the git receive-pack that runs the hook update, which has noted it.
func (r *repo) receiver() int {
	r.t.Helper()
	text, _ := os.ReadFile(filepath.Join(r.bare, "receiver"))
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		r.t.Fatal(err)
	}
	return pid
}

// No reader sees refs that are older than a push that has returned, by
// whichever way it came, and most are answered from the cache.
func TestGitPush(t *testing.T) {
	for _, test := range []struct {
		name string
		hook bool
		to   func(r *repo)
	}{
		{"path", true, func(r *repo) {}},
		{"ssh", true, func(r *repo) {
			r.script("ssh", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n")
			r.url = "host:" + r.bare
			r.env = append(r.env, "GIT_SSH="+filepath.Join(r.dir, "ssh"))
		}},
		{"http", true, func(r *repo) { r.url = r.serve() + "/a%20b.git" }},
		{"receive-pack", false, func(r *repo) {
			r.wrap()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRepo(t, test.hook)
			test.to(r)
			for i := range 3 {
				r.commit()
				r.mustPush("main", fmt.Sprintf("main:refs/heads/b%d", i))
				r.right("after a push")
				r.cached()
				r.right("from the cache")
			}
			r.mustPush(":b1")
			r.right("after a branch was deleted")
			r.commit()
			r.mustPush("main:b2")
			r.right("after one that was not read between")
			r.git("--git-dir="+r.bare, "gc", "-q")
			r.cached()
			r.right("after git gc")
			if got := r.truth(); len(got) != 3 { // main, b0, b2
				t.Errorf("git says %v", got)
			}
		})
	}
}

// wrap has pushes go by docs/git/receive-pack.
func (r *repo) wrap() {
	r.git("remote", "add", "origin", r.bare)
	r.git("config", "remote.origin.receivepack", "'"+filepath.Join(r.scripts, "receive-pack")+"'")
	r.url = "origin"
}

// serve serves the directory of the repository over HTTP, by docs/git/http-backend.
func (r *repo) serve() (url string) {
	h := &cgi.Handler{Path: filepath.Join(r.scripts, "http-backend"), Dir: r.dir, Stderr: io.Discard,
		Env: append(r.env, "GIT_PROJECT_ROOT="+filepath.Dir(r.bare), "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=ana")}
	s := httptest.NewServer(http.HandlerFunc(h.ServeHTTP))
	r.t.Cleanup(s.Close)
	return s.URL
}

// A fetch over HTTP is answered from the cache if it speaks version 0 or 1, and
// rightly in any case.
func TestGitHTTP(t *testing.T) {
	r := newRepo(t, true)
	r.url = r.serve() + "/a%20b.git"
	gets := func() int {
		text, _ := os.ReadFile(filepath.Join(r.dir, "runs"))
		return bytes.Count(text, []byte("http-backend GET\n"))
	}
	for range 3 {
		r.commit()
		r.mustPush("main")
		for _, version := range []string{"0", "1", "2"} {
			if got, want := refsOf(r.git("-c", "protocol.version="+version, "ls-remote", r.url)), r.truth(); !maps.Equal(got, want) {
				t.Errorf("after a push, in version %s, a client is told %v, git says %v", version, got, want)
			}
		}
		r.await("an answer comes from the cache", func() bool {
			before := gets()
			r.git("-c", "protocol.version=0", "ls-remote", r.url)
			return gets() == before
		})
	}
	for _, path := range []string{"/none.git", "/a%20b.git/objects", "/../srv/a%20b.git", "/a%20b.git/..%2fa%20b.git"} {
		if out, err := r.try("git", "ls-remote", r.serve()+path); err == nil {
			t.Errorf("%s is served: %s", path, out)
		}
	}
	for _, dir := range []string{"objects/state", "refs/state"} {
		if _, err := os.Stat(filepath.Join(r.bare, dir)); err == nil {
			t.Errorf("a reader has made %s", dir)
		}
	}
}

// The same with readers at work all the time.
func TestGitReaders(t *testing.T) {
	r := newRepo(t, true)
	r.commit()
	r.mustPush("main")
	var mu sync.Mutex
	number := map[string]int64{r.git("rev-parse", "main"): 0} // of the commits
	var returned atomic.Int64                                 // of the pushes the last that has
	var wg sync.WaitGroup
	reads, stop := 0, make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				least := returned.Load()
				refs, err := r.read()
				mu.Lock()
				reads++
				n, known := number[refs["refs/heads/main"]]
				mu.Unlock()
				if err != nil || !known || n < least {
					t.Errorf("when push %d had returned a reader was told of push %d (%v), %v", least, n, refs, err)
					return
				}
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return reads }
	for i := range int64(10) {
		mu.Lock()
		number[r.commit()] = i + 1
		mu.Unlock()
		r.mustPush("main")
		returned.Store(i + 1)
		if i%3 == 2 { // time for the cache
			before := count() - r.runs()
			r.await("it is read from the cache", func() bool { return count()-r.runs() > before+2 })
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("%d reads, %d of them by git", reads, r.runs())
	if r.runs() >= reads {
		t.Error("nothing came from the cache")
	}
}

// Between the hook and the change of a ref readers go without the cache.
func TestGitSlowPush(t *testing.T) {
	for _, test := range []struct {
		name string
		hook bool
	}{{"hook", true}, {"receive-pack", false}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRepo(t, test.hook)
			r.wrap()
			if test.hook {
				r.url = r.bare
			}
			r.commit()
			r.mustPush("main")
			r.cached()
			at := filepath.Join(r.bare, "at")
			r.hook("update", "#!/bin/sh\ntouch at; while test -e at; do sleep 0.1; done\n")
			r.commit()
			pushed := make(chan error, 1)
			go func() { pushed <- r.push("main") }()
			r.await("it is being pushed", func() bool { _, err := os.Stat(at); return err == nil })
			before := r.runs()
			r.right("during a push")
			r.right("during a push")
			if got := r.runs() - before; got != 2 {
				t.Errorf("git was asked %d times by 2 readers during a push", got)
			}
			os.Remove(at)
			if err := <-pushed; err != nil {
				t.Fatal(err)
			}
			r.right("after the push")
			r.cached()
			r.right("from the cache")
		})
	}
}

// A push that is refused, or that ends before its time, leaves readers that are
// told the truth, and a cache.
func TestGitUnfinished(t *testing.T) {
	for _, test := range []struct {
		name   string
		lease  string // in place of state write, in the hook
		update string // the hook, called before each ref is changed
		during func(r *repo)
		want   func(r *repo, old, new string) map[string]string // nil: as before
	}{
		{name: "refused by another hook", update: "exit 1"},
		{
			name: "receive-pack is killed", update: "case $1 in */b) kill -KILL $PPID ;; esac",
			want: func(r *repo, old, new string) map[string]string {
				return map[string]string{"refs/heads/main": old, "refs/heads/a": new}
			},
		},
		{
			name: "the lease's process is killed", update: "touch at; while test -e at; do sleep 0.1; done",
			during: func(r *repo) { syscall.Kill(r.holder(), syscall.SIGKILL) },
		},
		{
			name: "the lease's process is asked to end", update: "touch at; while test -e at; do sleep 0.1; done",
			during: func(r *repo) { syscall.Kill(r.holder(), syscall.SIGTERM) },
		},
		{
			name: "the lease's process stands still", lease: "state write --ttl 2", update: "touch at; while test -e at; do sleep 0.1; done",
			during: func(r *repo) {
				pid := r.holder()
				syscall.Kill(pid, syscall.SIGSTOP)
				r.await("receive-pack is killed", func() bool { return syscall.Kill(r.receiver(), 0) != nil })
				syscall.Kill(pid, syscall.SIGCONT)
			},
		},
		{
			name: "receive-pack is killed when it runs no hook", update: "touch at; while test -e at; do sleep 0.1; done",
			during: func(r *repo) { syscall.Kill(r.receiver(), syscall.SIGKILL) },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRepo(t, true)
			old := r.commit()
			r.mustPush("main")
			r.cached()
			r.hook("update", "#!/bin/sh\necho $PPID >receiver\n"+test.update+"\n")
			if test.lease != "" {
				text, _ := os.ReadFile(filepath.Join(r.bare, "hooks", "pre-receive"))
				r.hook("pre-receive", strings.Replace(string(text), "state write", test.lease, 1))
			}
			new := r.commit()
			pushed := make(chan error, 1)
			go func() { pushed <- r.push("main:a", "main:b") }()
			if test.during != nil {
				r.await("it is being pushed", func() bool { _, err := os.Stat(filepath.Join(r.bare, "at")); return err == nil })
				r.right("during a push")
				test.during(r)
				r.await("it has ended", func() bool { return len(pushed) == 1 })
				os.Remove(filepath.Join(r.bare, "at"))
			}
			if err := <-pushed; err == nil {
				t.Error("the push is said to be done")
			}
			want := map[string]string{"refs/heads/main": old}
			if test.want != nil {
				want = test.want(r, old, new)
			}
			r.right("after the push has ended")
			if got := r.truth(); !maps.Equal(got, want) {
				t.Errorf("git says %v, want %v", got, want)
			}
			r.cached()
			r.right("from the cache")
			os.Remove(filepath.Join(r.bare, "hooks", "update"))
			r.mustPush("main:c")
			r.right("after the next push")
		})
	}
}

// Where there can be no lease nothing is pushed.
func TestGitNoLease(t *testing.T) {
	for _, test := range []struct {
		name, says, log string
		harm            func(r *repo)
	}{
		{"state is no directory", "push refused: there is no lease", "not a directory", func(r *repo) {
			dir := filepath.Join(r.bare, "state")
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
				r.t.Fatal(err)
			}
		}},
		{"no holdfast", "push refused: there is no lease", "not found", func(r *repo) {
			r.env = append(r.env, "PATH="+filepath.Join(r.dir, "bin")+":/usr/bin:/bin")
		}},
		{"by way of another hook", "has to be started by git receive-pack itself", "", func(r *repo) {
			hooks := filepath.Join(r.bare, "hooks")
			if err := os.Rename(filepath.Join(hooks, "pre-receive"), filepath.Join(hooks, "lease")); err != nil {
				r.t.Fatal(err)
			}
			r.hook("pre-receive", "#!/bin/sh\nhooks/lease\n")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRepo(t, true)
			r.commit()
			r.mustPush("main")
			r.await("the lease has ended", func() bool { return len(r.pending()) == 0 })
			before := r.truth()
			test.harm(r)
			r.commit()
			if err := r.push("main"); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want: %s", err, test.says)
			}
			if got := r.truth(); !maps.Equal(got, before) {
				t.Errorf("it was pushed: %v", got)
			}
			if log, _ := os.ReadFile(filepath.Join(r.bare, "holdfast.log")); !strings.Contains(string(log), test.log) {
				t.Errorf("holdfast.log says %q, want: %s", log, test.log)
			}
		})
	}
}

// What changes refs without a push does so under a lease, too.
func TestGitOthers(t *testing.T) {
	r := newRepo(t, true)
	one := r.commit()
	r.mustPush("main", "main:b")
	r.cached()
	under := func(args ...string) {
		t.Helper()
		if _, err := r.try("holdfast", append([]string{"state", "write", r.bare, "--", "git", "--git-dir=" + r.bare}, args...)...); err != nil {
			t.Fatal(err)
		}
		r.right("after " + args[0])
		r.cached()
		r.right("from the cache after " + args[0])
	}
	under("update-ref", "refs/heads/c", one)
	under("branch", "-q", "-D", "b")
	under("fetch", "-q", r.work, "main:refs/heads/d")
	under("symbolic-ref", "HEAD", "refs/heads/d")
	if out, err := r.try(filepath.Join(r.scripts, "info-refs"), r.bare); err != nil || !strings.Contains(out, "symref=HEAD:refs/heads/d ") {
		t.Errorf("HEAD is told as %q, %v", out, err)
	}
	r.git("--git-dir="+r.bare, "pack-refs", "--all")
	r.right("after pack-refs")
	// A hook that comes after the refs have changed is inside the push's lease,
	// and one that is reached by exec is receive-pack's own.
	hooks := filepath.Join(r.bare, "hooks")
	if err := os.Rename(filepath.Join(hooks, "pre-receive"), filepath.Join(hooks, "lease")); err != nil {
		t.Fatal(err)
	}
	r.hook("pre-receive", "#!/bin/sh\ntrue && exec hooks/lease\n")
	r.hook("post-receive", "#!/bin/sh\nsleep 0.3\nwhile read -r old new ref; do git update-ref refs/heads/last $new; done\n")
	two := r.commit()
	r.mustPush("main")
	r.right("after a push with post-receive")
	if got := r.truth()["refs/heads/last"]; got != two {
		t.Errorf("the hook has set %q, want %q", got, two)
	}
	r.cached()
	r.right("from the cache after a push with post-receive")
	// The configuration is no part of the key.
	r.git("--git-dir="+r.bare, "config", "transfer.hideRefs", "refs/heads/c")
	if _, err := r.try("holdfast", "state", "clear", r.bare); err != nil {
		t.Fatal(err)
	}
	refs, err := r.read()
	if _, told := refs["refs/heads/c"]; told || err != nil || len(refs) != len(r.truth())-1 {
		t.Errorf("with a hidden ref a reader is told %v, %v", refs, err)
	}
	r.env = append(r.env, "GIT_PROTOCOL=version=2")
	if out, err := r.try(filepath.Join(r.scripts, "info-refs"), r.bare); err != nil || !strings.Contains(out, "ls-refs") || len(refsOf(out)) > 0 {
		t.Errorf("in version 2 a reader is told %q, %v", out, err)
	}
}

// The push by docs/git/receive-pack ends with its lease.
func TestGitReceivePackLost(t *testing.T) {
	r := newRepo(t, false)
	r.wrap()
	r.commit()
	r.mustPush("main")
	before := r.truth()
	r.hook("update", "#!/bin/sh\ntouch at; while test -e at; do sleep 0.1; done\n")
	r.commit()
	pushed := make(chan error, 1)
	go func() { pushed <- r.push("main") }()
	at := filepath.Join(r.bare, "at")
	r.await("it is being pushed", func() bool { _, err := os.Stat(at); return err == nil })
	began := time.Now()
	syscall.Kill(r.holder(), syscall.SIGKILL)
	if err := <-pushed; err == nil {
		t.Error("the push is said to be done")
	}
	t.Logf("it ended after %v", time.Since(began).Round(time.Millisecond))
	os.Remove(at)
	if got := r.truth(); !maps.Equal(got, before) {
		t.Errorf("it was pushed: %v", got)
	}
	r.right("after the push has ended")
	r.cached()
}

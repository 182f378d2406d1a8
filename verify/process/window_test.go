//go:build linux

package process

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// through is the same world by way of a proxy.
func (w *world) through(p *servers.Proxy) *world {
	w.t.Helper()
	v := *w
	v.target = servers.WithHostPort(w.target, p.Addr())
	return &v
}

// A TTL that is made much smaller binds the holder's command from when its heartbeat
// carries it, also if that is never answered: others go by it as soon as the store
// has it.
func TestLoweredWindow(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"run", "elect", "state write"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			server := servers.Postgres(t, nil) // or skips
			w := newDir(t).open(server.Database(t))
			u, err := url.Parse(w.target)
			must(t, err)
			proxy, err := servers.NewProxy(t.Context(), u.Host)
			must(t, err)
			t.Cleanup(proxy.Close)
			loweredWindow(t, w, proxy, strings.Fields(verb))
		})
	}
}

func loweredWindow(t *testing.T, w *world, proxy *servers.Proxy, verb []string) {
	before, _ := lease(15 * time.Second)
	after, _ := lease(4 * time.Second) // at each reply the store is asked whether it is the one
	if *full {
		before = 45 * time.Second
	}
	config := func(ttl time.Duration) {
		t.Helper()
		w.holdfast("config", "set", "ttl", ttl.String()).wantStatus(0)
	}
	config(before)
	a, b := w.host("a").through(proxy), w.host("b")
	command := a.actor("-alone", w.dir, "-deaf")
	first := a.holdfast(slices.Concat(verb, []string{"-q", "x", "--"}, command)...)
	span := w.after(0, 1)
	next := b.runActor([]string{"-q", "x"}, "-for", "1ms", "-alone", w.dir)
	w.queued("x", 1)
	config(after)

	// The heartbeat that carries the new TTL is done, its answer lost, and then the
	// store says nothing more.
	proxy.CutOnReply(func([]byte) bool { return w.ttlOf(span.Token) == after }, 1)
	lost := func() bool { return first.isDone() || strings.Contains(first.said(), "lost") } // elect goes on
	await(t, "the answer to the heartbeat is lost", func() bool { return proxy.Cuts() > 0 || lost() })
	if lost() {
		t.Fatalf("the holder lost its lease before: %s", first.said())
	}
	proxy.Blackhole(true, true)
	first.signal(syscall.SIGSTOP) // from here on only the guard can end the command
	began := life.Now()
	later := w.after(span.Token, 1)
	next.wantStatus(0)
	first.signal(syscall.SIGCONT)
	inTurn(t, w.spans())
	t.Logf("figure: TTL %v made %v, the answer lost: the command was dead %v before the next began, which was %v after",
		before, after, time.Duration(later.Begin-w.lastOf(span.Token)).Round(time.Millisecond), time.Duration(later.Begin-began).Round(time.Millisecond))
	if slices.Equal(verb, []string{"elect"}) {
		first.signal(syscall.SIGTERM) // it stands again
	}
	proxy.Blackhole(false, false)
	first.status()
	if text := first.stderr.String(); !strings.Contains(text, `lost "x"`) {
		t.Errorf("the loss is told as %q", text)
	}
}

// ttlOf is the TTL in the session of the hold with a token.
func (w *world) ttlOf(token int64) time.Duration {
	info, err := w.client.Show(w.t.Context(), "x")
	if err != nil {
		return 0
	}
	for _, h := range info.Holders {
		if h.Token == token {
			return h.TTL
		}
	}
	return 0
}

// A command is not started under a lease that has ended, however long those who are
// to start it have stood still.
func TestStartAfterTheLease(t *testing.T) {
	t.Parallel()
	for store, fresh := range onFiles {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			w := fresh(t)
			a, b := w.host("a"), w.host("b")
			holder := w.runActor([]string{"x"}, "-stdin")
			token := w.after(0, 1).Token
			first := a.holdfast("run", "--ttl", "2", "x", "--", "sh", "-c", "mkdir ran")
			says := func(what string) {
				t.Helper()
				await(t, "the first says "+what, func() bool { return strings.Contains(first.said(), what) })
			}
			w.queued("x", 1)
			guard := guardOf(t, first)
			must(t, syscall.Kill(guard, syscall.SIGSTOP))
			last := b.runActor([]string{"-q", "--ttl", "2", "x"}, "-stdin", "-alone", w.dir)
			w.queued("x", 2)
			says("waiting for")
			holder.end()
			says(`holding "x"`) // and has the guard start the command
			first.signal(syscall.SIGSTOP)
			after := w.after(token, 1) // of the one after
			must(t, syscall.Kill(guard, syscall.SIGCONT))
			// The guard does what it was told, unless run was stopped before it told it anything.
			for end := time.Now().Add(2 * time.Second); state(guard) != 'Z' && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			t.Logf("the guard is %c when run goes on", state(guard))
			first.signal(syscall.SIGCONT)
			first.wantStatus(75)
			if text := first.said(); !strings.Contains(text, "nothing was run") {
				t.Errorf("it says %q", text)
			}
			if _, err := os.Stat(w.dir + "/ran"); err == nil {
				t.Errorf("a command was run though its lease had ended, and token %d held the lock", after.Token)
			}
			last.end()
			last.wantStatus(0)
		})
	}
}

// A holder that was declared dead by mistake, as where the store's clock has leapt,
// kills its command when it hears of that, without the time that it has after a break:
// another may hold the lock already.
func TestDeclaredDeadByMistake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.runActor([]string{"-q", "--ttl", "9", "--kill-after", "3", "x"}, "-deaf")
	span := w.after(0, 1)
	session := w.show("x").Holders[0].Owner.Session
	key := driver.Key{Space: driver.Sessions, Name: session}
	await(t, "it is declared dead", func() bool {
		recs, err := w.store.Load(t.Context(), []driver.Key{key}, driver.Fresh)
		must(t, err)
		outs, err := w.store.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: recs[0].Version, Value: []byte(`{"dead":1,"by":"a leap"}`)}})
		must(t, err)
		return outs[0].Won
	})
	first.wantStatus(75)
	var after string
	_, text, _ := strings.Cut(first.stderr.String(), "(signal KILL after ")
	after, _, _ = strings.Cut(text, ")")
	if took, err := time.ParseDuration(after); err != nil || took > time.Second {
		t.Errorf("it was killed %q after it was told, want at once: %s", after, first.said())
	}
	if !strings.Contains(first.said(), "declared dead by a leap") {
		t.Errorf("the loss is told as %q", first.said())
	}
	if over := time.Duration(first.ended - w.lastOf(span.Token)); over < 0 {
		t.Errorf("run had ended %v before its command", -over)
	}
}

// When one name of several is broken the others go to nobody before the command
// is dead.
func TestBreakOneOfSeveral(t *testing.T) {
	t.Parallel()
	for store, fresh := range onFiles {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			w := fresh(t)
			first := w.holdfast(append([]string{"run", "-q", "--ttl", "9", "a", "b", "--"}, w.actor("-deaf", "-alone", w.dir)...)...)
			span := w.after(0, 1)
			next := w.holdfast(append([]string{"run", "-q", "b", "--"}, w.actor("-for", "1ms", "-alone", w.dir)...)...)
			w.queued("b", 1)
			w.holdfast("break", "--yes", "--reason", "a test", "--token", fmt.Sprint(w.show("a").Holders[0].Token), "a").wantStatus(0)
			first.wantStatus(75)
			next.wantStatus(0)
			for _, s := range w.spans() {
				if s.PID != span.PID && (s.Beside > 0 || s.Begin < w.lastOf(span.Token)) {
					t.Errorf("the command under \"b\" began %v before that under \"a\" and \"b\" was dead", time.Duration(w.lastOf(span.Token)-s.Begin))
				}
			}
		})
	}
}

//go:build linux

package process

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/sqlite"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

func margin(ttl time.Duration) time.Duration { return holdfast.Margin(ttl) }

// When the store is gone the command is, before the window closes; the status
// says that the lock was lost.
func TestStoreGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		lose func(t *testing.T, w *world, p *process)
		says string
	}{
		{"directory store removed", func(t *testing.T, w *world, p *process) { must(t, os.RemoveAll(w.dir+"/db/store")) }, "db/store"},
		{"directory store moved away", func(t *testing.T, w *world, p *process) {
			must(t, os.Rename(w.dir+"/db/store", w.dir+"/db/store.old"))
		}, "db/store"},
		{"directory store replaced", func(t *testing.T, w *world, p *process) {
			must(t, os.Mkdir(w.dir+"/db/store.new", 0o700))
			must(t, directory.Migrate(w.dir+"/db/store.new"))
			must(t, os.Rename(w.dir+"/db/store", w.dir+"/db/store.old"))
			must(t, os.Rename(w.dir+"/db/store.new", w.dir+"/db/store"))
		}, "db/store"},
		{"directory store mounted over", func(t *testing.T, w *world, p *process) {
			path := w.dir + "/db/store"
			if err := syscall.Mount("tmpfs", path, "tmpfs", 0, "size=256k"); err != nil {
				t.Skipf("SKIPPED: nothing can be mounted here: %v", err)
			}
			t.Cleanup(func() { syscall.Unmount(path, syscall.MNT_DETACH) })
		}, "db/store"},
		{"removed", func(t *testing.T, w *world, p *process) { must(t, os.Remove(w.db)) }, "removed or replaced"},
		{"moved away", func(t *testing.T, w *world, p *process) { must(t, os.Rename(w.db, w.db+".old")) }, "removed or replaced"},
		{"replaced", func(t *testing.T, w *world, p *process) {
			must(t, sqlite.Migrate(t.Context(), w.db+".new"))
			must(t, os.Rename(w.db+".new", w.db))
		}, "removed or replaced"},
		{"directory gone", func(t *testing.T, w *world, p *process) { must(t, os.Rename(w.dir+"/db", w.dir+"/gone")) }, "removed or replaced"},
		{"tables dropped", func(t *testing.T, w *world, p *process) {
			_, err := w.tables.Exec(`drop table holdfast_records`)
			must(t, err)
		}, "no such table"},
		{"locked for ever", lockForEver, ""},
		{"locked for ever, guard stopped", func(t *testing.T, w *world, p *process) {
			must(t, syscall.Kill(guardOf(t, p), syscall.SIGSTOP))
			lockForEver(t, w, p)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			storeGone(t, c.lose, c.says)
		})
	}
}

// lockForEver has another program begin an exclusive transaction that never ends.
func lockForEver(t *testing.T, w *world, p *process) {
	db, err := sql.Open("sqlite", "file:"+w.db+"?_pragma=busy_timeout(10000)")
	must(t, err)
	t.Cleanup(func() { db.Close() })
	conn, err := db.Conn(context.Background())
	must(t, err)
	_, err = conn.ExecContext(t.Context(), "begin exclusive")
	must(t, err)
}

func storeGone(t *testing.T, lose func(t *testing.T, w *world, p *process), says string) {
	w := newWorldIn(t, "db")
	if strings.Contains(t.Name(), "directory_store") {
		w = newDirectoryIn(t, "db")
	}
	ttl, text := lease(2 * time.Second)
	p := w.family("--ttl", text)
	token := w.after(0, members).Token
	session := w.show("x").Holders[0].Owner.Session
	beat := w.lastBeat(session)
	// Right after a heartbeat there is none for a third of the TTL: the last one
	// before the loss is known.
	await(t, "a heartbeat", func() bool {
		last := w.lastBeat(session)
		defer func() { beat = last }()
		return last > beat+int64(ttl)/6
	})
	late := machine(t)
	lose(t, w, p)
	lost := life.Now()
	if lost > beat+int64(ttl)/4 {
		beat = lost // one more may have come, on a slow machine
	}
	p.wantStatus(75)
	slow := late()
	last := w.lastOf(token)
	if over := time.Duration(last - (beat + int64(ttl-margin(ttl)))); over > min(slow, margin(ttl)/2) {
		t.Errorf("the command lived on for %v after the window had closed (slowness of the machine %v)", over, slow)
	}
	said := p.stderr.String()
	wanted := []string{`losing "x"`, `lost "x"`, says, "holdfast doctor"}
	if strings.HasSuffix(t.Name(), "guard_stopped") {
		wanted = []string{`lost "x": the guard of`}
	}
	if (strings.Contains(said, "may have run on") || strings.Contains(said, "is gone or stood still")) && slow > 50*time.Millisecond {
		t.Logf("it could not be seen in time that all were dead (slowness of the machine %v): %s", slow, said)
		wanted = nil
	}
	for _, want := range wanted {
		if !strings.Contains(said, want) {
			t.Errorf("it says %q, which lacks %q", said, want)
		}
	}
	t.Logf("figure: the last of the command lived %v after the last heartbeat, %v after the loss (TTL %v, window %v); run ended %v after the loss",
		time.Duration(last-beat).Round(time.Millisecond), time.Duration(last-lost).Round(time.Millisecond), ttl, ttl-margin(ttl), time.Duration(p.ended-lost).Round(time.Millisecond))
}

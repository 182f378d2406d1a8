package mysql

import (
	"context"
	"errors"
	"net/url"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// A dump in one transaction leaves locks alone. One with the defaults locks all tables
// of the database, ours too: whoever holds a lock loses it, as the documentation says.
func TestDump(t *testing.T) {
	dump, err := exec.LookPath("mariadb-dump")
	if err != nil {
		if dump, err = exec.LookPath("mysqldump"); err != nil {
			t.Skip("there is no mariadb-dump, nor mysqldump")
		}
	}
	for option, keeps := range map[string]bool{"--single-transaction": true, "--lock-tables": false} {
		t.Run(option, func(t *testing.T) {
			t.Parallel()
			target := servers.MySQL(t, nil).Database(t)
			db := connect(t, target, way{})
			if err := Migrate(t.Context(), db, nil); err != nil {
				t.Fatal(err)
			}
			for _, q := range []string{
				`create table bulk (id integer primary key auto_increment, text varchar(1000))`,
				`insert into bulk (text) values (repeat('x', 1000))`,
			} {
				if _, err := db.Exec(q); err != nil {
					t.Fatal(err)
				}
			}
			for range 12 { // more than goes into a pipe
				if _, err := db.Exec(`insert into bulk (text) select text from bulk`); err != nil {
					t.Fatal(err)
				}
			}
			var beats atomic.Int64
			c, err := holdfast.New(open(t, target, way{}), &holdfast.Options{TTL: 3 * time.Second, Trace: &holdfast.Trace{
				Heartbeat: func(_ context.Context, e holdfast.Event) {
					if e.Err == nil {
						beats.Add(1)
					}
				},
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			l, err := c.Acquire(t.Context(), "nightly")
			if err != nil {
				t.Fatal(err)
			}

			u, err := url.Parse(target)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), dump, "--no-defaults", "--protocol=tcp", "-h"+u.Hostname(), "-P"+u.Port(), "-u"+u.User.Username(), option, u.Path[1:])
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			if _, err := out.Read(make([]byte, 1)); err != nil { // it is at it, and nobody reads on
				t.Fatal(err)
			}
			began := beats.Load()
			for end := time.Now().Add(20 * time.Second); l.Err() == nil && beats.Load() < began+6; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("neither a heartbeat nor a loss")
				}
			}
			if err := l.Err(); keeps && err != nil || !keeps && !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("after a dump that took long: %v", err)
			}
		})
	}
}

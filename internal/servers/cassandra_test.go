//go:build linux

package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// ran runs a statement on one node, at QUORUM.
func ran(t *testing.T, c *Cluster, n int, statement string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cells, err := cql(ctx, c.addr(n), statement, quorum)
	must(t, err)
	return cells
}

// refuses says why one node does not run a statement.
func refuses(t *testing.T, c *Cluster, n int, statement string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := cql(ctx, c.addr(n), statement, quorum)
	if err == nil {
		t.Errorf("node %d has run %s", n, statement)
	}
	return err
}

// A cluster goes on without one node, killed, frozen or cut off, and not without
// two; what it has acknowledged is there after that.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute or two; verify/chaos does the same to its cluster")
	}
	c := Cassandra(t, &ClusterOptions{Settings: []string{"write_request_timeout: 1500ms"}, Cuttable: true})
	if !strings.HasPrefix(c.Name, "Cassandra 5.0.") {
		t.Errorf("got the name %q, want Cassandra 5.0", c.Name)
	}
	set := "SELECT value FROM system_views.settings WHERE name = 'write_request_timeout'"
	if got := strings.Join(ran(t, c, 0, set), ""); got != "1500ms" {
		t.Errorf("the setting is %s, want 1500ms", got)
	}
	url := c.Database(t)
	table := filepath.Base(url) + ".t"
	ran(t, c, 0, "CREATE TABLE "+table+" (k text PRIMARY KEY)")
	for n := 0; n < Nodes; { // the others learn of it later
		if _, err := cql(t.Context(), c.addr(n), "SELECT k FROM "+table, one); err == nil {
			n++
		} else if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	rows := 0
	insert := func() string { return fmt.Sprintf("INSERT INTO %s (k) VALUES ('%d') IF NOT EXISTS", table, rows) }
	write := func(n int) {
		t.Helper()
		if applied := ran(t, c, n, insert()); !slices.Equal(applied, []string{"\x01"}) {
			t.Errorf("row %d is there already: %q", rows, applied)
		}
		rows++
	}
	write(0)

	must(t, c.Freeze(2))
	write(0)
	write(1)
	must(t, c.Kill(1))
	if left := working(filepath.Join(c.Dir, "node1")); len(left) > 0 {
		t.Errorf("processes %v work after Kill", left)
	}
	refuses(t, c, 0, insert())
	refuses(t, c, 1, insert())
	must(t, c.Thaw(2))
	must(t, c.Restart(t.Context(), 1))
	must(t, c.Settled(t.Context()))
	rows++ // it may have been written in the end
	write(1)

	must(t, c.Part(0))
	refuses(t, c, 0, insert())
	rows++
	write(2)
	must(t, c.CutOff(0))
	if err := refuses(t, c, 0, insert()); err != nil && strings.Contains(err.Error(), "refused") {
		t.Errorf("a node that is cut off says %v; want silence", err)
	}
	write(1)
	must(t, c.Join(0))
	must(t, c.Settled(t.Context()))
	write(0)

	for n := range Nodes {
		got := ran(t, c, n, "SELECT k FROM "+table)
		for k := range rows {
			if k := fmt.Sprint(k); !slices.Contains(got, k) && k != "3" && k != "5" {
				t.Errorf("node %d knows %v, not %s", n, got, k)
			}
		}
	}

	must(t, c.Stop())
	must(t, c.Stop())
	if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is there after Stop: %v", c.Dir, err)
	}
	if left := working(c.Dir); len(left) > 0 {
		t.Errorf("processes %v work after Stop", left)
	}
	if err := c.Restart(t.Context(), 0); err == nil {
		t.Error("a node of a stopped cluster could be restarted")
	}
}

// A cluster that was pointed at is used and not broken.
func TestClusterAt(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	go func() { // a Cassandra of two answers
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			io.ReadFull(conn, make([]byte, 9+22))
			conn.Write([]byte{0x84, 0, 0, 0, 2, 0, 0, 0, 0})
			io.ReadFull(conn, make([]byte, 9))
			rows := "\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01k\x00\x01t\x00\x01c\x00\x0d\x00\x00\x00\x01\x00\x00\x00\x035.0"
			conn.Write(append([]byte{0x84, 0, 0, 0, 8, 0, 0, 0, byte(len(rows))}, rows...))
			conn.Close()
		}
	}()
	t.Setenv(cassandraEnv, "cassandra://"+ln.Addr().String())
	c := Cassandra(t, nil)
	if c.Own || c.Name != "Cassandra 5.0" || c.URL != os.Getenv(cassandraEnv) {
		t.Errorf("got %+v", c)
	}
	for what, err := range map[string]error{"Kill": c.Kill(0), "Freeze": c.Freeze(0), "CutOff": c.CutOff(0), "Restart": c.Restart(t.Context(), 0)} {
		if !errors.Is(err, errNotOwn) {
			t.Errorf("%s says %v", what, err)
		}
	}
	must(t, c.Stop())
}

// Jars that were not fetched to the end are not taken for all, and those who
// want the same wait for one another.
func TestJars(t *testing.T) {
	bin, cache := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	mvn := func(end string) {
		script := "#!/bin/sh\nfor a; do case $a in -DoutputDirectory=*) mkdir -p ${a#*=}; echo >${a#*=}/a.jar;; esac; done\necho x >>" + cache + "/runs\n" + end + "\n"
		must(t, os.WriteFile(filepath.Join(bin, "mvn"), []byte(script), 0o755))
	}
	mvn("echo no network; exit 1")
	if _, err := Jars(t.Context(), "g:a:1"); err == nil || !strings.Contains(err.Error(), "no network") {
		t.Fatalf("got %v, want what Maven said", err)
	}
	mvn("sleep 0.2")
	errs := make(chan error)
	for range 4 {
		go func() {
			dir, err := Jars(context.Background(), "g:a:1")
			if err == nil {
				_, err = os.Stat(filepath.Join(dir, "a.jar"))
			}
			errs <- err
		}()
	}
	for range 4 {
		must(t, <-errs)
	}
	if runs, _ := os.ReadFile(filepath.Join(cache, "runs")); string(runs) != "x\nx\n" {
		t.Errorf("Maven has run %q", runs)
	}
	left, _ := filepath.Glob(filepath.Join(cache, "holdfast-test", "*.part"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

//go:build linux

package janusgraph

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

//go:embed Vertex.java
var vertexSource []byte

// A whole JanusGraph is refused a change of a property of a vertex while a Locker has the lock,
// by the key and the column that package claims computes from their ids. -args -full, as it takes
// a minute.
func TestVertex(t *testing.T) {
	if !*full {
		t.Skip("takes a minute: -args -full")
	}
	p := build(t)
	file := filepath.Join(buildDir, "Vertex.java")
	must(t, os.WriteFile(file, vertexSource, 0o644))
	javac := filepath.Join(filepath.Dir(p.java), "javac")
	if out, err := exec.Command(javac, "-nowarn", "-d", buildDir, "-cp", p.classpath, file).CombinedOutput(); err != nil {
		t.Fatalf("javac: %v\n%s", err, out)
	}
	target := servers.Cassandra(t, nil).Database(t)
	u, err := url.Parse(target)
	must(t, err)
	host, port, _ := strings.Cut(u.Host, ":")
	const wait = time.Second
	graph := exec.Command(p.java, "-Xmx512m", "-cp", p.classpath, "VertexMain", host, port, "datacenter1", strings.Trim(u.Path, "/"), fmt.Sprint(wait.Milliseconds()))
	var stderr strings.Builder
	graph.Stderr = &stderr
	in, err := graph.StdinPipe()
	must(t, err)
	out, err := graph.StdoutPipe()
	must(t, err)
	must(t, graph.Start())
	defer func() { in.Close(); graph.Process.Kill(); graph.Wait() }()
	answers := bufio.NewScanner(out)
	ask := func(line string) string {
		t.Helper()
		if line != "" {
			fmt.Fprintln(in, line)
		}
		if !answers.Scan() {
			t.Fatalf("JanusGraph ends: %s", stderr.String())
		}
		return answers.Text()
	}
	var vertex, key uint64
	if _, err := fmt.Sscanf(ask(""), "ready %d %d", &vertex, &key); err != nil {
		t.Fatal(err, stderr.String())
	}
	db := session(t, target)
	l, err := claims.New(columns(t, db, target, "edgestore_lock_"), &claims.Options{Name: "ours", Wait: wait})
	must(t, err)
	defer l.Close(context.Background())

	if got := ask("90"); got != "ok" {
		t.Fatalf("nobody has the lock, and it answers %s", got)
	}
	lock, err := l.Acquire(t.Context(), claims.VertexKey(vertex, 32), claims.PropertyColumn(key))
	must(t, err)
	if got := ask("80"); !strings.HasPrefix(got, "failed ") || !strings.Contains(got, "Lock") {
		t.Errorf("we have the lock of vertex %d, property key %d, and it answers %s", vertex, key, got)
	} else {
		t.Logf("vertex %d, property key %d: %s", vertex, key, got)
	}
	must(t, lock.Release(t.Context()))
	if got := ask("70"); got != "ok" {
		t.Errorf("we have released the lock, and it answers %s", got)
	}
}

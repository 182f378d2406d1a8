package servers

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// An Artifact names something on Maven Central, "group:name:version".
type Artifact string

// What tests use.
const (
	CassandraJars  Artifact = "org.apache.cassandra:cassandra-all:5.0.9"
	JanusGraphJars Artifact = "org.janusgraph:janusgraph-cql:1.1.0"
)

// Jars returns a directory with the jars of an artifact and of all it needs. It
// is in the user's cache, where Maven puts it the first time, which takes about a
// minute; other processes that need it wait for that.
func Jars(ctx context.Context, a Artifact) (dir string, err error) {
	parts := strings.Split(string(a), ":")
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "holdfast-test")
	dir = filepath.Join(cache, parts[1]+"-"+parts[2])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // it has its name only once it is whole
	}
	mvn := find("mvn")
	if !supported || mvn == "" {
		return "", missing("Maven", "maven")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockPath(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	if err := fetch(ctx, mvn, part, parts); err != nil {
		return "", fmt.Errorf("%s: %w", a, err)
	}
	return dir, os.Rename(filepath.Join(part, "lib"), dir)
}

// lockPath waits for the lock of a file.
func lockPath(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	return f.Close, lockFile(f)
}

const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>holdfast</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>
  </dependency></dependencies>
</project>
`

// fetch makes Maven put the jars into lib in part, and all that it keeps for
// itself beside it.
func fetch(ctx context.Context, mvn, part string, a []string) error {
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	file := filepath.Join(part, "pom.xml")
	if err := os.WriteFile(file, fmt.Appendf(nil, pom, a[0], a[1], a[2]), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "--file", file, "-Dmaven.repo.local="+filepath.Join(part, "repo"),
		"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(part, "lib"))
	cmd.Dir = part
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}

var javaVersion = regexp.MustCompile(`version "(17[0-9.]*)`)

// Java17 finds a Java 17, which is what Cassandra 5.0 is made for, and its exact
// version.
func Java17() (java, version string, err error) {
	candidates, _ := filepath.Glob("/usr/lib/jvm/*-17-*/bin/java")
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append([]string{filepath.Join(home, "bin", "java")}, candidates...)
	}
	for _, java := range append([]string{find("java")}, candidates...) {
		if java == "" {
			continue
		}
		out, err := exec.Command(java, "-version").CombinedOutput()
		if m := javaVersion.FindSubmatch(out); err == nil && m != nil {
			return java, string(m[1]), nil
		}
	}
	return "", "", missing("Java 17", "openjdk-17-jdk-headless")
}

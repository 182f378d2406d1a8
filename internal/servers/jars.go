package servers

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An Artifact names something on Maven Central, "group:name:version".
type Artifact string

// CassandraJars is the Cassandra that tests use.
const CassandraJars Artifact = "org.apache.cassandra:cassandra-all:5.0.9"

// Jars returns a directory with the jars of an artifact and of all it needs. It
// is in the user's cache, where Maven puts it the first time, which takes about a
// minute; processes that need it meanwhile wait.
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
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := lockFile(lock); err != nil {
		return "", err
	}
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

const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>holdfast</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>
  </dependency></dependencies>
</project>
`

// fetch has Maven put the jars into lib in part, and all that it keeps for
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

var javaVersion = regexp.MustCompile(`version "(?:1\.)?(\d+)`)

// javaFor finds a Java of one of these versions, the last one first.
func javaFor(versions ...int) (string, error) {
	var candidates []string
	for _, v := range slices.Backward(versions) {
		found, _ := filepath.Glob(fmt.Sprintf("/usr/lib/jvm/*-%d-*/bin/java", v))
		candidates = append(candidates, found...)
	}
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append([]string{filepath.Join(home, "bin", "java")}, candidates...)
	}
	for _, java := range append([]string{find("java")}, candidates...) {
		if java == "" {
			continue
		}
		out, err := exec.Command(java, "-version").CombinedOutput()
		if err != nil {
			continue
		}
		if m := javaVersion.FindSubmatch(out); m != nil {
			if v, _ := strconv.Atoi(string(m[1])); slices.Contains(versions, v) {
				return java, nil
			}
		}
	}
	return "", missing(fmt.Sprintf("Java %v", versions), "openjdk-17-jdk-headless")
}

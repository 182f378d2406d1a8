package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// If the program with the client is missing, the error names it and how to install it.
func TestNoEngine(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := ParseStore("etcd://app:hunter2@db")
	if err == nil || !strings.Contains(err.Error(), "needs the program holdfast-etcd") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

// A file that cannot be run is not taken for an answer.
func TestEngineNotRun(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if err := os.WriteFile(filepath.Join(dir, "holdfast-etcd"), []byte("\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseStore("etcd://db"); err == nil || !strings.Contains(err.Error(), "holdfast-etcd cannot be run") {
		t.Errorf("got %v", err)
	}
}

// A program of the current directory is not run, whatever PATH says: it would find
// the store's password in its environment.
func TestEngineOfTheCurrentDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TEST", t.Name())
	for _, name := range []string{"holdfast-etcd", "sub/holdfast-etcd"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("#!/bin/sh\necho \"--- FAIL: $TEST: it was run in place of this test\"\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, debug := range []string{"execerrdot=1", "execerrdot=0"} {
		t.Setenv("GODEBUG", debug)
		for _, path := range []string{".", "", ":" + t.TempDir(), t.TempDir() + ":", "./sub", "sub"} {
			t.Setenv("PATH", path)
			_, err := ParseStore("etcd://app:hunter2@db")
			if err == nil || !strings.Contains(err.Error(), "needs the program holdfast-etcd") || strings.Contains(err.Error(), "hunter2") ||
				path != "" && !strings.Contains(err.Error(), "that of the current directory is not run") {
				t.Errorf("PATH=%q, GODEBUG=%s: got %v", path, debug, err)
			}
		}
	}
}

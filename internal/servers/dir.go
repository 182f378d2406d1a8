package servers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

const prefix = "holdfast-server-"

// tempDir makes a directory that goes when this process does.
func tempDir(kind string) (string, error) {
	if err := watched(); err != nil {
		return "", err
	}
	return os.MkdirTemp("", fmt.Sprintf("%s%d-%s-", prefix, os.Getpid(), kind))
}

// janitor waits for the end of its standard input, which is the end of the
// process that started it, and clears what that left behind: processes that work
// in directories that begin with $0, shared memory of a PostgreSQL, and these
// directories.
const janitor = `
read -r _
while left=$(ls -l /proc/[0-9]*/cwd 2>/dev/null | grep -F -- "/cwd -> $0"); do
	kill -9 $(printf '%s\n' "$left" | sed 's|.*/proc/\([0-9]*\)/cwd -> .*|\1|')
	sleep 0.05
done
for f in "$0"*/data/postmaster.pid; do
	[ ! -f "$f" ] || ipcrm -m "$(sed -n '7s/.* //p' "$f")"
done
rm -rf "$0"*
`

// watched starts this process's janitor, and clears what processes left behind
// whose janitor was killed too.
var watched = sync.OnceValue(func() error {
	sweep()
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", janitor, filepath.Join(tmp, fmt.Sprintf("%s%d-", prefix, os.Getpid())))
	cmd.Dir = "/"
	if _, err := cmd.StdinPipe(); err != nil { // closed by the end of this process
		return err
	}
	if err := startApart(cmd); err != nil {
		return err
	}
	go cmd.Wait()
	return nil
})

func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*-*"))
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		if pid, err := strconv.Atoi(pid); err != nil || alive(pid) {
			continue
		}
		if dir, err := filepath.EvalSymlinks(dir); err == nil && signalAll(dir, kill) == nil {
			forget(dir)
			os.RemoveAll(dir)
		}
	}
	// What libfaketime keeps is in the way of the next process of that number.
	shared, _ := filepath.Glob("/dev/shm/*faketime_s*_*")
	for _, file := range shared {
		if pid, err := strconv.Atoi(file[strings.LastIndexByte(file, '_')+1:]); err == nil && !alive(pid) {
			os.Remove(file)
		}
	}
}

// freePort is a port that nobody uses, and none that the kernel gives to
// connections: else one could take it while its server is restarted.
func freePort() (int, error) {
	for range 1000 {
		port := 10000 + rand.IntN(22000)
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port is free")
}

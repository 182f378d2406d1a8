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
// process that started it, and clears away what that process left behind: processes
// that work in directories that begin with $0, shared memory of a PostgreSQL, and
// these directories.
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

// watched starts this process's janitor, and clears away what other processes left
// behind whose janitors were killed too.
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
	// Files of libfaketime are in the way of the next process with that number.
	shared, _ := filepath.Glob("/dev/shm/*faketime_s*_*")
	for _, file := range shared {
		if pid, err := strconv.Atoi(file[strings.LastIndexByte(file, '_')+1:]); err == nil && !alive(pid) {
			os.Remove(file)
		}
	}
}

// given are the ports that this process has given to its servers.
var given sync.Map

// freePort is a port that nobody uses, as freeOn chooses it.
func freePort() (port int, err error) {
	err = freeOn([]string{"127.0.0.1"}, &port)
	return port, err
}

// freeOn chooses ports that nobody uses on any of the hosts, and none that the kernel gives to
// connections: a connection could take the port while its server is restarted. Each port is given
// only once: the server that has it may not have begun yet, or may be about to start again.
func freeOn(hosts []string, into ...*int) error {
next:
	for range 1000 {
		if len(into) == 0 {
			return nil
		}
		port := 10000 + rand.IntN(22000)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		for _, host := range hosts {
			l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil {
				continue next
			}
			l.Close()
		}
		*into[0], into = port, into[1:]
	}
	return errors.New("no port is free")
}

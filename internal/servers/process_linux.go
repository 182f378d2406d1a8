package servers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const supported = true

// An account is the user that a server runs as, if that is not ours.
type account struct{ uid, gid int }

// accountOf is the account of a server that refuses root.
func accountOf(name string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	return &account{uid, gid}, errors.Join(err1, err2)
}

// keeper runs functions on a thread that does not end before the process does:
// the death signal of a child is sent when the thread that started it ends.
var keeper = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// start starts a command that is killed when this process ends, however it does.
func start(cmd *exec.Cmd, as *account) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if as != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}
	}
	started := make(chan error)
	keeper() <- func() { started <- cmd.Start() }
	return <-started
}

// startApart starts a command that outlives this process.
func startApart(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// working lists the processes that work in a directory, with their states as
// in proc(5). A server's processes are recognized by that, orphans too.
func working(dir string) map[int]byte {
	found := map[int]byte{}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		cwd, err := os.Readlink(proc + "/cwd")
		if err != nil || cwd != dir && !strings.HasPrefix(cwd, dir+"/") && cwd != dir+" (deleted)" {
			continue
		}
		stat, _ := os.ReadFile(proc + "/stat")
		if i := bytes.LastIndex(stat, []byte(") ")); i >= 0 && i+2 < len(stat) && stat[i+2] != 'Z' {
			pid, _ := strconv.Atoi(filepath.Base(proc))
			found[pid] = stat[i+2]
		}
	}
	return found
}

// forget removes the shared memory that a killed PostgreSQL in dir has left.
func forget(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	lines := strings.Split(string(b), "\n")
	if err != nil || len(lines) < 7 {
		return
	}
	if f := strings.Fields(lines[6]); len(f) == 2 {
		if id, err := strconv.Atoi(f[1]); err == nil {
			unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	}
}

// lockFile waits for the lock of a file, which ends when the file is closed.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }

// A treatment is a signal, and the states of processes for which it has worked.
type treatment struct {
	signal syscall.Signal
	worked func(state byte) bool
}

var (
	kill   = treatment{syscall.SIGKILL, func(byte) bool { return false }}
	freeze = treatment{syscall.SIGSTOP, func(state byte) bool { return state == 'T' }}
	thaw   = treatment{syscall.SIGCONT, func(state byte) bool { return state != 'T' }}
)

// signalAll treats the processes that work in a directory, and those that they
// start in the meantime, and returns when that has worked for all.
func signalAll(dir string, how treatment) error {
	for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		left := working(dir)
		for pid, state := range left {
			if how.worked(state) {
				delete(left, pid)
			} else {
				syscall.Kill(pid, how.signal)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%v to processes %v in %s has not worked after %v", how.signal, left, dir, patience)
		}
	}
}

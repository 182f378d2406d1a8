//go:build linux

package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A traced is what became of a process whose system calls were counted.
type traced struct {
	Missing string   // why there is no tracing here
	Killed  bool     // instead of its call number At
	Calls   []string // those from its first mark on, up to the last one
	Said    string   // what it has printed
}

// notch is a call that does nothing, for who traces: from the first one on calls
// are counted, until the second one.
func notch() { unix.Prctl(marker, 0, 0, 0, 0) }

const marker = 0x686f6c64

// quiet are the calls that change nothing which another process could see, or no
// more than the death of the process does, and those that Go's runtime makes at
// any moment.
var quiet = []uint64{
	unix.SYS_CLOSE, unix.SYS_FLOCK, unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_GETDENTS64, unix.SYS_LSEEK,
	unix.SYS_FCNTL, unix.SYS_FSTATFS, unix.SYS_STATFS, unix.SYS_READLINKAT, unix.SYS_FACCESSAT, unix.SYS_GETRANDOM,
	unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_SCHED_YIELD, unix.SYS_CLONE, unix.SYS_CLONE3,
	unix.SYS_EXIT, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_TGKILL, unix.SYS_RESTART_SYSCALL,
	unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_PRCTL,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
}

var callNames = map[uint64]string{
	unix.SYS_OPENAT: "create", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "write",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fsync", unix.SYS_FTRUNCATE: "truncate", unix.SYS_MKDIRAT: "mkdir", unix.SYS_LINKAT: "link",
	unix.SYS_RENAMEAT: "rename", unix.SYS_RENAMEAT2: "rename", unix.SYS_UNLINKAT: "unlink", unix.SYS_UTIMENSAT: "touch",
	unix.SYS_FCHMOD: "chmod", unix.SYS_FCHMODAT: "chmod",
}

// A callInfo is the kernel's struct ptrace_syscall_info when a call begins.
type callInfo struct {
	op   uint8
	_    [3]uint8
	arch uint32
	ip   uint64
	sp   uint64
	nr   uint64
	args [6]uint64
	_    [4]uint64
}

// trace runs this program in another role and kills it with -9 instead of its
// n-th system call after the mark.
func trace(args []string) error {
	at, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	told, err := follow(args[1], args[2:], at)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(told)
}

func follow(role string, args []string, at int) (told traced, err error) {
	runtime.LockOSThread() // whom the traced process belongs to; it dies with it
	self, err := os.Executable()
	if err != nil {
		return told, err
	}
	out, err := os.CreateTemp("", "said-")
	if err != nil {
		return told, err
	}
	defer out.Close()
	defer os.Remove(out.Name())
	in, err := os.Open(os.DevNull)
	if err != nil {
		return told, err
	}
	defer in.Close()
	p, err := os.StartProcess(self, append([]string{self}, args...), &os.ProcAttr{
		Env:   append([]string{"PROCESS_ROLE=" + role}, os.Environ()...), // the first counts
		Files: []*os.File{in, out, os.Stderr},
		Sys:   &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL},
	})
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
		told.Missing = err.Error()
		return told, nil
	}
	if err != nil {
		return told, err
	}
	defer p.Release()
	marks, first, entering := 0, true, make(map[int]bool)
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return told, fmt.Errorf("wait for the traced: %w", err)
		}
		switch {
		case pid == p.Pid && status.Exited() && status.ExitStatus() != 0:
			return told, fmt.Errorf("the traced ended with status %d", status.ExitStatus())
		case pid == p.Pid && (status.Exited() || status.Signaled()):
			text, err := os.ReadFile(out.Name())
			told.Said = string(text)
			return told, err
		case !status.Stopped():
			continue // the end of a thread
		}
		pass := 0
		switch sig := status.StopSignal(); {
		case first:
			first = false
			if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
				told.Missing = err.Error()
				return told, p.Kill()
			}
		case sig == syscall.SIGTRAP|0x80:
			if entering[pid] = !entering[pid]; !entering[pid] {
				break
			}
			var info callInfo
			if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(pid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0); errno == unix.ESRCH {
				break // killed
			} else if errno != 0 {
				told.Missing = errno.Error()
				return told, p.Kill()
			}
			if entering[pid] = info.op == unix.PTRACE_SYSCALL_INFO_ENTRY; !entering[pid] {
				break
			}
			marked := info.nr == unix.SYS_PRCTL && info.args[0] == marker
			if marked {
				marks++
			}
			looks := slices.Contains(quiet, info.nr) || info.nr == unix.SYS_OPENAT && info.args[2]&unix.O_CREAT == 0
			if told.Killed || !(marked && marks == 2) && (marks != 1 || looks) {
				break
			}
			what := callNames[info.nr]
			switch {
			case marked:
				what = "end"
			case what == "":
				what = fmt.Sprintf("call %d", info.nr)
			}
			told.Calls = append(told.Calls, what)
			if told.Killed = len(told.Calls) == at; told.Killed {
				if err := p.Kill(); err != nil {
					return told, err
				}
			}
		case sig != syscall.SIGSTOP && sig != syscall.SIGTRAP: // with which threads begin
			pass = int(sig)
		}
		if err := unix.PtraceSyscall(pid, pass); err != nil && err != unix.ESRCH {
			return told, fmt.Errorf("go on: %w", err)
		}
	}
}

func (t traced) String() string { return strings.Join(t.Calls, " ") }

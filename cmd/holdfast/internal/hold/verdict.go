package hold

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-lock/holdfast/driver"
)

// judge turns the end of the command into ours.
func (r *runner) judge(e guard.Event, lost error) error {
	command, names := cli.Escape(r.argv[0]), cli.QuoteAll(r.names)
	danger, now := "may have run on beside the next holder, and only what is fenced was protected", "may run on beside the next holder, and only what is fenced is protected"
	if r.files {
		danger, now = "may have gone on to write when readers took it for dead", "may go on to write though readers take it for dead"
	}
	beside := ""
	if e.Late > 0 {
		beside = "; it " + danger
	}
	switch {
	case e.Errno != 0:
		return cannotRun(r.argv[0], e.Errno)
	case e.Alive != nil:
		return cli.Fail(cli.ExitLost, "lost %s: %s; %s could not be killed and %s", names, reasonOf(lost), survivors(e.Alive), now)
	case e.PID == 0 && e.Why != guard.NoGuard:
		return r.notStarted(lost)
	case e.Why == guard.NoGuard:
		return cli.Fail(cli.ExitLost, "lost %s: the guard of %s is gone or stood still; %s was killed with all it started%s", names, command, command, beside)
	case e.Why == guard.Told:
		return cli.Fail(cli.ExitLost, "lost %s: %s; %s stopped (%s)%s", names, reasonOf(lost), command, manner(e), beside)
	case e.Late > 0 && e.Stood:
		return cli.Fail(cli.ExitLost, "lost %s: this machine stood still, and %s %s", names, command, danger)
	case e.Late > 0:
		return cli.Fail(cli.ExitLost, "lost %s: %s was dead only %s after the lease had ended (%s)%s", names, command, cli.Brief(e.Late), manner(e), beside)
	case e.Why == guard.Deadline && r.why != "":
		return cli.Fail(cli.ExitLost, "lost %s: %s; %s stopped in time (%s)", names, r.why, command, manner(e))
	case e.Why == guard.Deadline && r.files:
		return cli.Fail(cli.ExitLost, "lost %s: %s stopped in time (%s); run it again when the files can be written", names, command, manner(e))
	case e.Why == guard.Deadline:
		return cli.Fail(cli.ExitLost, "lost %s: %s stopped in time (%s); run it again when the store is back: %s", names, command, manner(e), cli.Hint("doctor"))
	}
	if e.Left > 0 {
		how := "asked to end"
		if e.Killed {
			how = "killed"
		}
		cli.Say("%s left %d of its processes running; %s before %s", command, e.Left, how, r.last)
	}
	switch s := e.Status; {
	case s.Signaled():
		return &cli.Killed{Signal: s.Signal(), Really: s.Signal() == syscall.SIGINT && r.terminal}
	case s.ExitStatus() != 0:
		return &cli.Failure{Status: s.ExitStatus()}
	}
	return nil
}

// manner is how a command ended after it was asked to.
func manner(e guard.Event) string {
	switch {
	case e.Killed:
		return fmt.Sprintf("signal KILL after %s", cli.Brief(e.After))
	case e.Status.Signaled():
		return "signal " + signalName(e.Status.Signal())
	}
	return fmt.Sprintf("exit status %d", e.Status.ExitStatus())
}

// reasonOf is a loss in the library's words, without the name and token in
// front of them.
func reasonOf(err error) string {
	if err == nil || !errors.Is(err, holdfast.ErrLost) {
		return "it was given back"
	}
	text := err.Error()
	if lost := (*holdfast.LostError)(nil); errors.As(err, &lost) {
		text = lost.Cause()
	}
	return cli.Escape(driver.Redact(text))
}

// survivors names processes: pid 4711 (sudo) and pid 4712 (sleep).
func survivors(list []guard.Survivor) string {
	var all []string
	for i, p := range list {
		if i == 10 {
			all = append(all, strconv.Itoa(len(list)-i)+" more")
			break
		}
		switch about := cli.Escape(p.Name); {
		case p.PID == 0:
			all = append(all, "a process that /proc does not show")
		case p.Name == "":
			all = append(all, fmt.Sprintf("pid %d (which /proc does not show)", p.PID))
		case p.State == "D":
			all = append(all, fmt.Sprintf("pid %d (%s, which hangs in the kernel)", p.PID, about))
		case p.State == "Z":
			all = append(all, fmt.Sprintf("pid %d (%s, which a debugger holds)", p.PID, about))
		default:
			all = append(all, fmt.Sprintf("pid %d (%s)", p.PID, about))
		}
	}
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	}
	return all[0]
}

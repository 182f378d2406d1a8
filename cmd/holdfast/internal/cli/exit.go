package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// Exit statuses; 0 to 255 is also what `run` hands on from its command.
const (
	ExitNo       = 1  // the answer is no: held, not there, not as it should be
	exitUsage    = 64 // EX_USAGE
	ExitStore    = 69 // EX_UNAVAILABLE: the store cannot be reached or used
	ExitFault    = 70 // EX_SOFTWARE: a fault of ours
	ExitLost     = 75 // EX_TEMPFAIL: the lock was lost while running
	ExitNotRun   = 126
	ExitNotFound = 127
	exitSignal   = 128 // and the signal's number
)

// A Failure ends the command with a status. An empty text has been said
// already, or need not be.
type Failure struct {
	Status int
	Text   string
}

func (f *Failure) Error() string { return f.Text }

// Fail is a Failure with this status, and a text as of fmt.Sprintf.
func Fail(status int, format string, args ...any) error {
	return &Failure{status, fmt.Sprintf(format, args...)}
}

// Usage is the failure of a command that was called wrongly.
func Usage(format string, args ...any) error { return Fail(exitUsage, format, args...) }

// Killed is the end by a signal: of our own while waiting, or of the command.
type Killed struct {
	Signal syscall.Signal
	Really bool // end of the same signal, so that a shell's loop ends too
}

func (k *Killed) Error() string { return k.Signal.String() }

// StatusOf says what is to be said of the end and returns its status. What is
// no failure of ours comes from the parsing of arguments.
func StatusOf(err error) int {
	var f *Failure
	var k *Killed
	switch {
	case err == nil:
		return 0
	case errors.As(err, &k):
		if k.Really {
			dieOf(k.Signal)
		}
		return exitSignal + int(k.Signal)
	case errors.As(err, &f):
	default:
		f = &Failure{exitUsage, strings.SplitN(err.Error(), "\n", 2)[0] + "; see: holdfast --help"}
	}
	if f.Text != "" {
		Say("%s", f.Text)
	}
	return f.Status
}

// Unusable is the failure of a command whose store did not do its part.
func (t Target) Unusable(err error, also string) error {
	var f *Failure
	if err = AsUsage(err); errors.As(err, &f) {
		return err
	}
	if errors.Is(err, holdfast.ErrClosed) {
		return Fail(ExitFault, "%v", err)
	}
	text := t.Cause(err)
	do := "use"
	if t.Kind.ReachOf(err) == driver.Unreachable {
		do = "reach"
	}
	if statements := t.Grants(err); statements != nil {
		return Fail(ExitStore, "cannot %s the store %s: %s%s. Its owner grants it:\n  %s", do, t, text, also, strings.Join(statements, "\n  "))
	}
	var schema *driver.SchemaError
	var danger *driver.DangerError
	if errors.As(err, &schema) || errors.As(err, &danger) { // it says what to do
		return Fail(ExitStore, "cannot %s the store %s: %s%s", do, t, text, also)
	}
	return Fail(ExitStore, "cannot %s the store %s: %s%s. Check --store or HOLDFAST_STORE, then: %s", do, t, text, also, Hint("doctor"))
}

// Grants are the statements that would give a user the rights that an error says are missing;
// nil: it is another error, or the store has no such statements.
func (t Target) Grants(err error) (statements []string) {
	var rights *driver.RightsError
	if !errors.As(err, &rights) || t.Kind.Grants == nil {
		return nil
	}
	user, _ := url.PathUnescape(t.User)
	statements, err = t.Kind.Grants(t.Location, cmp.Or(rights.Role, user, "USER"), t.ReadOnly)
	if err != nil {
		return nil
	}
	for i, s := range statements {
		statements[i] = Escape(s) + ";"
	}
	return statements
}

// Say writes a message of ours.
func Say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "holdfast: "+format+"\n", args...)
}

// CannotWrite is the failure of a command that cannot say what it has to say.
func CannotWrite(err error) error { return Fail(ExitFault, "cannot write to standard output: %v", err) }

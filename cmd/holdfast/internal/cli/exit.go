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

// Exit statuses. `run` also passes on those of its command, 0 to 255.
const (
	ExitNo       = 1  // the answer is no: held, not there, not as it should be
	exitUsage    = 64 // EX_USAGE
	ExitStore    = 69 // EX_UNAVAILABLE: the store cannot be reached or used
	ExitFault    = 70 // EX_SOFTWARE: a fault of ours
	ExitLost     = 75 // EX_TEMPFAIL: the lock was lost while running
	ExitNotRun   = 126
	ExitNotFound = 127
	exitSignal   = 128 // plus the signal's number
)

// A Failure ends the command with a status. Its text is empty if nothing is left to say.
type Failure struct {
	Status int
	Text   string
}

func (f *Failure) Error() string { return f.Text }

// Fail returns a Failure with this status and a text formatted by fmt.Sprintf.
func Fail(status int, format string, args ...any) error {
	return &Failure{status, fmt.Sprintf(format, args...)}
}

// Usage is the failure of a command that was called wrongly.
func Usage(format string, args ...any) error { return Fail(exitUsage, format, args...) }

// Killed is an end by a signal: our own while waiting, or the command's.
type Killed struct {
	Signal syscall.Signal
	Really bool // die of the same signal, so that a shell's loop ends too
}

func (k *Killed) Error() string { return k.Signal.String() }

// StatusOf prints the text of an error and returns its exit status. An error that is neither
// a Failure nor Killed comes from the parsing of arguments.
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

// Unusable is the failure of a command whose store could not be used.
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

// Grants returns the statements that would give a user the rights that err says are missing.
// It returns nil if err is another error, or if the store has no such statements.
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

// CannotWrite is the failure of a command that cannot write its output.
func CannotWrite(err error) error { return Fail(ExitFault, "cannot write to standard output: %v", err) }

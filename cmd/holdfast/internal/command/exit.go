package command

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
	exitNo       = 1  // the answer is no: held, not there, not as it should be
	exitUsage    = 64 // EX_USAGE
	exitStore    = 69 // EX_UNAVAILABLE: the store cannot be reached or used
	exitFault    = 70 // EX_SOFTWARE: a fault of ours
	exitLost     = 75 // EX_TEMPFAIL: the lock was lost while running
	exitNotRun   = 126
	exitNotFound = 127
	exitSignal   = 128 // and the signal's number
)

// A failure ends the command with a status. An empty text has been said
// already, or need not be.
type failure struct {
	status int
	text   string
}

func (f *failure) Error() string { return f.text }

func fail(status int, format string, args ...any) error {
	return &failure{status, fmt.Sprintf(format, args...)}
}

func usage(format string, args ...any) error { return fail(exitUsage, format, args...) }

// killed is the end by a signal: of our own while waiting, or of the command.
type killed struct {
	sig    syscall.Signal
	really bool // end of the same signal, so that a shell's loop ends too
}

func (k *killed) Error() string { return k.sig.String() }

// statusOf says what is to be said of the end and returns its status. What is
// no failure of ours comes from the parsing of arguments.
func statusOf(err error) int {
	var f *failure
	var k *killed
	switch {
	case err == nil:
		return 0
	case errors.As(err, &k):
		if k.really {
			dieOf(k.sig)
		}
		return exitSignal + int(k.sig)
	case errors.As(err, &f):
	default:
		f = &failure{exitUsage, strings.SplitN(err.Error(), "\n", 2)[0] + "; see: holdfast --help"}
	}
	if f.text != "" {
		say("%s", f.text)
	}
	return f.status
}

// unusable is the failure of a command whose store did not do its part.
func (t target) unusable(err error, also string) error {
	var f *failure
	if err = asUsage(err); errors.As(err, &f) {
		return err
	}
	if errors.Is(err, holdfast.ErrClosed) {
		return fail(exitFault, "%v", err)
	}
	text := t.cause(err)
	do := "use"
	if t.Kind.ReachOf(err) == driver.Unreachable {
		do = "reach"
	}
	if statements := t.grants(err); statements != nil {
		return fail(exitStore, "cannot %s the store %s: %s%s. Its owner grants it:\n  %s", do, t, text, also, strings.Join(statements, "\n  "))
	}
	var schema *driver.SchemaError
	var danger *driver.DangerError
	if errors.As(err, &schema) || errors.As(err, &danger) { // it says what to do
		return fail(exitStore, "cannot %s the store %s: %s%s", do, t, text, also)
	}
	return fail(exitStore, "cannot %s the store %s: %s%s. Check --store or HOLDFAST_STORE, then: %s", do, t, text, also, hint("doctor"))
}

// grants are the statements that would give a user the rights that an error says are missing;
// nil: it is another error, or the store has no such statements.
func (t target) grants(err error) (statements []string) {
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
		statements[i] = escape(s) + ";"
	}
	return statements
}

// say writes a message of ours.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "holdfast: "+format+"\n", args...)
}

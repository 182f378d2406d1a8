package claims

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// ErrExpired: so much time passed between Write and Check that the claim was too
// old; nothing was held. Callers may branch on it, as on holdfast.ErrHeld, ErrLost,
// ErrReleased and ErrClosed.
var ErrExpired = errors.New("the claim was too old when it was to be checked")

// errDeadlock: transactions of this process wait for one another.
var errDeadlock = errors.New("transactions of this process would wait for each other for ever")

// A HeldError says who was in the way. errors.Is(err, holdfast.ErrHeld) holds
// for it.
type HeldError struct {
	Rid   string        // the end of the claim's column; "" if it is of this process, see Local
	Age   time.Duration // of that claim, by our clock against the timestamp of another
	Local bool          // another transaction of this process is in the way
	Err   error         // nil, or what ended the wait
}

func (e *HeldError) Is(target error) bool { return target == holdfast.ErrHeld }
func (e *HeldError) Unwrap() error        { return e.Err }

func (e *HeldError) Error() string {
	s := ""
	if e.Err != nil {
		s = e.Err.Error() + ": "
	}
	if e.Local {
		return s + "held by this process (locks are not reentrant)"
	}
	return fmt.Sprintf("%sheld by %s, who has claimed it for %v", s, shownRid(e.Rid), e.Age.Round(time.Millisecond))
}

// A SlowError: no write was quick enough to count. A longer Wait helps, if it is
// the same everywhere.
type SlowError struct {
	Took  time.Duration // the quickest of them
	Wait  time.Duration
	Tries int
}

func (e *SlowError) Error() string {
	return fmt.Sprintf("the store is too slow: of %d writes the quickest took %v, and only those of at most %v count; "+
		"give all who lock in this table a longer Wait (JanusGraph: storage.lock.wait-time)", e.Tries, e.Took.Round(time.Microsecond), e.Wait)
}

// A SkewError: a claim from the future shows that two clocks are further apart
// than Skew allows. Nothing can be locked there safely, until that claim is
// removed, by hand if its owner is gone, or until its time has come.
type SkewError struct {
	Rid  string        // of the locker that is ahead of us
	By   time.Duration // at least
	Skew time.Duration
}

func (e *SkewError) Error() string {
	return fmt.Sprintf("the clock of %s is at least %v ahead of ours, and only %v is allowed: one of the two is wrong", shownRid(e.Rid), e.By.Round(time.Millisecond), e.Skew)
}

// A SettingsError: others lock in the same table with other settings.
type SettingsError struct {
	Ours, Theirs string
	Name         string        // of one of them
	For          time.Duration // until they count as gone if they are not heard of again
}

func (e *SettingsError) Error() string {
	return fmt.Sprintf("settings differ: ours are %s, and those of %s are %s; unless it is closed, or heard of again, they are void in %v",
		e.Ours, e.Name, e.Theirs, e.For.Round(time.Second))
}

// A MismatchError: a value is not what was expected when the lock was asked for.
type MismatchError struct {
	Key, Column []byte
	Want, Got   []byte // nil: absent
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("key %q, column %q: expected %s, found %s", e.Key, e.Column, shownValue(e.Want), shownValue(e.Got))
}

func shownValue(v []byte) string {
	switch {
	case v == nil:
		return "no value"
	case len(v) > 100:
		return fmt.Sprintf("%q… (%d bytes)", v[:100], len(v))
	}
	return fmt.Sprintf("%q", v)
}

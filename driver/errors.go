package driver

import (
	"errors"
	"fmt"
)

// A BusyError is the error of a write whose outcome a store cannot tell because too many
// others write the same key. It is ambiguous, as every error of a write is, but no sign of
// a store that is gone: a Client goes on, more slowly.
type BusyError struct {
	Err error // what the database said; never nil
}

func (e *BusyError) Error() string { return "too many write at once: " + e.Err.Error() }
func (e *BusyError) Unwrap() error { return e.Err }

// Busy reports whether an error is, or wraps, a BusyError.
func Busy(err error) bool {
	if err == nil {
		return false
	}
	var busy *BusyError // is allocated
	return errors.As(err, &busy)
}

// ErrClosed is, or is wrapped by, the error of all calls to a store that its user has closed. The
// store does not open again, so a Client stops waiting for it.
var ErrClosed = errors.New("the store is closed")

// A DangerError says why a store cannot be opened: its database is configured in a way that
// puts locks at risk. A caller who accepts that lists the Danger in the store's Options.Allow.
type DangerError struct {
	Danger string // "async-commit"
	What   string // the setting, and what it leads to
	Cure   string // what to do instead of accepting it
}

func (e *DangerError) Error() string {
	return fmt.Sprintf("%s. %s, or accept it: allow %q", e.What, e.Cure, e.Danger)
}

// A SchemaError says that what a store needs in its database is missing, or differs from
// what this version of Holdfast publishes.
type SchemaError struct {
	What string // what is missing or differs
	Cure string // how to mend it
	Err  error  // nil, or what the database said
}

// NewSchemaError formats What, and sets Err to the error that has the verb %w, if any.
func NewSchemaError(cure, format string, args ...any) *SchemaError {
	what := fmt.Errorf(format, args...)
	return &SchemaError{What: what.Error(), Cure: cure, Err: errors.Unwrap(what)}
}

func (e *SchemaError) Error() string { return e.What + "; " + e.Cure }
func (e *SchemaError) Unwrap() error { return e.Err }

// A RightsError says that a user of the database may not do what a store needs. The owner of
// the tables gives the rights that `holdfast schema grants` prints.
type RightsError struct {
	What string // "may not write the tables of \"holdfast_\""
	Role string // the user who may not, as the database calls them; "": this user
	Err  error  // nil, or what the database said
}

func (e *RightsError) Error() string {
	who := "this user"
	if e.Role != "" {
		who = fmt.Sprintf("%q", e.Role)
	}
	s := who + " " + e.What + ": grant what holdfast schema grants prints"
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *RightsError) Unwrap() error { return e.Err }

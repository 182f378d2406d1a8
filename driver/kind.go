package driver

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/holdfast-lock/holdfast/internal/printable"
	"github.com/holdfast-lock/holdfast/internal/reach"
)

// A Kind is all that a program has to know about a kind of store to use one by its URL. Each
// package of a store has one, named Kind; package open takes a list of them. Nothing registers
// itself.
type Kind struct {
	Name    string   // of its package; its errors begin with it
	Schemes []string // of its URLs; the first is the one that is shown
	Form    string   // of its URLs, for a list of all kinds: sqlite:PATH
	Example string   // of a URL

	Server    bool     // its URL has a host; query settings that are not ours are the driver's
	NeedsPath bool     // it is a file or directory
	Settings  []string // the query settings that are ours: allow, schema, prefix, socket
	Secrets   []string // environment variables whose values must never be shown
	// SendsPassword is set if the client sends the password itself. It is the prefix of the
	// variables _USER, _PASSWORD and _PASSWORD_FILE, see Location.Login.
	SendsPassword string

	// Open opens a store. close gives back all that Open made; it does not wait for a server
	// that does not answer, but a directory on a mount that hangs keeps it.
	Open func(ctx context.Context, at *Location) (s Store, close func() error, err error)

	// These are nil for a store without tables. Schema returns the statements that make them,
	// Migrate executes those that are missing, and Verify says how the tables differ from what
	// this version needs.
	Schema          func(at *Location) (string, error)
	Migrate, Verify func(ctx context.Context, at *Location) error
	// Grants returns the statements, without semicolons, that let a role use the tables: take
	// locks, fence and sweep, or, with readOnly, only read. They may be repeated. Grants connects
	// to nothing. It is nil if the store has no roles, or none with rights on tables.
	Grants func(at *Location, role string, readOnly bool) ([]string, error)
	// FenceSQL returns the statement by which a program in any language fences its transaction, with
	// :name and :token in it; nil: there is none.
	FenceSQL func(at *Location) string

	// Reach classifies an error of this kind of store; nil: nothing beyond ReachOf.
	Reach func(err error) Reach
	// Explain returns what an error adds for a reader who knows the URL; nil: its text.
	Explain func(err error) string
}

// Reach is how far a call got.
type Reach int

const (
	Unknown     Reach = iota // the error does not say
	Unreachable              // not to the server
	NotLetIn                 // to the server, which refused access
	Answered                 // to the database, which reported the error
)

// ReachOf classifies an error with k.Reach, or else by its type (an error of the network or of a
// context).
func (k *Kind) ReachOf(err error) Reach {
	if k.Reach != nil {
		if r := k.Reach(err); r != Unknown {
			return r
		}
	}
	var denied *reach.Denial
	var network net.Error
	switch {
	case errors.As(err, &denied):
		return NotLetIn
	case errors.As(err, &network), errors.Is(err, context.DeadlineExceeded), errors.Is(err, sqldriver.ErrBadConn):
		return Unreachable
	}
	return Unknown
}

// Cause is what an error of a store adds for a reader who knows its URL: it leaves out the name
// of the package, and says how to accept a danger in the URL.
func (k *Kind) Cause(err error) string {
	var danger *DangerError
	switch {
	case errors.As(err, &danger):
		return fmt.Sprintf("%s. %s, or accept it with ?allow=%s", danger.What, danger.Cure, danger.Danger)
	case k.Explain != nil:
		return k.Explain(err)
	}
	return strings.TrimPrefix(err.Error(), k.Name+": ")
}

// A URLError is a URL of a store that cannot be understood or used as it is. It does not repeat
// what could be a password.
type URLError struct{ Text string }

func (e *URLError) Error() string { return e.Text }

// BadURL is a URLError.
func BadURL(format string, args ...any) error { return &URLError{fmt.Sprintf(format, args...)} }

// BadSettings is the URLError of a Location whose settings its driver refuses.
func (at *Location) BadSettings(err error) error {
	return BadURL("the settings of %s cannot be used: %s", at, at.Redact(err.Error()))
}

// UnknownSetting is the URLError of a setting in the query that a kind does not have.
func (at *Location) UnknownSetting(key, those string) error {
	return BadURL("%s: unknown setting %s in the URL: %s", at.Scheme, printable.Quote(key), those)
}

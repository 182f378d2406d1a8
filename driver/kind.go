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

// A Kind is all that a program has to know of a kind of store to use one by its URL. Each
// package of a store has one, named Kind; package open takes a list of them. Nothing registers
// itself.
type Kind struct {
	Name    string   // of its package, with which its errors begin
	Schemes []string // of its URLs; the first is how they are shown
	Form    string   // of its URLs, in a list of all: sqlite:PATH
	Example string   // of one

	Server    bool     // it has a URL with a host; what is not ours in its query is the driver's
	NeedsPath bool     // it is a file or directory
	Settings  []string // what of the query is ours: allow, schema, prefix, socket
	Secrets   []string // variables of the environment whose values are never to be shown
	// SendsPassword is set if the client sends the password as it is: the beginning of the
	// names of the variables _USER, _PASSWORD and _PASSWORD_FILE, see Location.Login.
	SendsPassword string

	// Open opens a store. close gives back all that Open made; it does not wait for a server
	// that does not answer.
	Open func(ctx context.Context, at *Location) (s Store, close func() error, err error)

	// Of a store that has tables; else nil. Schema is the statements that make them, Migrate
	// executes those that are missing, and Verify says how the tables differ from what this
	// version needs.
	Schema          func(at *Location) (string, error)
	Migrate, Verify func(ctx context.Context, at *Location) error
	// Grants is the statements, without a semicolon, that let a role use the tables: take locks,
	// fence and sweep, or with readOnly look at all of it and no more. They may be repeated. It
	// connects to nothing. nil: the store has no roles, or not on tables.
	Grants func(at *Location, role string, readOnly bool) ([]string, error)

	// Reach classifies an error of this kind of store; nil: nothing beyond ReachOf.
	Reach func(err error) Reach
	// Explain says what is new in an error to one who knows the URL; nil: its text.
	Explain func(err error) string
}

// Reach is how far a call has come.
type Reach int

const (
	Unknown     Reach = iota // the error does not say
	Unreachable              // not to the server
	NotLetIn                 // to the server, which refused access
	Answered                 // to the database, which reported the error
)

// ReachOf classifies an error: by Reach, or else by the types of errors of the network and of
// contexts.
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

// Cause is what is new in an error of a store to one who knows its URL: without the name of
// the package, and with the way out of a danger as a URL accepts it.
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

// Package open turns URLs into stores:
//
//	store, close, err := open.Open(ctx, os.Getenv("HOLDFAST_STORE"), postgres.Kind, sqlite.Kind)
//
// It knows the kinds of stores that it is given, and no others, so a program only has the clients
// of the databases that it names.
package open

import (
	"context"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/printable"
)

// Scheme is the scheme of a store's URL, and what follows the colon. ok: url has the form of one.
func Scheme(url string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(url, ":")
	odd := func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789+.-", r) }
	return scheme, rest, ok && scheme != "" && scheme[0] >= 'a' && !strings.ContainsFunc(scheme, odd)
}

// Parse parses the URL of a store of one of the kinds. An error is a *driver.URLError,
// and never repeats what could be a password.
func Parse(url string, kinds ...*driver.Kind) (*driver.Location, error) {
	scheme, rest, ok := Scheme(url)
	if !ok {
		return nil, driver.BadURL("a store is written SCHEME:…: one of %s", Forms(kinds...))
	}
	k := Find(scheme, kinds...)
	if k == nil {
		return nil, driver.BadURL("unknown store %s: one of %s", printable.Quote(scheme), Forms(kinds...))
	}
	return k.Parse(scheme, rest)
}

// Find is the kind with a scheme; nil: there is none.
func Find(scheme string, kinds ...*driver.Kind) *driver.Kind {
	for _, k := range kinds {
		if slices.Contains(k.Schemes, scheme) {
			return k
		}
	}
	return nil
}

// Forms are the URLs that some kinds have, for a message.
func Forms(kinds ...*driver.Kind) string {
	var forms []string
	for _, k := range kinds {
		forms = append(forms, k.Form)
	}
	return strings.Join(forms, ", ")
}

// Open opens the store of a URL. close closes it and what Open made for it. An error has no
// secret in it.
func Open(ctx context.Context, url string, kinds ...*driver.Kind) (s driver.Store, close func() error, err error) {
	at, err := Parse(url, kinds...)
	if err != nil {
		return nil, nil, err
	}
	if s, close, err = at.Kind.Open(ctx, at); err != nil {
		return nil, nil, &Error{At: at, Err: err}
	}
	return s, close, nil
}

// An Error says why a store could not be opened. Its text has no secrets; those of the errors
// behind it may.
type Error struct {
	At  *driver.Location
	Err error
}

func (e *Error) Error() string {
	return "cannot use the store " + e.At.String() + ": " + e.At.Redact(e.At.Kind.Cause(e.Err))
}

func (e *Error) Unwrap() error { return e.Err }

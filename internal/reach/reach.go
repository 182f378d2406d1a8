// Package reach has what the Kinds of servers share: time limits that drivers lack, and the
// classification of their errors.
package reach

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

const (
	// Patience is how long a server may take to let us in, unless its URL says
	// otherwise.
	Patience = 10 * time.Second
	// MaxConns is how many connections a program needs at most: for locks,
	// heartbeats and notifications.
	MaxConns = 4
)

// InTime calls f with a context that ends after limit.
func InTime(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &Timeout{limit, err}
	}
	return err
}

// A Timeout is the error of a server that did not answer within Limit. The server may have been
// reached.
type Timeout struct {
	Limit time.Duration
	Err   error
}

func (s *Timeout) Error() string { return "no answer within " + record.Short(s.Limit) }
func (s *Timeout) Unwrap() error { return s.Err }

// Parting closes politely, but does not wait for a server that does not answer:
// the program is about to end, and its connections with it.
func Parting(closers ...func() error) func() error {
	return func() error {
		done := make(chan error, 1)
		go func() {
			var errs []error
			for _, c := range closers {
				errs = append(errs, c())
			}
			done <- errors.Join(errs...)
		}()
		select {
		case err := <-done:
			return err
		case <-time.After(200 * time.Millisecond):
			return nil
		}
	}
}

// A Denial is a driver's error after a server was reached.
type Denial struct{ Err error }

func (d *Denial) Error() string { return strings.TrimPrefix(d.Err.Error(), "gocql: ") }
func (d *Denial) Unwrap() error { return d.Err }

// WhyNot classifies the error of a driver that has no error types. It dials the hosts: if one
// answers, it returns err as a Denial, else the network error.
func WhyNot(ctx context.Context, hosts []string, err error) error {
	var way error
	for _, host := range hosts {
		dialer := net.Dialer{Timeout: time.Second}
		conn, dialErr := dialer.DialContext(ctx, "tcp", host)
		if dialErr == nil {
			conn.Close()
			return &Denial{err}
		}
		way = dialErr
	}
	return way
}

package cassandra

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// ErrNotApplied is the error of Fence if the row does not exist, or has no fence
// yet, or a condition of the caller's own does not hold.
var ErrNotApplied = errors.New("not applied")

// Fence carries out an update of a row of the caller's own, unless a later holder
// has written to that row with Fence: then it fails with ErrLost. The row keeps the
// highest token that has written to it in a bigint column called fence, which has
// to be 0 before the first; so insert rows with fence 0, if not exists.
//
//	err := cassandra.Fence(ctx, session, lock,
//		`update accounts set fence = ?, balance = ? where id = ? if fence <= ?`, 90, "ana")
//
// The update has to begin as this one does, by setting fence, and to end with the
// condition on it, if fence <= ?, or, after conditions of its own, and fence <= ?.
// An update that does not, or that has a comment, is refused and not sent. Fence puts
// the lock's token in these two places; args are for the others. Programs in any
// language do the same with such a statement, and look at [applied].
//
// What it promises: once a holder has written to a row, no earlier holder's update
// of that row is applied. What it does not: an earlier holder's update that comes
// before the first of a later one is applied, whoever holds the lock by then; and
// rows know nothing of each other. So a holder that relies on what it reads first
// fences each row that it will read or write, with an update that sets nothing
// else, and only then reads, at SERIAL. All writes to such rows have to be lightweight
// transactions, and none may delete them or have a TTL. If fence is a static
// column, it is one fence for all rows of a partition.
//
// An error other than ErrLost and ErrNotApplied is ambiguous; so is ErrLost, if a
// later holder came in between. If there was no answer, the update may still be
// carried out at any later time, until somebody with a higher token writes to the row,
// and over later updates of this holder, whose token is the same. So it is not sent
// again then; a caller that has to know takes the lock anew and writes with the new
// token, which shuts out late updates. After an answer that reports a timeout the update
// is sent again, so it must do no harm twice: one that sets values does none, one that
// appends to a list does.
//
// The lock has to be exclusive. It may be kept in any store; if that is a Store of
// this package, its LocalDC is asked, at SERIAL or LOCAL_SERIAL as for locks.
func Fence(ctx context.Context, session *gocql.Session, lock *holdfast.Lock, update string, args ...any) error {
	if lock.Slots() != 1 {
		return fmt.Errorf("fence %q: the lock is shared, or one of several slots; its token is not above all others", lock.Name())
	}
	if err := lock.Err(); err != nil {
		return lock.FenceFailed(ctx, fmt.Errorf("fence %q: %w", lock.Name(), err))
	}
	return lock.FenceFailed(ctx, fence(ctx, callsFor(session, lock.Store()), lock.Name(), lock.Token(), update, args))
}

// callsFor are those of the store that has the lock, or similar ones if its session is another.
func callsFor(session *gocql.Session, store driver.Store) *calls {
	s, ok := driver.Find[*Store](store)
	if ok && s.session == session {
		return &s.calls
	}
	c := new(calls)
	if ok {
		c.init(session, s.opts.LocalDC, s.opts.localSerial())
	} else {
		c.init(session, "", false)
	}
	return c
}

// The two ends of an update that is fenced.
var (
	fenceSet = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?is)^\s*update\s+[^\s]+\s+set\s+fence\s*=\s*\?\s*(,|where\s)`)
	})
	fenceIf = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?is)\sif\s+(\S.*\sand\s+)?fence\s*<=\s*\?\s*;?\s*$`)
	})
	cqlQuoted = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?s)'[^']*'|"[^"]*"|\$\$.*?\$\$|--|//|/\*|\$\$|['"]`)
	})
)

// fenced tells whether an update is fenced, and whether it also has conditions of its
// own. What is in strings does not count, and an update with comments is not fenced:
// the condition may be in them.
func fenced(update string) (joint, ok bool) {
	ok = true
	update = cqlQuoted().ReplaceAllStringFunc(update, func(s string) string {
		if s[0] == '-' || s[0] == '/' || len(s) == 1 || s == "$$" {
			ok = false
		}
		return s[:1] + s[len(s)-1:]
	})
	end := fenceIf().FindStringSubmatch(update)
	if !ok || !fenceSet().MatchString(update) || end == nil {
		return false, false
	}
	return end[1] != "", true
}

func fence(ctx context.Context, c *calls, name string, token int64, update string, args []any) error {
	joint, ok := fenced(update)
	if !ok {
		return fmt.Errorf("fence %q: the update has to begin with: update TABLE set fence = ?, and to end with: if fence <= ?, without comments", name)
	}
	all := append(append([]any{token}, args...), token)
	var applied bool
	var found map[string]any
	// A coordinator that has not answered may still be at it: its update would pass the
	// condition after later ones of this holder, whose token is the same.
	unknown, err := c.sendWhile(ctx, answered, []byte(name), update, all, func(ctx context.Context, q *gocql.Query) (err error) {
		found = make(map[string]any)
		applied, err = q.MapScanCASContext(ctx, found)
		return err
	})
	if err != nil {
		if !refused(err) || unknown {
			return fmt.Errorf("fence %q: %w: %w", name, errUnknown, err)
		}
		return fmt.Errorf("fence %q: %w", name, err)
	}
	seen, there := found["fence"].(int64)
	switch {
	case applied:
		return nil
	case there && seen > token:
		return fmt.Errorf("fence %q: the row was written with token %d, ours is %d: %w", name, seen, token, holdfast.ErrLost)
	case unknown:
		return fmt.Errorf("fence %q: %w: an earlier try may have been, and a condition does not hold now", name, errUnknown)
	case !joint:
		return fmt.Errorf("fence %q: %w: the row is not there, or its fence is null: insert it with fence 0", name, ErrNotApplied)
	}
	return fmt.Errorf("fence %q: %w: another condition does not hold, or the row has no fence", name, ErrNotApplied)
}

package holdfast

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/engine"
)

// DefaultTTL is how long a session may be silent where neither the store's
// setting nor Options.TTL says otherwise; MinTTL and MaxTTL are the least and
// the most that are accepted.
const (
	DefaultTTL = record.DefaultTTL
	MinTTL     = record.MinTTL
	MaxTTL     = record.MaxTTL
	maxField   = 255     // bytes of one field of Owner
	maxSlots   = 1 << 30 // every reader of a record accepts it
)

// Margin is the part of a TTL by which a holder stops trusting its lease
// before others may declare it dead. It pays for clock rates that differ by up to 5 %.
func Margin(ttl time.Duration) time.Duration { return record.Margin(ttl) }

// Options are the settings of a Client. The zero value of each field is its
// default.
type Options struct {
	// TTL is how long this client may be silent before others may take its
	// locks. 0: the store's setting (15s unless changed), also when it changes
	// later. At least 1s. Heartbeats are sent every third of it.
	TTL time.Duration
	// Grace keeps the names of this client shut for that much longer after its
	// death or a break, for effects that no fence can reach. 0: none.
	Grace time.Duration
	// Owner is what others see. Empty fields are filled in from the process, except Name and
	// Labels. Each text has at most 255 bytes. There are at most 16 labels, of 4 KiB together.
	Owner Owner
	// RuntimeDir is where processes of one host prove each other's death.
	// "": $XDG_RUNTIME_DIR/holdfast if that is this user's, else
	// /run/user/UID/holdfast where there is a /run/user/UID, else a directory of
	// this user in os.TempDir() or, where that is on an overlay, in /dev/shm.
	// os.DevNull: none, then only the TTL decides.
	RuntimeDir string
	// Logger gets what no return value can tell: late heartbeats, losses,
	// suspicions, deaths. nil: silence.
	Logger *slog.Logger
	// Trace is for metrics and spans. nil: none.
	Trace *Trace
	// ReadOnly makes a client that only looks: whatever would write to the store is
	// refused at once with ErrReadOnly. It only needs the right to read the database.
	ReadOnly bool
}

func (o *Options) check() error {
	switch {
	case o.TTL < 0 || o.TTL > 0 && o.TTL < MinTTL:
		return fmt.Errorf("TTL %v is below %v", o.TTL, MinTTL)
	case o.TTL > MaxTTL:
		return fmt.Errorf("TTL %v is above %v", o.TTL, MaxTTL)
	case o.Grace < 0:
		return fmt.Errorf("grace %v is negative", o.Grace)
	case o.Grace > MaxTTL:
		return fmt.Errorf("grace %v is above %v", o.Grace, MaxTTL)
	}
	for _, field := range []struct{ name, text string }{{"Name", o.Owner.Name}, {"Host", o.Owner.Host}, {"User", o.Owner.User},
		{"Program", o.Owner.Program}, {"Address", o.Owner.Address}, {"Device", o.Owner.Device}} {
		if len(field.text) > maxField {
			return fmt.Errorf("field %s of Owner has %d bytes, at most %d", field.name, len(field.text), maxField)
		}
	}
	size := 0
	for k, v := range o.Owner.Labels {
		size += len(k) + len(v)
	}
	if size > 4096 || len(o.Owner.Labels) > 16 {
		return fmt.Errorf("Owner.Labels: %d labels of %d bytes, at most 16 of 4096 together", len(o.Owner.Labels), size)
	}
	return nil
}

// An Option changes one request. The plain call stays Acquire(ctx, name).
type Option func(*request)

// A request is what options change.
type request = engine.Request

var errSharedSlots = errors.New("Shared and Slots exclude each other: Shared is any number")

// Shared asks for a lock that any number of shared holders have together.
func Shared() Option {
	return func(r *request) {
		if r.Counted {
			r.Fail(errSharedSlots)
		}
		r.Slots = 0
	}
}

// Slots asks for one of n slots: at most n holders at once. If holders ask for
// different n, the smallest counts. Slots(1) is exclusive, the default. n is at most 1<<30.
func Slots(n int) Option {
	return func(r *request) {
		if r.Slots == 0 {
			r.Fail(errSharedSlots)
		}
		r.Slots, r.Counted = n, true
		if n < 1 || n > maxSlots {
			r.Fail(fmt.Errorf("Slots(%d) is not between 1 and %d", n, maxSlots))
		}
	}
}

// MaxWait gives up after d, with ErrHeld or the store's error; 0 asks once and does not wait. In Do
// and Election, where ctx also bounds the work, this bounds the wait alone.
func MaxWait(d time.Duration) Option {
	return func(r *request) {
		r.MaxWait, r.Bounded = d, true
		if d < 0 {
			r.Fail(fmt.Errorf("MaxWait(%v) is negative", d))
		}
	}
}

// Reason is shown to those who wait, up to 200 bytes.
func Reason(text string) Option {
	return func(r *request) {
		r.Reason = strings.ToValidUTF8(text, "\uFFFD")
		if len(text) > record.MaxReason {
			r.Fail(fmt.Errorf("Reason has %d bytes, at most %d", len(text), record.MaxReason))
		}
	}
}

// Labels are shown with the claim: which order, which build, which ticket. They take up to
// 1 KiB as JSON. Several Labels of one call add up. See Lock.SetLabels.
func Labels(labels map[string]string) Option {
	return func(r *request) {
		all := maps.Clone(r.Labels)
		if all == nil {
			all = make(record.Labels, len(labels))
		}
		maps.Copy(all, labels)
		var err error
		if r.Labels, err = base.CheckLabels(all); err != nil {
			r.Fail(err)
		}
	}
}

// MinHold keeps the name shut for at least d after the grant, even if the lock is released earlier
// or its process dies. So with TryAcquire a job that several hosts start by their own clocks, which
// differ by seconds, runs once; a host that waits runs it again after d. After d the lock is like
// any other: it lasts until Release. It has a session, and so a heartbeat, of its own. If its
// process dies in the last TTL of d (or the last half of d, if that is shorter) or later, the name
// is free a TTL after its last heartbeat. Break opens the name early. d is at least 1s. AcquireAll,
// AcquireFor and Election refuse MinHold.
func MinHold(d time.Duration) Option {
	return func(r *request) {
		r.Least = d
		if d < record.MinTTL || d > record.MaxTTL {
			r.Fail(fmt.Errorf("MinHold(%v) is not between %v and %v", d, record.MinTTL, record.MaxTTL))
		}
	}
}

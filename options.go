package holdfast

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
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

var errSharedSlots = errors.New("Shared and Slots exclude each other: Shared is any number")

// Shared asks for a lock that any number of shared holders have together.
func Shared() Option {
	return func(r *request) {
		if r.counted {
			r.fail(errSharedSlots)
		}
		r.slots = 0
	}
}

// Slots asks for one of n slots: at most n holders at once. If holders ask for
// different n, the smallest counts. Slots(1) is exclusive, the default. n is at most 1<<30.
func Slots(n int) Option {
	return func(r *request) {
		if r.slots == 0 {
			r.fail(errSharedSlots)
		}
		r.slots, r.counted = n, true
		if n < 1 || n > maxSlots {
			r.fail(fmt.Errorf("Slots(%d) is not between 1 and %d", n, maxSlots))
		}
	}
}

// MaxWait gives up after d, with ErrHeld or the store's error; 0 asks once and does not wait. In Do
// and Election, where ctx also bounds the work, this bounds the wait alone.
func MaxWait(d time.Duration) Option {
	return func(r *request) {
		r.maxWait, r.bounded = d, true
		if d < 0 {
			r.fail(fmt.Errorf("MaxWait(%v) is negative", d))
		}
	}
}

// Reason is shown to those who wait, up to 200 bytes.
func Reason(text string) Option {
	return func(r *request) {
		r.reason = strings.ToValidUTF8(text, "\uFFFD")
		if len(text) > record.MaxReason {
			r.fail(fmt.Errorf("Reason has %d bytes, at most %d", len(text), record.MaxReason))
		}
	}
}

// Labels are shown with the claim: which order, which build, which ticket. They take up to
// 1 KiB as JSON. Several Labels of one call add up. See Lock.SetLabels.
func Labels(labels map[string]string) Option {
	return func(r *request) {
		all := maps.Clone(r.labels)
		if all == nil {
			all = make(record.Labels, len(labels))
		}
		maps.Copy(all, labels)
		var err error
		if r.labels, err = checkLabels(all); err != nil {
			r.fail(err)
		}
	}
}

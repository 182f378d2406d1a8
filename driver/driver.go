package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Store is an array of versioned records with compare-and-swap: of all who
// want to follow version N of a key, exactly one may. It is the whole seam
// between Holdfast and a database; drivertest.Run is its contract as tests. A
// store can also be a Watcher, an Awaiter and a Diagnoser.
//
// Methods may be called from any number of goroutines. Whoever opens a store
// closes it; a Client never does. From then on all calls fail with ErrClosed.
type Store interface {
	// Load returns the record of each key, in order. A key that holds nothing
	// has the zero Value, but keeps its Version; one that was never written,
	// or was swept, has Version 0. With Fresh, Load sees every write that was
	// reported as won before Load was called. With Stale, a store whose Traits
	// say StaleReads may return records that have been followed since; others
	// do as with Fresh.
	Load(ctx context.Context, keys []Key, how Freshness) ([]Record, error)

	// CompareAndSwap attempts each write independently of the others and says
	// in order what became of it. No two writes of a call have the same key.
	// An error is ambiguous, for all of them: each may have been applied, may
	// be applied at any later time, or never. After an answer a write is never
	// applied again. A batch promises nothing beyond its single writes. A write
	// may also lose, after some time, to a transaction that keeps the key locked
	// (see P4, the fence): then the answer has the unchanged record that it was to follow.
	//
	// A batch of Sessions keys only carries heartbeats: it must not wait
	// behind other batches.
	CompareAndSwap(ctx context.Context, writes []Write) ([]Outcome, error)

	// Keys lists at most n keys of a space that come after the given name, in
	// byte order, leaving out those known to hold nothing. It is a hint for
	// list and sweep; nothing is decided on it.
	Keys(ctx context.Context, space Space, after string, n int) ([]string, error)

	// Sweep removes rows of keys that have held nothing for at least idle, and
	// returns how many. Before a row goes, the store raises a floor to at least its
	// version, in the same transaction or in one that came before; a key that is
	// written again starts above the floor, however long that write has been
	// under way. So versions grow strictly per key, for ever. A store may remove
	// the row of a session as soon as it holds nothing. A store that keeps no
	// such rows has nothing to do.
	Sweep(ctx context.Context, idle time.Duration) (removed int, err error)

	// Traits returns what a Client has to know of the store's nature. It does no
	// I/O, and its answer never changes.
	Traits() Traits
}

// A Freshness says how old the records that Load returns may be.
type Freshness byte

const (
	Fresh Freshness = iota // none had been followed when Load was called
	Stale                  // any may have been followed, even by records that this process has seen
)

// Traits say where a store differs from one whose reads are cheap and always fresh, and
// whose notifications cost writers nothing. The zero Traits are right for most stores.
type Traits struct {
	// StaleReads: a Load with Fresh is expensive (a round of consensus, say), and
	// one with Stale is not. A stale read only returns records of writes that won
	// and that no crash can take back. A Client polls with stale reads, follows
	// the queue by them, and believes a grant of its claim, which stays valid as
	// long as its session. Before it acts on something that others did not do, or
	// on something that is not there, it loads with Fresh.
	// Concurrent writes of one key delay each other, so a Client spreads them.
	StaleReads bool
	// CostlyWatch: each watcher slows down all writes that notify. A
	// Client watches only while it waits or observes; a holder learns of a
	// break or a suspicion with its next heartbeat.
	CostlyWatch bool
	// TellsRecords: notifications about names carry the record (Notification.Version). A Client
	// then notifies the holder of each new waiter, and elsewhere only of the first eight, because
	// otherwise the release would start from an older record and lose.
	TellsRecords bool
	// Awaits: the Store is an Awaiter, and its database can do what that takes. A Client looks for
	// Await on the store that it was given, and not by Find.
	Awaits bool
	// CostlyWrites: each write is a round of consensus or a transaction across
	// machines. A Client keeps no history of holds there, unless the store's setting
	// says so.
	CostlyWrites bool
	// SingleWrites: the store carries out each write of a call by itself, at most this many at a
	// time; 0: the writes of a call go together. If it is not 0, a Client makes one call per write,
	// at most this many at a time, since writes that share a call wait for the slowest. The
	// writes of a hold of many names, and the heartbeats of many holds, are not split.
	SingleWrites int
}

// Find returns a capability of a store (Watcher, Diagnoser): the store's own, or else that
// of the store it wraps, which its method Unwrap() Store returns. A wrapper without Unwrap
// hides what it does not have itself.
func Find[T any](s Store) (capability T, ok bool) {
	for s != nil {
		if capability, ok = s.(T); ok {
			return capability, true
		}
		w, wraps := s.(interface{ Unwrap() Store })
		if !wraps {
			break
		}
		s = w.Unwrap()
	}
	return capability, false
}

// A Watcher is a Store whose database can notify of changes.
type Watcher interface {
	// Watch calls changed for each Write that had Notify set and won, until ctx
	// is done or watching fails, and returns why it ended. Notifications may be
	// late, doubled, spurious or missing. A zero Notification means that anything
	// may have changed; the first call carries one, as soon as writes are notified
	// of. Calls do not overlap, and changed does not block.
	// The caller needs only notifications to Everyone or to the ids in who, or all
	// with who nil. A store may send more.
	Watch(ctx context.Context, who []string, changed func(Notification)) error
}

// An Awaiter is a Store whose database cannot notify of changes, but can look for them by itself.
// A Client calls Await where it is next in line, and polls elsewhere. A wrapper without Await
// hides it.
type Awaiter interface {
	// Await returns the record of a key as Load with Fresh does, once its version differs from the
	// given one or limit has passed. The database looks at intervals of about every.
	Await(ctx context.Context, key Key, version int64, every, limit time.Duration) (Record, error)
}

// A Notification reports a write. It may carry the record, as a stale read returns it: the one that
// the write made, if nobody can forge the store's notifications, or one that was read afterwards.
type Notification struct {
	Key
	To      string // the Notify of the Write; Everyone if the store does not know
	Version int64  // of the record; 0: the notification carries none
	Value   string // of that record
}

// Everyone as the Notify of a Write means all watchers.
const Everyone = "*"

// A Diagnoser is a Store that can report, for people, how fit its database is for
// locks: what it is, what its settings put at risk, whether notifications arrive.
type Diagnoser interface {
	Diagnose(ctx context.Context) ([]Finding, error)
}

// A Finding is one thing that a Diagnoser has to say.
type Finding struct {
	Level   Level
	Subject string // "durability"
	Text    string // with the remedy, unless Level is Good
}

// Findings are what a Diagnoser gathers.
type Findings []Finding

// Say adds a finding.
func (f *Findings) Say(level Level, subject, format string, args ...any) {
	*f = append(*f, Finding{Level: level, Subject: subject, Text: fmt.Sprintf(format, args...)})
}

// Check adds err as a Failure or, if there is no error, the given text as Good.
func (f *Findings) Check(err error, subject, format string, args ...any) {
	if err != nil {
		f.Say(Failure, subject, "%v", err)
		return
	}
	f.Say(Good, subject, format, args...)
}

// A Level says how bad a finding is.
type Level int8

const (
	Good Level = iota
	Warning
	Failure // locks are not safe
)

// A Space keeps user names and Holdfast's own records apart: no name can ever
// be taken for a record of ours, as it could be with a prefix.
type Space byte

const (
	Names     Space = iota // lock records, by the user's name
	Sessions               // session records, by session id
	Settings               // settings, by their name
	Audits                 // forced releases, by the user's name
	Histories              // holds that have ended, by the user's name
)

func (s Space) String() string {
	switch s {
	case Names:
		return "name"
	case Sessions:
		return "session"
	case Settings:
		return "setting"
	case Audits:
		return "audit"
	case Histories:
		return "history"
	}
	return fmt.Sprintf("space %d", byte(s))
}

// Key is the key of that name in the space.
func (s Space) Key(name string) Key { return Key{s, name} }

// MaxName is the maximum length of a key's name in bytes.
const MaxName = 1024

// A Key names a record. Name is 1 to MaxName arbitrary bytes, compared as bytes.
type Key struct {
	Space Space
	Name  string
}

// A Record is what a key holds.
type Record struct {
	// Version grows strictly with every write of the key, for ever, including
	// writes that empty it. It is positive once the key has been written. Stores
	// with a clock make it max(old+1, the clock in microseconds since 1970),
	// so that it also stays ahead of writes lost in a failover.
	Version int64
	// Value is what was last written; empty means that the key holds nothing.
	// It may be up to 1 MiB, of any bytes.
	Value []byte
	// Age is how long ago, by the store's own clock, the record was written;
	// negative where there is no clock that all users of the store share.
	Age time.Duration
}

// IfEmpty as the Old of a Write means any version, provided that the key holds
// nothing. A name that was never seen is acquired with it in one round trip.
const IfEmpty = int64(record.IfEmpty)

// A Write asks for Value to follow version Old of Key.
type Write struct {
	Key Key
	// Old is the version that Value shall follow, or IfEmpty. 0 never wins: a
	// key without a version is written with IfEmpty.
	Old   int64
	Value []byte // empty: the key shall hold nothing
	// Notify asks the store to notify its watchers of this write, if it wins, and
	// says which of them: a session id, or Everyone. "": none. At most 64 bytes.
	Notify string
	// Lazy says that the answer need not wait for the disk. A crash of the
	// database may lose the write again, but not once a later write that is not
	// lazy, of whatever key, has been answered: that one carries along all that were
	// applied before it. A store that cannot promise this ignores Lazy.
	Lazy bool
}

// An Outcome says what became of a Write.
type Outcome struct {
	Won bool
	// Record is the key's record after a write that won, or the record that
	// the write lost to.
	Record Record
	// Err means that this write is ambiguous, as an error of the call means for all. It
	// is only set in a call of several writes, if the others were answered.
	Err error
}

// MaxValue is the size in bytes of the largest value that every store keeps.
const MaxValue = record.MaxValue

// Check reports what is wrong with a write or its key, before the database sees it.
// It is for authors of stores.
func (w Write) Check() error {
	if err := w.Key.Check(); err != nil {
		return err
	}
	if len(w.Value) > MaxValue {
		return fmt.Errorf("value of %s %q has %d bytes, at most %d", w.Key.Space, w.Key.Name, len(w.Value), MaxValue)
	}
	if len(w.Notify) > 64 {
		return fmt.Errorf("notify %q of %s %q has %d bytes, at most 64", w.Notify, w.Key.Space, w.Key.Name, len(w.Notify))
	}
	return nil
}

// Check reports what is wrong with a key.
func (k Key) Check() error {
	switch {
	case k.Space > Histories:
		return fmt.Errorf("unknown %s", k.Space)
	case k.Name == "":
		return errors.New("key has no name")
	case len(k.Name) > MaxName:
		return fmt.Errorf("key %q… has %d bytes, at most %d", k.Name[:40], len(k.Name), MaxName)
	}
	return nil
}

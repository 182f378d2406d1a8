package main

import (
	"context"
	"slices"
	"strings"
	"time"
)

// A system is one way to keep others out, or the bare statements that such a
// way has to be measured against.
type system struct {
	store string // where it locks
	name  string
	of    string // the system of the same store that it is compared with; itself: nothing
	in    string // the workloads it takes part in
	disk  string // what waits for the disk
	means string // its settings, as far as they are not the defaults of all
	open  func(ctx context.Context, at *site, o options) (locker, error)
}

// A locker is a system opened by one process.
type locker interface {
	// lock waits for the lock on a name.
	lock(ctx context.Context, name string) (held, error)
	close() error
}

// held is a lock that is held.
type held interface{ unlock() error }

type unlocker func() error

func (f unlocker) unlock() error { return f() }

// A countingLocker counts what it asks of a store that cannot count by itself.
type countingLocker interface{ requests() float64 }

// options are how a workload wants a system to be opened.
type options struct {
	Conns int           // of its pool; 0: the default
	TTL   time.Duration // how long a silent holder is believed; 0: the default
	// Keep renews locks that would end by themselves, each third of the TTL,
	// where the system leaves that to its user.
	Keep  bool
	Count int  // of clients or of operations, in one process
	Fresh bool // a new name each time
	// Tracing is what records what Holdfast does: "" nothing, or a key of tracing.
	Tracing string
	// Elsewhere hides that the process is on the same host as others.
	Elsewhere bool

	waiting func() // called when a claim has joined a queue, by who can tell
	beat    func() // called after each heartbeat, by who can tell
}

// A site is where the stores are.
type site struct {
	Dir                      string // on a real disk
	Postgres, Bouncer, MySQL string // URLs
	Redis                    string // host:port
	Etcd                     []string
	Cassandra                string            // URL with a keyspace
	Databases                map[string]string // by system, where each has its own
}

func findSystem(store, name string) *system {
	for _, k := range kinds {
		for _, s := range k.systems {
			if s.store == store && s.name == name {
				return s
			}
		}
	}
	return nil
}

// ours says whether a system is Holdfast.
func (s *system) ours() bool { return strings.HasPrefix(s.name, "holdfast") }

func (s *system) takesPart(workload string) bool {
	return slices.Contains(strings.Fields(s.in), workload)
}

// row begins a row of a system.
func (s *system) row(what string) Row {
	return Row{Store: s.store, System: s.name, Case: what, Disk: s.disk, Settings: s.means}
}

// pair takes a lock and gives it back.
func pair(ctx context.Context, l locker, name string) error {
	if d, ok := l.(interface {
		once(ctx context.Context, name string) error
	}); ok {
		return d.once(ctx, name)
	}
	h, err := l.lock(ctx, name)
	if err != nil {
		return err
	}
	return h.unlock()
}

// Package sqlite keeps locks in an SQLite file, which may be the application's
// own: then a transaction can be fenced (see Fence).
//
// # One copy of SQLite
//
// The store uses modernc.org/sqlite. A process must not open the same file
// with two copies of SQLite: each would let go of the other's locks
// (https://sqlite.org/howtocorrupt.html, 2.2.1). So if the file is the
// application's own, it should use the driver "sqlite" of modernc.org/sqlite
// too. Other processes, in any language, may use what they like.
//
// # One name, and one log
//
// SQLite keeps its log beside the name by which a file is opened. A process that uses
// another name does not see what is in that log, and both could be given one lock.
// So Open refuses a file with hard links, and one that is mounted by itself; a
// symbolic link is followed first and does no harm.
//
// While the file is in use do not move, replace or remove it, nor the files beside
// it that end in -wal and -shm: a store that has lost one of them refuses every call,
// and has to be opened anew. A program that reads the file without SQLite, such as with
// os.ReadFile, makes the kernel drop the locks of its connections, and whoever closes
// the file next may remove the log. Copy it with SQLite's own backup, or turn on
// OFDLocking of modernc.org/sqlite first.
//
// # Waiting for the disk
//
// A write waits for the disk (synchronous=FULL) unless it is Lazy; a lazy one
// is in the write-ahead log when it returns (synchronous=NORMAL): it survives
// the death of every process but not of the machine. The log is one file in
// commit order. So a power cut takes only what came after the last write that
// waited, never something before it: a grant that was reported is never
// undone, and no token is given twice. We can do nothing about a file system or
// disk that lies about fsync, nor about a program that sets synchronous to off for
// a file that it shares with us: it may copy the log before it is on disk.
//
// # Versions and time
//
// A version is at least the wall clock of the host in microseconds, read in Go
// when a statement is about to run: SQLite's own clock only has milliseconds, and
// the wait for other writers must not count as age. A record's Age is measured
// by the same clock. If that clock has stepped, which a client notices by a steady
// clock, records written before have no age (it is negative).
package sqlite

import (
	"context"
	"errors"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/notify"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Options of Open; nil and the zero value of each field are the defaults.
type Options struct {
	// Create makes the file, with mode 0600, and the schema, where they are
	// missing. Without it that is an error.
	Create bool
	// Allow lists dangers accepted by name: "network-fs", a file on a network
	// file system, whose locks may not keep two writers apart; "async-commit",
	// never to wait for the disk, so that a token may repeat after a power cut.
	Allow []string
	// ReadOnly is for a client with holdfast.Options.ReadOnly: it reads the file and makes
	// and changes nothing, so the right to read is enough.
	ReadOnly bool

	ifEmpty bool // Create, where there is no file, or nothing in it
}

// A Store keeps records in an SQLite file. It is a driver.Store, Watcher and
// Diagnoser.
type Store struct {
	sqlstore.Store
	path  string // absolute
	files files
	ours  bool // the file has been found to be Holdfast's
	async bool // never wait for the disk
	looks bool // nothing is written, see look.go
	board notify.Board

	watches notify.Watches // of the board

	// Each has its own connection, as soon as it finds that of names in use. A
	// writer that copies the log into the file occupies its connection, though
	// not the write lock, so heartbeats, which must not wait behind others, need
	// another.
	names, beats, reads *sqlstore.Pool[*conn]
}

var (
	_ driver.Store   = (*Store)(nil)
	_ driver.Watcher = (*Store)(nil)
)

// Watch implements driver.Watcher with a named pipe in a directory beside the file, whose name
// ends in "-wake"; a user without access to that directory polls.
func (s *Store) Watch(ctx context.Context, _ []string, changed func(driver.Notification)) error {
	return s.watches.Run(ctx, func(ctx context.Context) error { return s.board.Watch(ctx, changed) })
}

// Close ends what Open and Watch have begun, after the calls under way.
func (s *Store) Close() error {
	s.watches.Close()
	return errors.Join(s.reads.Close(), s.beats.Close(), s.names.Close())
}

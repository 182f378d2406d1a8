// Package record defines what stores keep: the records of locks, sessions, audits and histories,
// their encoding, and the rules by which a lock is granted. It has no clock and does no I/O.
package record

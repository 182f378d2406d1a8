// Package record is what stores keep: records of locks, sessions, audits and histories, how they
// are encoded, and the rules by which a lock is granted. It has no clock and does no I/O.
package record

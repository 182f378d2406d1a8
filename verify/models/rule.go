package models

// A Rule is one that a variant breaks on purpose.
type Rule string

// How a write stands.
const (
	none = iota
	sent
	won
	lost
)

// What a write expects.
const (
	stale = iota // what stands there no longer
	fresh        // what stands there
	blind        // nothing
)

var names = [...]string{"A", "B", "C", "D"}

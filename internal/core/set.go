package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// A Set collects several names for one goroutine, which can use none without the others. Sets
// cannot deadlock: each waits in one queue at a time, that of the lowest name that it did not
// get, and keeps only the names below while it waits.
//
// A round begins with Missing, whose names are tried, all in one call. When each try has
// been reported, Next says what follows.
type Set struct {
	names   []string // in order, without duplicates
	held    []bool
	bounded bool
	most    time.Duration // how long it may wait, if bounded; 0: it only tries
	began   lease.Instant
	failed  int  // the lowest name that this round did not get; -1: none
	refused bool // because others hold it
}

// NewSet begins to collect names, which are in order and without duplicates. A bounded set gives
// up after most.
func NewSet(names []string, bounded bool, most time.Duration, now lease.Instant) *Set {
	return &Set{names: names, held: make([]bool, len(names)), bounded: bounded, most: most, began: now, failed: -1}
}

// TryPatience is how long a store may take to answer a request that does not wait; a set
// allows a hundredth more for each of its names. maxPatience is for ever.
const (
	TryPatience = 5 * time.Second
	maxPatience = 1 << 62
)

// Missing begins a round, and returns the names to try. within is how long the store may take to
// answer, counted from the beginning of the set. No names: the set holds all.
func (s *Set) Missing(now lease.Instant) (names []string, within time.Duration) {
	s.failed = -1
	for i, name := range s.names {
		if !s.held[i] {
			names = append(names, name)
		}
	}
	waited := now.Sub(s.began)
	patience := TryPatience + time.Duration(len(s.names))*TryPatience/100
	switch {
	case !s.bounded:
		patience = maxPatience
	case s.most > 0:
		patience = min(patience, max(s.most-waited, time.Second))
	}
	return names, waited + patience
}

// Got reports that a name was granted.
func (s *Set) Got(name string) {
	if i, ok := slices.BinarySearch(s.names, name); ok {
		s.held[i] = true
	}
}

// Failed reports that a try was not granted: because others hold the name (refused), or because
// the store did not answer.
func (s *Set) Failed(name string, refused bool) {
	if i, ok := slices.BinarySearch(s.names, name); ok && (s.failed < 0 || i < s.failed) {
		s.failed, s.refused = i, refused
	}
}

// Lost reports, between two rounds, that a lock of the set was lost, and returns whether the
// set goes on. A lock that was lost with its session is acquired again, as the lost place of a
// single name in its queue would be. One that was broken is not asked for again.
func (s *Set) Lost(name string, broken bool) (goesOn bool) {
	if i, ok := slices.BinarySearch(s.names, name); ok {
		s.held[i] = false
	}
	return !broken
}

// A SetStep is what follows from a round.
type SetStep struct {
	Kind SetKind
	Name string   // SetWait: to wait for; SetFail: that was not granted
	Back []string // to give back first, without waiting for the answers
	Set  string   // SetWait: "2 of 3", for people; "" for a single name
	Most time.Duration
}

// A SetKind is the kind of a SetStep.
type SetKind int8

const (
	SetTry  SetKind = iota // the next round may begin
	SetWait                // wait for Name, if bounded at most Most; then Got, and the next round
	SetFail                // give up; if Most is not 0, it may take that long to find who holds Name
)

// Next says what follows when all tries of the round have been reported.
func (s *Set) Next(now lease.Instant) (step SetStep) {
	if s.failed < 0 {
		return step
	}
	step.Name = s.names[s.failed]
	if s.bounded && !s.refused { // a bounded wait is for the lock, not for the store
		step.Kind = SetFail
		return step
	}
	step.Kind = SetWait
	count := 0
	for i, name := range s.names {
		if s.held[i] && i > s.failed {
			s.held[i] = false
			step.Back = append(step.Back, name)
		}
		if s.held[i] {
			count++
		}
	}
	if len(s.names) > 1 {
		step.Set = fmt.Sprintf("%d of %d", count, len(s.names))
	}
	if s.bounded && s.most > 0 {
		waited := now.Sub(s.began)
		if waited >= s.most { // not a try now, which may go on to watch the dead
			return SetStep{Kind: SetFail, Name: step.Name, Back: step.Back, Most: s.most + time.Second - waited}
		}
		step.Most = s.most - waited
	}
	return step
}

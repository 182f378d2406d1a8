package explore

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Setup bounds a world.
type Setup struct {
	Users     [][]int    // for each client, the slots of each of its goroutines: 1 exclusive, 0 shared
	Sets      [][]string // for each client, the sets that its goroutines acquire, each name a letter; Users has the slots of all these names, in order. nil: all want one lock
	Tries     bool       // sets are only tried
	Rounds    int        // how often each takes the lock
	TTL       int        // in ticks
	Sessions  int        // of each client
	Crashes   int
	Ambiguous int      // writes that are never answered
	Losses    int      // crashes of the store that lose the last write, which put a claim in line
	Cancels   int      // requests that are given up
	Shutdowns int      // of clients
	Restarts  int      // of clients that have crashed
	NewTTLs   []int    // what the store's TTL becomes, one after the other, in ticks
	Grace     int      // in ticks
	Detach    int      // ticks for which a hold of the first client may be left without a process
	Breaks    int      // of claims, by somebody else
	Sweeps    bool     // there is a sweeper, and the store removes rows that hold nothing
	Skewed    bool     // the sweeper's wall clock is a year ahead
	Still     bool     // time stands still: no session is declared dead
	Marks     bool     // a detector may suspect
	Ages      bool     // the store has a clock
	Tells     bool     // notifications carry the record
	Leap      int      // quarters of a tick by which the store's clock leaps, once
	Limit     int      // states; 0: none
	After     []string // actions that come before all others
}

// longest is how far back an instant can matter.
func (s Setup) longest() lease.Instant {
	most := ticks(slices.Max(append([]int{s.TTL}, s.NewTTLs...)))
	if s.Sweeps {
		most *= 2 // the age of a tombstone that goes
	}
	if s.Detach > 0 {
		most = max(most, record.DetachedTTL(ticks(s.Detach)))
	}
	return lease.Instant(most + ticks(s.Grace+1))
}

// names is how many names there are.
func (s Setup) names() int {
	last := "a"
	for _, names := range slices.Concat(s.Sets...) {
		last = max(last, names[len(names)-1:])
	}
	return numberOf(last) + 1
}

// nameOf is a name as the core knows it.
func nameOf(n int) string { return string(rune('a' + n)) }

func numberOf(name string) int { return int(name[0] - 'a') }

// turns says whether goroutines of a client follow each other at a name.
func (s Setup) turns() bool {
	if s.Sets != nil {
		return slices.ContainsFunc(s.Sets, func(sets []string) bool { return len(sets) > 1 })
	}
	return slices.ContainsFunc(s.Users, func(u []int) bool { return len(u) > 1 })
}

func ticks(n int) time.Duration { return time.Duration(n) * time.Duration(tick) }

// ttl is what the store's setting says.
func (s Setup) ttl(w *World) time.Duration {
	if w.Set > 0 {
		return ticks(s.NewTTLs[w.Set-1])
	}
	return ticks(s.TTL)
}

// source is the Setup as Go.
func (s Setup) source() string {
	var fields []string
	s.Limit = 0
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			fields = append(fields, fmt.Sprintf("%s: %#v", v.Type().Field(i).Name, f.Interface()))
		}
	}
	return "Setup{" + strings.Join(fields, ", ") + "}"
}

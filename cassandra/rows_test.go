package cassandra

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	load "github.com/holdfast-lock/holdfast/internal/busy"
)

// transactions wants what a name is taken with, in order, and forgets it.
func (s *subject) transactions(t *testing.T, name string, want ...string) {
	t.Helper()
	var got []string
	for _, c := range s.tap.seen("") {
		if kind, _, _ := strings.Cut(c.text, " "); kind != "select" {
			got = append(got, kind)
		}
	}
	if s.tap.set(nil); !slices.Equal(got, want) {
		t.Errorf("%q took the transactions %v, want %v", name, got, want)
	}
}

// The row of a new name is created at once where the one before it was new.
func TestNewNamesInARow(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	s.tap.set(nil)
	for i, want := range [][]string{{"update", "insert", "update"}, {"insert", "update"}, {"insert", "update"}} {
		name := fmt.Sprint(i)
		rec := put(t, s, name, driver.IfEmpty, "one")
		s.transactions(t, name, want...)
		put(t, s, name, rec.Version, "")
		s.transactions(t, name, "update")
		put(t, s, name, driver.IfEmpty, "two") // it is known now
		s.transactions(t, name, "update")
	}
}

// A name that was taken for new, and is not, is taken as it stands, and what others hold is
// left to them. The next one is not taken for new.
func TestTakenForNew(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	high := time.Now().UnixMicro() + hour
	s.row(t, "empty", high, "")
	s.row(t, "held", high, "theirs")
	s.row(t, "empty too", 5, "")
	s.row(t, "placeholder", -7, "")

	put(t, s, "new", driver.IfEmpty, "one")
	s.tap.set(nil)
	rec := put(t, s, "empty", driver.IfEmpty, "one")
	s.transactions(t, "empty", "insert", "update")
	if rec.Version <= high {
		t.Errorf("version %d, want more than %d, at which it was empty", rec.Version, high)
	}
	s.stands(t, "empty", "one", rec.Version)
	s.tap.set(nil)
	put(t, s, "empty too", driver.IfEmpty, "one")
	s.transactions(t, "empty too", "update")

	put(t, s, "new too", driver.IfEmpty, "one")
	s.transactions(t, "new too", "update", "insert", "update")
	out, err := swap(t, s, "held", driver.IfEmpty, "ours")
	if err != nil || out.Won || out.Record.Version != high || string(out.Record.Value) != "theirs" {
		t.Errorf("got %+v, %v, want to have lost to version %d", out, err, high)
	}
	s.transactions(t, "held", "insert")
	s.stands(t, "held", "theirs", high)

	put(t, s, "another", driver.IfEmpty, "one")
	s.transactions(t, "another", "update", "insert", "update")
	put(t, s, "placeholder", driver.IfEmpty, "one") // somebody is about to take it, and is late
	s.transactions(t, "placeholder", "insert", "update")
	put(t, s, "yet another", driver.IfEmpty, "one")
	s.transactions(t, "yet another", "insert", "update")
}

// A name whose row was swept since it was last seen gets a new one, above the floor.
func TestSeenAndSwept(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	high := time.Now().UnixMicro() + hour
	s.row(t, "x", high, "")
	rec := put(t, s, "x", driver.IfEmpty, "one")
	rec = put(t, s, "x", rec.Version, "")
	swept(t, s.other, "x")
	s.tap.set(nil)
	next := put(t, s, "x", driver.IfEmpty, "two")
	s.transactions(t, "x", "update", "insert", "update")
	if next.Version <= rec.Version {
		t.Errorf("version %d after %d", next.Version, rec.Version)
	}
	s.stands(t, "x", "two", next.Version)
}

// An insert that a write begins with is ambiguous after no answer, as one that comes later.
func TestCreatedAtOnceWithoutAnswer(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	put(t, s, "new", driver.IfEmpty, "one")
	for _, f := range []fate{cut, lost, timedOut, busy} {
		name := fmt.Sprint(f)
		s.tap.set(once("insert", f))
		rec := put(t, s, name, driver.IfEmpty, "one")
		if f == timedOut || f == busy {
			s.transactions(t, name, "insert", "insert", "update")
		}
		s.stands(t, name, "one", rec.Version)
	}
	s.tap.set(func(*call) fate { return busy })
	ctx, cancel := context.WithTimeout(t.Context(), load.Times(2*time.Second))
	defer cancel()
	if out, err := swapIn(ctx, s, nameKey(t, "x"), driver.IfEmpty, "one"); !driver.Busy(err) {
		t.Errorf("got %+v, %v, want a BusyError", out, err)
	}
	if calls := s.tap.seen("update"); len(calls) > 0 {
		t.Errorf("%d updates of a row that may not be there", len(calls))
	}
}

// Lists that go on side by side each read all rows once. What is left of one that nobody goes on with
// is forgotten, and read anew if somebody does.
func TestListsSideBySide(t *testing.T) {
	t.Parallel()
	s := tappedStore(t, nil)
	own := rand.Text() + " "
	prefix := nameKey(t, own).Name
	for i := range 3 {
		put(t, s, fmt.Sprint(own, i), driver.IfEmpty, "here")
	}
	page := func(after, want string) string {
		t.Helper()
		names, err := s.Keys(t.Context(), driver.Names, after, 1)
		if err != nil || len(names) != 1 || names[0] != prefix+want {
			t.Fatalf("after %q: %q, %v, want the name that ends in %q", after, names, err, want)
		}
		return names[0]
	}
	readings := func() (n int) {
		for _, c := range s.tap.seen("select") {
			if strings.Contains(c.text, "writetime") {
				n++
			}
		}
		return n
	}
	s.tap.set(nil)
	first := page(prefix, "0")
	once := readings() // it may take several calls
	second := page(prefix, "0")
	for i := 1; i < 3; i++ {
		first, second = page(first, fmt.Sprint(i)), page(second, fmt.Sprint(i))
	}
	if n := readings(); once == 0 || n != 2*once {
		t.Errorf("two lists of three pages have read with %d calls, and the first page of one with %d", n, once)
	}
	at := place{driver.Names, page(prefix, "0")}
	read := s.lists.rest[at][0].read
	s.lists.drop(at, read.Add(-1)) // another
	if len(s.lists.rest[at]) != 1 {
		t.Error("what is left of the third list is forgotten with another")
	}
	s.lists.drop(at, read)
	if _, ok := s.lists.rest[at]; ok {
		t.Error("what is left of the third list is not forgotten")
	}
	page(at.after, "1")
}

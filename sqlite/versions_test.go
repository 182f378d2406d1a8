package sqlite

import (
	"cmp"
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// meta reads or sets what is in holdfast_meta.
func (s *Store) meta(t *testing.T, statement string, args ...sqldriver.Value) (value int64) {
	t.Helper()
	err := s.names.Use(t.Context(), func(c *conn) error {
		return c.query(statement, func(row []sqldriver.Value) { value = row[0].(int64) }, args...)
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// A key that is new begins above the floor, and one that is there above its
// version, also where the clock of the host has gone back below them: else a
// version, and with it a token, would be given twice.
func TestVersionsOutrunTheClock(t *testing.T) {
	ahead := time.Now().Add(time.Hour).UnixMicro()
	key := func(name string) driver.Key { return driver.Key{Name: name} }
	for _, batch := range []bool{false, true} {
		s := fresh(t)
		s.meta(t, `update holdfast_meta set value = ? where key = 'floor' returning value`, ahead)
		last := ahead
		write := func(w driver.Write, above int64) int64 {
			t.Helper()
			writes := []driver.Write{w}
			if batch {
				writes = append(writes, driver.Write{Key: key("another"), Old: 7})
			}
			o, err := s.CompareAndSwap(t.Context(), writes)
			if err != nil || !o[0].Won {
				t.Fatalf("%+v, error %v", o, err)
			}
			if got := o[0].Record.Version; got <= above {
				t.Fatalf("in a batch %v: version %d after version %d", batch, got, above)
			}
			return o[0].Record.Version
		}
		last = write(driver.Write{Key: key("a"), Old: driver.IfEmpty, Value: []byte("1")}, last)
		last = write(driver.Write{Key: key("a"), Old: last, Value: []byte("2")}, last)
		last = write(driver.Write{Key: key("a"), Old: last}, last)
		write(driver.Write{Key: key("a"), Old: driver.IfEmpty, Value: []byte("3")}, last)
		write(driver.Write{Key: key("b"), Old: driver.IfEmpty, Value: []byte("1")}, ahead)
	}
}

// A sweep leaves the floor where no version that it has removed is above it, and
// never lowers it.
func TestSweepRaisesTheFloor(t *testing.T) {
	s := fresh(t)
	emptied := func(name string) int64 { t.Helper(); return hold(t, s, name, "") }
	hold(t, s, "held", "1")
	highest := max(emptied("a"), emptied("b"), emptied("c"))
	sweep := func(want int) int64 {
		t.Helper()
		if n, err := s.Sweep(t.Context(), 0); err != nil || n != want {
			t.Fatalf("%d rows were removed, error %v, want %d", n, err, want)
		}
		return s.meta(t, `select value from holdfast_meta where key = 'floor'`)
	}
	if floor := sweep(3); floor < highest {
		t.Errorf("the floor is %d, below the version %d that was removed", floor, highest)
	}
	ahead := time.Now().Add(time.Hour).UnixMicro()
	s.meta(t, `update holdfast_meta set value = ? where key = 'floor' returning value`, ahead)
	s.meta(t, `update holdfast_records set value = x'', version = 5 where name = cast('held' as blob) returning version`)
	if floor := sweep(1); floor != ahead {
		t.Errorf("the floor is %d, and was %d", floor, ahead)
	}
}

// A row that was written since a sweep has found it stays.
func TestSweepLeavesWhatHasChanged(t *testing.T) {
	s := fresh(t)
	var found []sqlstore.Row
	for _, name := range []string{"again", "held", "left"} {
		found = append(found, sqlstore.Row{ID: []byte("\x00" + name), Version: hold(t, s, name, "")})
	}
	hold(t, s, "again", "")
	hold(t, s, "held", "1")
	s.meta(t, `update holdfast_records set version = ? where name = cast('held' as blob) returning version`, found[1].Version)
	err := s.names.Use(t.Context(), func(c *conn) error {
		gone, err := c.remove(found)
		if gone != 1 {
			t.Errorf("%d rows were removed, want the one that has not changed", gone)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A write waits while others have the file locked, for as long as its context lasts, and is
// made when they have done.
func TestFileLocked(t *testing.T) {
	s := fresh(t)
	hold(t, s, "left", "")
	db := application(t, s)
	write := func(names ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			var writes []driver.Write
			for _, name := range names {
				writes = append(writes, driver.Write{Key: driver.Key{Name: name}, Old: driver.IfEmpty, Value: []byte("1")})
			}
			out, err := s.CompareAndSwap(ctx, writes)
			for i, o := range out {
				if err = cmp.Or(err, o.Err); err == nil && !o.Won {
					err = fmt.Errorf("%s lost to %v", names[i], o.Record)
				}
			}
			return err
		}
	}
	for name, call := range map[string]func(context.Context) error{
		"one write": write("one"),
		"batch":     write("two", "three"),
		"sweep": func(ctx context.Context) error {
			_, err := s.Sweep(ctx, 0)
			return err
		},
	} {
		tx, err := db.Begin() // locks the file
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: while the file is locked: %v, want that it waits until the context ends", name, err)
		}
		cancel()
		done := make(chan error)
		go func() { done <- call(t.Context()) }()
		select {
		case err := <-done:
			t.Fatalf("%s: did not wait for the file: %v", name, err)
		case <-time.After(20 * time.Millisecond):
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: once the file is free: %v", name, err)
		}
	}
}

// A batch that fails in the middle leaves nothing behind, neither what it had
// written nor a transaction that the next write would be part of.
func TestFailedBatch(t *testing.T) {
	s := fresh(t)
	other := open(t, s.path, nil)
	db := application(t, s)
	if _, err := db.Exec(`create trigger refuse before insert on holdfast_records when new.name = cast('refused' as blob) begin select raise(abort, 'refused'); end`); err != nil {
		t.Fatal(err)
	}
	write := func(name string) driver.Write {
		return driver.Write{Key: driver.Key{Name: name}, Old: driver.IfEmpty, Value: []byte("1")}
	}
	if _, err := s.CompareAndSwap(t.Context(), []driver.Write{write("before"), write("refused")}); err == nil {
		t.Fatal("the batch has no error")
	}
	o, err := s.CompareAndSwap(t.Context(), []driver.Write{write("after")})
	if err != nil || !o[0].Won {
		t.Fatalf("%+v, error %v", o, err)
	}
	names, err := other.Keys(t.Context(), driver.Names, "", 10)
	if err != nil || !slices.Equal(names, []string{"after"}) {
		t.Errorf("others see %q, error %v, want what was written after it alone", names, err)
	}
}

// Heartbeats have a connection of their own, for one that writes the log into the
// file keeps its connection from all others.
func TestHeartbeatsApart(t *testing.T) {
	s := fresh(t)
	err := s.names.Use(t.Context(), func(*conn) error { // as if it were at that
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Space: driver.Sessions, Name: "s"}, Old: driver.IfEmpty, Value: []byte("1")}})
		return err
	})
	if err != nil {
		t.Errorf("a heartbeat behind a lock: %v", err)
	}
}

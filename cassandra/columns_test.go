package cassandra

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/claims"
)

// making is held while a table is made: two at once confuse the nodes.
var making sync.Mutex

// columns is a table for claims.
func columns(t *testing.T, table string) *Columns {
	t.Helper()
	session, ks := keyspace(t)
	making.Lock()
	defer making.Unlock()
	if err := MigrateColumns(t.Context(), session, ks, table); err != nil {
		t.Fatal(err)
	}
	c, err := NewColumns(t.Context(), session, ks, table)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func names(columns []claims.Column) (all []string) {
	for _, c := range columns {
		all = append(all, string(c.Name))
	}
	return all
}

func TestColumns(t *testing.T) {
	t.Parallel()
	c := columns(t, "columns_")
	ctx := t.Context()
	key := []byte("k")
	add := func(name string, at int64, remove ...string) {
		t.Helper()
		var gone [][]byte
		for _, r := range remove {
			gone = append(gone, []byte(r))
		}
		if err := c.Add(ctx, key, claims.Column{Name: []byte(name), Value: []byte{0, 0, 0, 0}}, gone, at); err != nil {
			t.Fatal(err)
		}
	}
	want := func(from []byte, want string) {
		t.Helper()
		got, err := c.Slice(ctx, key, from)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(names(got)) != want {
			t.Errorf("from %q there are %q, want %s", from, names(got), want)
		}
	}
	add("b", 10)
	add("a\xff", 10)
	add("a", 10)
	want(nil, "[a a\xff b]")
	want([]byte("a\x01"), "[a\xff b]")
	add("c", 20, "a", "b")
	want(nil, "[a\xff c]")
	add("a", 15) // late: what was removed with a later timestamp stays so
	want(nil, "[a\xff c]")
	if err := c.Delete(ctx, key, [][]byte{[]byte("c"), []byte("a\xff"), []byte("never")}, 30); err != nil {
		t.Fatal(err)
	}
	want(nil, "[]")
	add("c", 29)
	want(nil, "[]")
	got, err := c.Slice(ctx, []byte("another"), nil)
	if err != nil || len(got) != 0 {
		t.Errorf("another row has %q, %v", names(got), err)
	}

	session, ks := keyspace(t)
	if _, err := NewColumns(ctx, session, ks, "missing"); err == nil {
		t.Error("a table that is missing was taken")
	}
	if _, err := NewColumns(ctx, session, ks, `a"b`); err == nil {
		t.Error(`a table a"b was taken`)
	}
}

// TestClaims has lockers with clocks of their own, as in processes, take turns.
func TestClaims(t *testing.T) {
	t.Parallel()
	table := columns(t, "columns_")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var inside, turns atomic.Int32
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			l, err := claims.New(table, &claims.Options{Name: fmt.Sprint("locker ", i), Wait: time.Second, Skew: 20 * time.Millisecond, Retries: 10})
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close(context.WithoutCancel(ctx))
			for range 2 {
				lock, err := l.Acquire(ctx, []byte("key"), []byte("column"))
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold one lock")
				}
				if err := lock.Verify(ctx); err != nil {
					t.Error(err)
				}
				inside.Add(-1)
				turns.Add(1)
				if err := lock.Release(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := turns.Load(); n != 6 {
		t.Errorf("there were %d turns, want 6", n)
	}
}

// TestClaimsSettings: who waits less than others is refused.
func TestClaimsSettings(t *testing.T) {
	t.Parallel()
	table := columns(t, "settings_")
	ctx := t.Context()
	locker := func(wait time.Duration) *claims.Locker {
		l, err := claims.New(table, &claims.Options{Wait: wait})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(context.WithoutCancel(ctx)) })
		return l
	}
	lock, err := locker(time.Second).Acquire(ctx, []byte("key"), []byte("column"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release(ctx)
	_, err = locker(500*time.Millisecond).Acquire(ctx, []byte("another"), []byte("column"))
	var unequal *claims.SettingsError
	if !errors.As(err, &unequal) || errors.Is(err, holdfast.ErrHeld) {
		t.Errorf("a locker that waits less was told %v", err)
	}
}

func TestSkews(t *testing.T) {
	t.Parallel()
	session, _ := keyspace(t)
	skews, err := Skews(t.Context(), session)
	if err != nil || len(skews) == 0 {
		t.Fatal(skews, err)
	}
	for _, s := range skews {
		if s.Ahead.Abs() > s.Within+5*time.Millisecond { // on one host there is one clock
			t.Errorf("%s is %v ahead, within %v", s.Node, s.Ahead, s.Within)
		}
	}
}

package cassandra

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/claims/claimstest"
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

func TestColumns(t *testing.T) {
	t.Parallel()
	c := columns(t, "columns_")
	claimstest.Run(t, func(*testing.T) claims.Columns { return c })
}

func TestColumnsRefused(t *testing.T) {
	t.Parallel()
	session, ks := keyspace(t)
	if _, err := NewColumns(t.Context(), session, ks, "missing"); err == nil {
		t.Error("a table that is missing was taken")
	}
	if _, err := NewColumns(t.Context(), session, ks, `a"b`); err == nil {
		t.Error(`a table a"b was taken`)
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

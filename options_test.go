package holdfast_test

import (
	"errors"
	"math"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// A number of slots that no reader of a record accepts is refused before it is written:
// nobody could lock the name again.
func TestMostSlots(t *testing.T) {
	s := memory.New()
	a, b := newClient(t, s, nil), newClient(t, s, nil)
	defer a.Close()
	defer b.Close()
	for _, n := range []int{math.MaxInt, 1<<30 + 1, 0, -1} {
		if l, err := a.TryAcquire(t.Context(), "a", holdfast.Slots(n)); err == nil {
			t.Errorf("Slots(%d) is accepted", n)
			defer l.Release(t.Context())
		}
	}
	if _, err := a.TryAcquire(t.Context(), "b", holdfast.Slots(1<<30)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if l, err := b.TryAcquire(t.Context(), name, holdfast.Slots(1<<30)); err != nil && !errors.Is(err, holdfast.ErrHeld) {
			t.Errorf("%q is unusable for others: %v", name, err)
		} else if l == nil {
			t.Errorf("%q is held, want one of 1<<30 slots", name)
		}
	}
}

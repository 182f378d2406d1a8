package holdfast_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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

// What an owner says of itself is bounded: what is given is refused if it is too long, and
// what the process is called is cut between two characters.
func TestLongOwner(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, o := range map[string]holdfast.Owner{
		"Host": {Host: long}, "User": {User: long}, "Program": {Program: long}, "Address": {Address: long}, "Device": {Device: long},
	} {
		if c, err := holdfast.New(memory.New(), &holdfast.Options{Owner: o}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a long %s: %v", name, err)
			if c != nil {
				c.Close()
			}
		}
	}
	for _, user := range []string{strings.Repeat("ü", 3000), "x" + strings.Repeat("ü", 3000), strings.Repeat("x", 253) + "🔒"} {
		t.Setenv("LOGNAME", user)
		c := newClient(t, memory.New(), nil)
		defer c.Close()
		if _, err := c.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		info, err := c.Show(t.Context(), "a")
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		got := info.Holders[0].Owner.User
		text, cut := strings.CutSuffix(got, "…")
		if len(got) > 255 || len(got) < 250 || !cut || !utf8.ValidString(got) || !strings.HasPrefix(user, text) {
			t.Errorf("the user %.10q… is shown as %q", user, got)
		}
	}
}

// What a client says of its owner is what it was given, whatever its caller does with the map.
func TestOwnerKeepsItsLabels(t *testing.T) {
	labels := map[string]string{"job": "nightly"}
	c := newClient(t, memory.New(), &holdfast.Options{Owner: holdfast.Owner{Labels: labels}})
	defer c.Close()
	labels["job"] = "other"
	if _, err := c.Acquire(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AcquireFor(t.Context(), "b", time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		info, err := c.Show(t.Context(), name)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner.Labels["job"] != "nightly" {
			t.Errorf("%q is held by %+v, %v", name, info.Holders, err)
		}
	}
}

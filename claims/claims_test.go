package claims

import (
	"encoding/hex"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// The bytes are those that JanusGraph writes.
func TestVector(t *testing.T) {
	hexed := func(b []byte) string { return hex.EncodeToString(b) }
	if got, want := hexed(rowKey([]byte("k1"), []byte("c1"))), "000000026b316331"; got != want {
		t.Errorf("row key %s, want %s", got, want)
	}
	at := time.Unix(0, 0x18ea04dfdaeb6ba5)
	if got, want := hexed(claimName(Nano.of(at), "ridA")), "18ea04dfdaeb6ba572696441"; got != want {
		t.Errorf("column %s, want %s", got, want)
	}
	if got, want := hexed(claimValue()), "00000000"; got != want {
		t.Errorf("value %s, want %s", got, want)
	}
	if Micro.of(at) != at.UnixNano()/1000 || Milli.of(at) != at.UnixNano()/1000000 {
		t.Errorf("as micro %d, as milli %d", Micro.of(at), Milli.of(at))
	}
}

func TestAcquireRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		l := locker(t, x, "a", nil, small)
		began := time.Now()
		lock := acquire(t, l)
		if took := time.Since(began); took > l.wait()+time.Millisecond {
			t.Errorf("a free lock took %v", took)
		}
		names := x.claims()
		if len(names) != 1 || timestampOf([]byte(names[0])) != began.UnixMicro() {
			t.Errorf("claims %q", names)
		}
		if err := lock.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(lock.Err(), holdfast.ErrReleased) {
			t.Errorf("after Release: %v", lock.Err())
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if all, _ := x.live(string(settingsKey), ""); len(all)+len(x.leftovers()) > 0 {
			t.Errorf("left over: %q %q", all, x.leftovers())
		}
		if _, err := l.Acquire(t.Context(), testKey, testCol); !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

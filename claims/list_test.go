package claims

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// listed are the claims in a table, each as owner@key/column and what is said of it.
func listed(t *testing.T, x *table, expire time.Duration) (all []string, found []Claim) {
	t.Helper()
	for c, err := range List(t.Context(), x.as("a").(Table), expire) {
		if err != nil {
			t.Fatal(err)
		}
		s := fmt.Sprintf("%s@%s/%s", c.Owner, c.Key, c.Column)
		for _, is := range []struct {
			so   bool
			text string
		}{{c.Locker, "locker"}, {c.First, "first"}, {c.Expired, "expired"}} {
			if is.so {
				s += " " + is.text
			}
		}
		all, found = append(all, s), append(found, c)
	}
	return all, found
}

// List shows the claims of Lockers and of JanusGraph, which is first, and what has expired.
// Removing what has expired leaves the rest, for good.
func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable()
		dead, janus, l := locker(t, x, "dead", nil, small), x.original("janus1", nil, small), locker(t, x, "a", nil, small)
		acquire(t, dead)
		x.cut("dead")
		time.Sleep(2 * small.Expire)
		x.doom(nil)
		x.cut("dead") // for good
		lock := acquire(t, l)
		if err := janus.write(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()

		got, found := listed(t, x, small.Expire)
		live := []string{"a@k1/c1 locker first", "janus1@k1/c1"}
		if want := append([]string{"dead@k1/c1 locker expired"}, live...); !reflect.DeepEqual(got, want) {
			t.Fatalf("listed %q, want %q", got, want)
		}
		if got, _ := listed(t, x, 0); got[0] != "dead@k1/c1 locker first" {
			t.Errorf("with 5 min the first is %q", got[0])
		}
		if age := time.Since(found[0].Time); age < 2*small.Expire || age > 3*small.Expire {
			t.Errorf("the oldest claim is %v old", age)
		}
		if err := Remove(t.Context(), x.as("a"), found[0]); err != nil {
			t.Fatal(err)
		}
		if got, _ := listed(t, x, small.Expire); !reflect.DeepEqual(got, live) {
			t.Errorf("after the removal there are %q, want %q", got, live)
		}
		if err := lock.Verify(t.Context()); err != nil {
			t.Errorf("the holder was disturbed: %v", err)
		}
		// By force: the holder finds out when it looks, and what its write left behind stays gone.
		_, found = listed(t, x, small.Expire)
		if err := Remove(t.Context(), x.as("a"), found...); err != nil {
			t.Fatal(err)
		}
		if got, _ := listed(t, x, small.Expire); len(got) > 0 {
			t.Errorf("there are still %q", got)
		}
		if err := lock.Verify(t.Context()); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the holder whose claim was removed was told %v, want ErrLost", err)
		}
		l.Close(t.Context())
		dead.Close(within(t, time.Second))
	})
}

// The unit of a timestamp is inferred, and a row that is none of a lock is shown whole.
func TestListForeign(t *testing.T) {
	now := time.UnixMicro(1_700_000_000_123_456)
	for _, unit := range []Unit{Micro, Milli, Nano} {
		row := rowKey([]byte("k"), nil)
		got := claimsIn(row, []Column{{claimName(unit.of(now), "x"), nil}}, now.Add(time.Minute), 0)
		if len(got) != 1 || got[0].Time.UnixMilli() != now.UnixMilli() || got[0].Expired || !got[0].First || got[0].Locker {
			t.Errorf("%v: %+v", unit, got)
		}
		if got := claimsIn(row, []Column{{claimName(unit.of(now), "x"), nil}}, now.Add(6*time.Minute), 0); !got[0].Expired {
			t.Errorf("%v: %+v", unit, got)
		}
	}
	for _, row := range [][]byte{[]byte("abc"), {0, 0, 0, 9, 'k'}, settingsKey} {
		if key, column := cutRow(row); !bytes.Equal(key, row) || column != nil {
			t.Errorf("row %q: key %q, column %q", row, key, column)
		}
	}
	if key, column := cutRow(rowKey([]byte("k1"), []byte("c1"))); string(key) != "k1" || string(column) != "c1" {
		t.Errorf("key %q, column %q", key, column)
	}
}

// The logger receives what no return value reports: a renewal that failed, the loss, and
// claims that could not be removed.
func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told bytes.Buffer
		opts := small
		opts.Logger = slog.New(slog.NewTextHandler(&told, nil))
		x := newTable()
		l := locker(t, x, "a", nil, opts)
		lock := acquire(t, l)
		time.Sleep(2 * opts.Expire)
		synctest.Wait()
		if told.Len() > 0 {
			t.Errorf("all was well, and it logged %s", &told)
		}
		x.cut("a")
		<-lock.Done()
		lock.Release(within(t, time.Second))
		time.Sleep(2 * opts.Expire)
		synctest.Wait()
		for _, want := range []string{"claim not renewed", "lock lost", "claim not removed", "the store timed out", `key \"k1\"`} {
			if !strings.Contains(told.String(), want) {
				t.Errorf("it did not log %q:\n%s", want, &told)
			}
		}
		if n := strings.Count(told.String(), "lock lost"); n != 1 {
			t.Errorf("the loss was logged %d times", n)
		}
		l.Close(within(t, time.Second))
	})
}

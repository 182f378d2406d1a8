// Package claimstest is the contract of claims.Columns as tests: call Run in the
// test of a table of your own, on HBase, Bigtable or any other store.
package claimstest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// Run tests Columns against the contract, one subtest per rule; a subtest that fails
// logs its rule. open returns a handle on a table, as a process would have; it is
// called several times, also at the same time, and all handles are on one table.
// It closes what it opens with t.Cleanup. The rows of the tests are new each time,
// so the table need not be empty. A claims.Table is tested as such.
//
// Run finds most faults only on a table with as many replicas as in production,
// and under the race detector. It never finds all of them.
func Run(t *testing.T, open func(t *testing.T) claims.Columns) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), busy.Times(time.Minute))
			defer cancel()
			defer func() {
				if t.Failed() {
					t.Logf("the contract says: %s", c.rule)
				}
			}()
			c.run(&harness{T: t, ctx: ctx, columns: open(t), other: open(t), row: []byte(rand.Text())})
		})
	}
}

// A testCase checks a rule of the contract.
type testCase struct {
	name string
	rule string
	run  func(h *harness)
}

// A harness is what a case works with: two handles and a row of its own.
type harness struct {
	*testing.T
	ctx            context.Context
	columns, other claims.Columns
	row            []byte
}

// base is a timestamp like those of Lockers.
const base = 1_700_000_000_000_000

func (h *harness) add(name, value string, timestamp int64, remove ...string) {
	h.Helper()
	if err := h.columns.Add(h.ctx, h.row, claims.Column{Name: []byte(name), Value: []byte(value)}, all(remove), timestamp); err != nil {
		h.Fatalf("adding %q: %v", name, err)
	}
}

func (h *harness) remove(timestamp int64, names ...string) {
	h.Helper()
	if err := h.columns.Delete(h.ctx, h.row, all(names), timestamp); err != nil {
		h.Fatalf("removing %q: %v", names, err)
	}
}

// want compares what the other handle sees from a name on with alternating names and values.
func (h *harness) want(from []byte, want ...string) {
	h.Helper()
	columns, err := h.other.Slice(h.ctx, h.row, from)
	if err != nil {
		h.Fatalf("reading from %q: %v", from, err)
	}
	var got []string
	for _, c := range columns {
		got = append(got, string(c.Name), string(c.Value))
	}
	if !slices.Equal(got, want) {
		h.Fatalf("from %q there are %q, want %q", from, got, want)
	}
}

func all(names []string) (bs [][]byte) {
	for _, n := range names {
		bs = append(bs, []byte(n))
	}
	return bs
}

var cases = []testCase{
	{"write and read", "a Slice that begins when a write has returned shows it, from any process", func(h *harness) {
		h.want(nil)
		for i := range 10 {
			h.add("a", fmt.Sprint(i), base+int64(i))
			h.want(nil, "a", fmt.Sprint(i))
		}
		h.remove(base+10, "a")
		h.want(nil)
	}},
	{"order", "Slice returns the columns in the order of their names, byte by byte", func(h *harness) {
		names := []string{"b", "\xff", "a\xff", "B", "a", "\x00", "a\x00", "a\x7f", "a\x80", "\x7f", "\x80"}
		var want []string
		for _, n := range names {
			h.add(n, "1", base)
		}
		slices.Sort(names)
		for _, n := range names {
			want = append(want, n, "1")
		}
		h.want(nil, want...)
	}},
	{"from", "Slice begins with the name that it is given; nil: with the first", func(h *harness) {
		for _, n := range []string{"a", "b", "c"} {
			h.add(n, "1", base)
		}
		h.want([]byte("b"), "b", "1", "c", "1")
		h.want([]byte("a\xff"), "b", "1", "c", "1")
		h.want([]byte("d"))
		h.want(nil, "a", "1", "b", "1", "c", "1")
	}},
	{"strange bytes", "keys, names and values are bytes, of which none means anything", func(h *harness) {
		odd := []string{"\x00", "\x00\x00", "a\x00b", "\xff\xfe", "a\xffb", " ", "a ", "A", "a", "%", "'", "\"", "\\", "\n",
			strings.Repeat("n", 256), string(claimName(base)), string([]byte{0, 0, 0, 2, 'k', '1', 'c', '1'})}
		for i, name := range odd {
			h.add(name, "value\x00"+name, base)
			row := *h
			row.row = append(bytes.Clone(h.row), name...)
			row.add("only", fmt.Sprint(i), base)
		}
		var want []string
		slices.Sort(odd)
		for _, name := range odd {
			want = append(want, name, "value\x00"+name)
		}
		h.want(nil, want...)
		for _, name := range odd {
			row := *h
			row.row = append(bytes.Clone(h.row), name...)
			columns, err := row.other.Slice(h.ctx, row.row, nil)
			if err != nil || len(columns) != 1 || string(columns[0].Name) != "only" {
				h.Fatalf("row %q has %q, %v, want the one column of its own", row.row, columns, err)
			}
		}
	}},
	{"older write", "of two writes of one column the one with the later timestamp stays, whichever comes first", func(h *harness) {
		h.add("a", "later", base+20)
		h.add("a", "earlier", base+10)
		h.want(nil, "a", "later")
		h.add("a", "latest", base+30)
		h.want(nil, "a", "latest")
	}},
	{"units", "a timestamp is the number that is given: milliseconds, microseconds or nanoseconds since 1970", func(h *harness) {
		for i, unit := range []int64{base/1000 + 7, base + 7, base*1000 + 7} {
			name := fmt.Sprint(i)
			h.add(name, "1", unit)
			h.remove(unit-1, name)
			h.want([]byte(name), name, "1")
			h.remove(unit+1, name)
			h.want(nil)
		}
	}},
	{"late write", "a deleted column stays deleted against writes of older timestamps, however late they come", func(h *harness) {
		h.add("a", "1", base)
		h.remove(base+10, "a", "never written")
		h.add("a", "1", base+5)
		h.add("never written", "1", base+9)
		h.want(nil)
		h.add("a", "2", base+20)
		h.want(nil, "a", "2")
	}},
	{"late deletion", "a deletion leaves what was written with a later timestamp", func(h *harness) {
		h.add("a", "1", base+20)
		h.remove(base+10, "a")
		h.want(nil, "a", "1")
	}},
	{"nothing to delete", "deleting a column that is not there is no error", func(h *harness) {
		h.remove(base, "a")
		h.remove(base, "a", "b")
		h.want(nil)
	}},
	{"replace", "Add writes one column and deletes the others that it is given", func(h *harness) {
		h.add("a", "1", base)
		h.add("b", "1", base)
		h.add("c", "1", base)
		h.add("d", "2", base+10, "a", "b", "never written")
		h.want(nil, "c", "1", "d", "2")
		h.add("a", "late", base+5)
		h.want(nil, "c", "1", "d", "2")
	}},
	{"one mutation", "what Add writes and what it deletes become visible together", func(h *harness) {
		h.add("0", "", base)
		done, misses := make(chan error, 1), 0
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				columns, err := h.other.Slice(h.ctx, h.row, nil)
				if err != nil {
					done <- err
					return
				}
				if len(columns) == 0 {
					misses++
				}
			}
		}()
		for i := range 100 {
			h.add(fmt.Sprint(i+1), "", base+int64(i)+1, fmt.Sprint(i))
		}
		close(stop)
		if err := <-done; err != nil {
			h.Fatal(err)
		}
		if misses > 0 {
			h.Fatalf("%d reads found the row empty, and there was always one column", misses)
		}
	}},
	{"crowd", "no write is lost where many write to one row at once", func(h *harness) {
		var wg sync.WaitGroup
		errs := make([]error, 20)
		for i := range errs {
			columns := h.columns
			if i%2 == 1 {
				columns = h.other
			}
			wg.Go(func() {
				add := func(j int) error {
					return columns.Add(h.ctx, h.row, claims.Column{Name: fmt.Appendf(nil, "%02d-%d", i, j), Value: []byte("1")}, nil, base+int64(j))
				}
				for j := range 3 {
					if err := add(j); err != nil {
						errs[i] = err
						return
					}
				}
				errs[i] = columns.Delete(h.ctx, h.row, [][]byte{fmt.Appendf(nil, "%02d-0", i), fmt.Appendf(nil, "%02d-1", i)}, base+10)
			})
		}
		wg.Wait()
		var want []string
		for i, err := range errs {
			if err != nil {
				h.Fatal(err)
			}
			want = append(want, fmt.Sprintf("%02d-2", i), "1")
		}
		h.want(nil, want...)
	}},
	{"context", "a call whose context is done returns an error, and soon", func(h *harness) {
		ctx, cancel := context.WithCancel(h.ctx)
		cancel()
		add := h.columns.Add(ctx, h.row, claims.Column{Name: []byte("a"), Value: []byte("1")}, nil, base)
		remove := h.columns.Delete(ctx, h.row, [][]byte{[]byte("a")}, base+1)
		_, slice := h.columns.Slice(ctx, h.row, nil)
		if add == nil || remove == nil || slice == nil {
			h.Fatalf("Add returned %v, Delete %v, Slice %v, want an error each", add, remove, slice)
		}
	}},
	{"rows", "Rows of a claims.Table lists each row that has a column, once", func(h *harness) {
		table, ok := h.other.(claims.Table)
		if !ok {
			h.Skip("it is no claims.Table")
		}
		mine := make(map[string]int)
		for i := range 30 {
			row := *h
			row.row = fmt.Appendf(nil, "%s %d", h.row, i)
			row.add("a", "1", base)
			row.add("b", "1", base)
			if i < 10 {
				row.remove(base+1, "a", "b")
			} else {
				mine[string(row.row)] = 1
			}
		}
		seen := make(map[string]int)
		for row, err := range table.Rows(h.ctx) {
			if err != nil {
				h.Fatal(err)
			}
			if bytes.HasPrefix(row, h.row) {
				seen[string(row)]++
			}
		}
		for row, n := range mine {
			if seen[row] != n {
				h.Errorf("row %q was listed %d times, want once", row, seen[row])
			}
			delete(seen, row)
		}
		for row := range seen {
			h.Errorf("row %q was listed, and has no column any more", row)
		}
	}},
	{"locks", "Lockers on the table exclude each other, and leave nothing behind", func(h *harness) {
		stretch := time.Duration(busy.Stretch())
		opts := claims.Options{Wait: 250 * time.Millisecond * stretch, Skew: 20 * time.Millisecond, Retries: 10}
		var inside sync.Mutex
		var wg sync.WaitGroup
		for i, columns := range []claims.Columns{h.columns, h.other} {
			wg.Go(func() {
				o := opts
				o.Name = fmt.Sprintf("locker %d", i)
				l, err := claims.New(columns, &o)
				if err != nil {
					h.Error(err)
					return
				}
				defer l.Close(context.WithoutCancel(h.ctx))
				lock, err := l.Acquire(h.ctx, h.row, []byte("column"))
				if err != nil {
					h.Error(err)
					return
				}
				if !inside.TryLock() {
					h.Error("two hold one lock")
					return
				}
				if err := lock.Verify(h.ctx); err != nil {
					h.Error(err)
				}
				inside.Unlock()
				if err := lock.Release(h.ctx); err != nil {
					h.Error(err)
				}
			})
		}
		wg.Wait()
		h.row = append(append([]byte{0, 0, 0, byte(len(h.row))}, h.row...), "column"...)
		h.want(nil)
	}},
}

// claimName is the name of a claim.
func claimName(timestamp int64) []byte {
	b := make([]byte, 8, 40)
	for i := range 8 {
		b[i] = byte(timestamp >> (56 - 8*i))
	}
	return append(b, "host:1~00112233445566778899aabbccddeeff"...)
}

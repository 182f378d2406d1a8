package command

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/admin"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
)

// claimRows is a table of claims: the names of columns by row.
type claimRows map[string][]string

func (r claimRows) Add(context.Context, []byte, claims.Column, [][]byte, int64) error { panic("added") }

func (r claimRows) Delete(_ context.Context, key []byte, columns [][]byte, timestamp int64) error {
	for _, c := range columns {
		if int64(binary.BigEndian.Uint64(c)) >= timestamp {
			panic("a deletion that is older than the claim")
		}
		r[string(key)] = slices.DeleteFunc(r[string(key)], func(n string) bool { return n == string(c) })
	}
	return nil
}

func (r claimRows) Slice(_ context.Context, key, _ []byte) (columns []claims.Column, err error) {
	for _, n := range r[string(key)] {
		columns = append(columns, claims.Column{Name: []byte(n), Value: make([]byte, 4)})
	}
	return columns, nil
}

func (r claimRows) Rows(context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, row := range slices.Sorted(maps.Keys(r)) {
			if !yield([]byte(row), nil) {
				return
			}
		}
	}
}

func claimOf(age time.Duration, rid string) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(-age).UnixMicro()))) + rid
}

// captured is what a call of the command writes, and its exit status.
func captured(t *testing.T, args ...string) (out, errs string, status int) {
	t.Helper()
	var texts [2]bytes.Buffer
	var done [2]chan struct{}
	files := [2]**os.File{&os.Stdout, &os.Stderr}
	var before [2]*os.File
	for i, f := range files {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		before[i], *f, done[i] = *f, w, make(chan struct{})
		go func() { io.Copy(&texts[i], r); r.Close(); close(done[i]) }()
	}
	was := cli.GivenStore
	status = run(args)
	cli.GivenStore = was
	for i, f := range files {
		(*f).Close()
		*f = before[i]
		<-done[i]
	}
	return texts[0].String(), texts[1].String(), status
}

// The verb claims lists what is in a table of claims, and removes what has expired, or with
// --live what an owner has.
func TestClaims(t *testing.T) {
	locker := "web-1~00112233445566778899aabbccddeeff"
	rows := claimRows{
		"\x00\x00\x00\x02k1c1":         {claimOf(time.Hour, "janus1"), claimOf(10*time.Second, locker), claimOf(5*time.Second, "\x1b[2Jjanus2")},
		"\x00\x00\x00\x02\x00\x01\x05": {claimOf(time.Second, "janus1")},
	}
	was, opened := cli.Kinds, admin.ClaimTable
	cli.Kinds = []*driver.Kind{cassandra.Kind}
	admin.ClaimTable = func(_ context.Context, _ *driver.Location, table string) (claims.Table, func() error, error) {
		if table != "edgestore_lock_" {
			t.Errorf("table %q was opened", table)
		}
		return rows, func() error { return nil }, nil
	}
	defer func() { cli.Kinds, admin.ClaimTable = was, opened }()
	store := []string{"--store", "cassandra://db1.example/janusgraph", "claims", "edgestore_lock_"}
	call := func(want int, args ...string) (string, string) {
		t.Helper()
		out, errs, status := captured(t, append(slices.Clone(store), args...)...)
		if status != want {
			t.Errorf("%q ended with %d, want %d: %s", args, status, want, errs)
		}
		return out, errs
	}
	shows := func(out string, want ...string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(out) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	head := "KEY COLUMN STATE AGE OWNER KIND"
	out, _ := call(0)
	shows(out, head, "0x0001 0x05 first 1s janus1 janusgraph", "k1 c1 expired 1h janus1 janusgraph",
		"k1 c1 first 10s web-1 holdfast", `k1 c1 waiting 5s \x1b[2Jjanus2 janusgraph`)
	out, _ = call(0, "--owner", "janus1", "--expire", "2h")
	shows(out, head, "0x0001 0x05 first 1s janus1 janusgraph", "k1 c1 first 1h janus1 janusgraph")
	out, _ = call(0, "--json", "--key", "0x0001")
	if !strings.HasPrefix(out, `{"key":"0001","column":"05","state":"first","time":"`) || !strings.HasSuffix(out, `"owner":"janus1","kind":"janusgraph"}`+"\n") {
		t.Errorf("as JSON: %s", out)
	}
	for _, args := range [][]string{{"--live"}, {"--remove", "--live"}, {"--remove", "--live", "--yes"}, {"--expire", "x"}} {
		call(64, args...)
	}
	if n := len(rows["\x00\x00\x00\x02k1c1"]); n != 3 {
		t.Fatalf("of 3 claims there are %d, and nothing was to be removed", n)
	}

	out, errs := call(0, "--remove")
	shows(out, head, "k1 c1 expired 1h janus1 janusgraph")
	if errs != "holdfast: removed 1\n" {
		t.Errorf("said %q", errs)
	}
	if _, errs = call(0, "--remove"); errs != "holdfast: nothing to remove\n" {
		t.Errorf("said %q", errs)
	}
	call(0, "--remove", "--live", "--owner", "web-1", "--yes")
	out, _ = call(0)
	shows(out, head, "0x0001 0x05 first 1s janus1 janusgraph", `k1 c1 first 5s \x1b[2Jjanus2 janusgraph`)

	store = []string{"--store", "cassandra://db1.example/janusgraph", "claims"}
	call(64)
	admin.ClaimTable = nil
	call(64, "edgestore_lock_")
}

package claims_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/claims/claimstest"
)

// The Columns in memory, which all other tests rest on, keep the contract.
func TestColumns(t *testing.T) {
	open := claims.NewTable()
	claimstest.Run(t, func(*testing.T) claims.Columns { return open() })
}

// brokenColumns break the contract in one way each, and fail the case named.
var brokenColumns = map[string]struct {
	fails string
	spoil func(*broken)
}{
	"reads are one write behind": {"write and read", func(b *broken) {
		b.slice = func(ctx context.Context, key, from []byte) ([]claims.Column, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			now, err := b.Table.Slice(ctx, key, from)
			was := b.seen[string(key)]
			b.seen[string(key)] = now
			return was, err
		}
	}},
	"columns are in no order": {"order", func(b *broken) {
		b.found = func(_ []byte, c []claims.Column) []claims.Column { slices.Reverse(c); return c }
	}},
	"bytes are signed": {"order", func(b *broken) {
		b.found = func(_ []byte, c []claims.Column) []claims.Column {
			slices.SortFunc(c, func(x, y claims.Column) int {
				return slices.CompareFunc(x.Name, y.Name, func(a, b byte) int { return int(int8(a)) - int(int8(b)) })
			})
			return c
		}
	}},
	"a slice begins after the name": {"from", func(b *broken) {
		b.found = func(from []byte, c []claims.Column) []claims.Column {
			return slices.DeleteFunc(c, func(c claims.Column) bool { return from != nil && bytes.Equal(c.Name, from) })
		}
	}},
	"a slice begins with the first": {"from", func(b *broken) {
		b.slice = func(ctx context.Context, key, _ []byte) ([]claims.Column, error) { return b.Table.Slice(ctx, key, nil) }
	}},
	"names end at a zero byte":    {"strange bytes", func(b *broken) { b.rename = func(s string) string { s, _, _ = strings.Cut(s, "\x00"); return s } }},
	"names are made UTF-8":        {"strange bytes", func(b *broken) { b.rename = func(s string) string { return strings.ToValidUTF8(s, "\ufffd") } }},
	"names are compared as words": {"strange bytes", func(b *broken) { b.rename = strings.ToLower }},
	"names are cut":               {"strange bytes", func(b *broken) { b.rename = func(s string) string { return s[:min(len(s), 255)] } }},
	"keys are trimmed":            {"strange bytes", func(b *broken) { b.rekey = func(k []byte) []byte { return bytes.TrimRight(k, " \x00") } }},
	"values are not kept": {"strange bytes", func(b *broken) {
		b.found = func(_ []byte, c []claims.Column) []claims.Column {
			for i := range c {
				c[i].Value = []byte{0}
			}
			return c
		}
	}},
	"the last write stays":                {"older write", func(b *broken) { b.stamp = func(int64) int64 { return base + b.n.Add(1) } }},
	"timestamps are cut to milliseconds":  {"units", func(b *broken) { b.stamp = func(t int64) int64 { return t / 1000 * 1000 } }},
	"a deletion leaves nothing":           {"late write", func(b *broken) { b.deletionStamp = func(t int64) int64 { return t - 10 } }},
	"a deletion takes all":                {"late deletion", func(b *broken) { b.deletionStamp = func(t int64) int64 { return t + 1000 } }},
	"what is not there cannot be deleted": {"nothing to delete", func(b *broken) { b.strict = true }},
	"what Add shall delete stays":         {"replace", func(b *broken) { b.keep = true }},
	"Add deletes first":                   {"one mutation", func(b *broken) { b.halves = true }},
	"a write reads, changes and writes":   {"crowd", func(b *broken) { b.lossy = true }},
	"contexts are ignored":                {"context", func(b *broken) { b.deaf = true }},
	"rows that were emptied are listed":   {"rows", func(b *broken) { b.ghosts = true }},
	"some rows are listed twice":          {"rows", func(b *broken) { b.twice = true }},
}

const base = 1_700_000_000_000_000

// broken is a table whose methods can be bent.
type broken struct {
	claims.Table
	slice                                     func(ctx context.Context, key, from []byte) ([]claims.Column, error)
	found                                     func(from []byte, columns []claims.Column) []claims.Column
	rename                                    func(string) string
	rekey                                     func([]byte) []byte
	stamp, deletionStamp                      func(int64) int64
	strict, keep, halves, lossy, deaf, ghosts bool
	twice                                     bool

	n    atomic.Int64
	mu   sync.Mutex
	seen map[string][]claims.Column
	rows map[string]bool
}

func (b *broken) bend(ctx context.Context, key []byte) (context.Context, []byte) {
	if b.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	if b.rekey != nil {
		key = b.rekey(key)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows[string(key)] = true
	return ctx, key
}

func (b *broken) name(name []byte) []byte {
	if b.rename != nil {
		return []byte(b.rename(string(name)))
	}
	return name
}

func (b *broken) Add(ctx context.Context, key []byte, add claims.Column, remove [][]byte, stamp int64) error {
	ctx, key = b.bend(ctx, key)
	add.Name = b.name(add.Name)
	if b.stamp != nil {
		stamp = b.stamp(stamp)
	}
	if b.keep {
		remove = nil
	}
	if b.halves && len(remove) > 0 {
		if err := b.Table.Delete(ctx, key, remove, stamp); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
		remove = nil
	}
	if b.lossy {
		before, err := b.Table.Slice(ctx, key, nil)
		if err != nil {
			return err
		}
		defer func() {
			time.Sleep(time.Millisecond)
			now, _ := b.Table.Slice(ctx, key, nil)
			for _, c := range now {
				if !slices.ContainsFunc(before, func(old claims.Column) bool { return bytes.Equal(old.Name, c.Name) }) && !bytes.Equal(c.Name, add.Name) {
					b.Table.Delete(ctx, key, [][]byte{c.Name}, stamp+1)
				}
			}
		}()
	}
	return b.Table.Add(ctx, key, add, remove, stamp)
}

func (b *broken) Delete(ctx context.Context, key []byte, names [][]byte, stamp int64) error {
	ctx, key = b.bend(ctx, key)
	names = slices.Clone(names)
	for i := range names {
		names[i] = b.name(names[i])
	}
	if b.stamp != nil {
		stamp = b.stamp(stamp)
	}
	if b.deletionStamp != nil {
		stamp = b.deletionStamp(stamp)
	}
	if b.strict {
		there, err := b.Table.Slice(ctx, key, nil)
		if err != nil || len(there) == 0 {
			return fmt.Errorf("no such column: %w", os.ErrNotExist)
		}
	}
	return b.Table.Delete(ctx, key, names, stamp)
}

func (b *broken) Slice(ctx context.Context, key, from []byte) ([]claims.Column, error) {
	ctx, key = b.bend(ctx, key)
	do := b.Table.Slice
	if b.slice != nil {
		do = b.slice
	}
	columns, err := do(ctx, key, from)
	if b.found != nil {
		columns = b.found(from, columns)
	}
	return columns, err
}

func (b *broken) Rows(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if b.ghosts {
			b.mu.Lock()
			rows := maps.Clone(b.rows)
			b.mu.Unlock()
			for row := range rows {
				if !yield([]byte(row), nil) {
					return
				}
			}
			return
		}
		for row, err := range b.Table.Rows(ctx) {
			if !yield(row, err) || b.twice && !yield(row, err) {
				return
			}
		}
	}
}

const brokenHere = "HOLDFAST_BROKEN_COLUMNS"

// The suite finds what is wrong with Columns.
func TestBrokenColumns(t *testing.T) {
	if os.Getenv(brokenHere) != "" {
		for name, it := range brokenColumns {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				open := claims.NewTable()
				b := &broken{Table: open(), seen: make(map[string][]claims.Column), rows: make(map[string]bool)}
				it.spoil(b)
				claimstest.Run(t, func(*testing.T) claims.Columns { return b })
			})
		}
		return
	}
	var only []string
	for _, it := range brokenColumns {
		only = append(only, strings.ReplaceAll(it.fails, " ", "_"))
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$/./^("+strings.Join(only, "|")+")$", "-test.parallel=64", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), brokenHere+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("the suite finds nothing wrong with anything that is broken")
	}
	for name, it := range brokenColumns {
		if want := "--- FAIL: " + t.Name() + "/" + strings.ReplaceAll(name+"/"+it.fails, " ", "_") + " ("; !strings.Contains(string(out), want) {
			t.Errorf("where %s, %q passes", name, it.fails)
		}
	}
	if strings.Contains(string(out), "DATA RACE") || strings.Contains(string(out), "panic:") {
		t.Errorf("the suite is at fault itself:\n%s", out)
	}
}

package claims

import (
	"context"
	"iter"
)

// NewTable is the Columns in memory that the tests of this package use.
func NewTable() func() Table {
	x := newTable()
	return func() Table { return x.as("a").(Table) }
}

func (v view) Rows(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		v.mu.Lock()
		var rows [][]byte
		for row, cells := range v.rows {
			for _, c := range cells {
				if !c.dead {
					rows = append(rows, []byte(row))
					break
				}
			}
		}
		v.mu.Unlock()
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}

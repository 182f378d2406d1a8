package holdfast

import "context"

// Swept is what a sweep has done.
type Swept struct {
	Dead     int // sessions that were found dead, and whose claims are void from now on
	Claims   int // claims of the dead that were removed
	Sessions int // records of dead sessions that were removed
	Names    int // records of free names that were removed
	Rows     int // rows, keys and files that held nothing, and were removed
}

// Sweep removes what is left over: rows that have held nothing for 40 TTLs (20 minutes at
// most), claims of the dead, the records of their sessions once nothing of theirs is left,
// and records of free names. It is safe at any time and from any number of processes. Where
// the store has no clock, it watches sessions that seem dead for a TTL. Clients do all of
// this in the background, in turn.
func (c *Client) Sweep(ctx context.Context) (Swept, error) {
	s, err := c.e.SweepAll(ctx)
	return Swept(s), err
}

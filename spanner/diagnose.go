package spanner

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/spanner"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-lock/holdfast/driver"
)

// Diagnose implements driver.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	var r driver.Findings
	if err := s.verify(ctx); err != nil {
		return nil, fmt.Errorf("spanner: %w", err)
	}
	if s.emulated {
		r.Say(driver.Warning, "server", "an emulator: it runs one transaction at a time, and forgets everything when it ends")
		r.Say(driver.Warning, "durability", "none: for locks that matter, use Spanner")
	} else {
		r.Say(driver.Good, "server", "Spanner, %s", s.client.DatabaseName())
		r.Say(driver.Good, "durability", "a write is on the disks of a majority of zones before it is answered")
	}
	began := time.Now()
	txn := s.client.Single()
	if _, err := txn.ReadRow(ctx, s.table, rowKey(driver.Key{Space: driver.Settings, Name: "-"}), []string{"written"}); err != nil && spanner.ErrCode(err) != codes.NotFound {
		return nil, fmt.Errorf("spanner: %w", err)
	}
	now, err := txn.Timestamp()
	if err != nil {
		return nil, fmt.Errorf("spanner: %w", err)
	}
	// The ages of records are reckoned from such timestamps.
	if behind := began.Sub(now); behind > time.Second {
		r.Say(driver.Warning, "clock", "a strong read is of %s ago by this host's clock: if that clock is right, a process that comes late waits a whole TTL for a dead holder", behind.Round(time.Millisecond))
	} else {
		r.Say(driver.Good, "clock", "TrueTime; this host's clock differs by %s", time.Since(now).Abs().Round(time.Millisecond))
	}
	r.Say(driver.Good, "notifications", "Spanner cannot notify, so waiters poll")
	return r, nil
}

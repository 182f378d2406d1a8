package base

import (
	"context"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// KeepAudit adds entries to a name's audit record.
func (c *Base) KeepAudit(ctx context.Context, name string, breaks []record.Break) error {
	_, err := c.Update(ctx, driver.Audits.Key(name), "", func(r driver.Record) ([]byte, error) {
		audit, err := record.DecodeAudit(r.Value)
		if err != nil {
			return nil, err
		}
		return audit.Add(breaks).Encode()
	})
	return err
}

// CopyAudit moves audit entries from a lock record to the audit space, so that the
// record can become empty again. Any client may do so, and what fails is done later.
func (c *Base) CopyAudit(ctx context.Context, name string) error {
	recs, err := c.Store.Load(ctx, []driver.Key{driver.Names.Key(name)}, driver.Fresh)
	if err != nil {
		return err
	}
	rec, err := LockOf(recs[0])
	if err != nil || len(rec.Breaks) == 0 {
		return err
	}
	if err := c.KeepAudit(ctx, name, rec.Breaks); err != nil {
		return err
	}
	copied := rec.Breaks
	var gone []record.Eviction
	_, err = c.Update(ctx, driver.Names.Key(name), "", func(r driver.Record) ([]byte, error) {
		rec, err := LockOf(r)
		if err != nil {
			return nil, err
		}
		c.Mu.Lock()
		before := rec.Clone()
		changed := rec.DropBreaks(copied, c.IsDead, time.Now().UnixMicro())
		gone = before.Evicted(&rec, c.HasTombstone)
		c.Mu.Unlock()
		if !changed {
			return nil, ErrUnchanged
		}
		return rec.Encode(record.Version(r.Version)), nil
	})
	if err == nil {
		c.Mu.Lock()
		c.Evicted(name, gone)
		c.Unlock()
	}
	return err
}

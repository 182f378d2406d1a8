package claims

import (
	"context"
	"sync"
	"time"
)

// cooldown is the least time between two cleanings of a row.
const cooldown = 30 * time.Second

// A cleaner removes what has expired: one row at a time.
type cleaner struct {
	mu   sync.Mutex
	busy bool
	last map[string]time.Duration // when a row was last cleaned
}

// clean cleans a row in the background, if that is wanted and it is time.
func (l *Locker) clean(row []byte) {
	if !l.opts.CleanExpired {
		return
	}
	k := &l.cleaner
	now := l.steady()
	k.mu.Lock()
	defer k.mu.Unlock()
	if last, ok := k.last[string(row)]; k.busy || ok && now-last < cooldown {
		return
	}
	for row, last := range k.last {
		if now-last >= cooldown {
			delete(k.last, row)
		}
	}
	k.busy, k.last[string(row)] = true, now
	l.behind.Go(func() { // a transaction is open, so behind is not zero
		l.sweep(row)
		k.mu.Lock()
		k.busy = false
		k.mu.Unlock()
	})
}

// sweep removes claims that count for nobody: their holder stopped long ago, even
// if its clock and ours are as far apart as is allowed. What fails is left to the next
// sweep.
func (l *Locker) sweep(row []byte) {
	if err := l.removeExpired(row); err != nil {
		l.opts.Logger.Warn("expired claims not removed", "err", err)
	}
}

func (l *Locker) removeExpired(row []byte) error {
	columns, err := l.slice(l.ctx, row, nil)
	if err != nil {
		return err
	}
	cutoff := l.now() - l.opts.Unit.count(l.opts.Expire+2*(l.opts.Skew+l.tick()))
	var old [][]byte
	latest := int64(0)
	for _, col := range columns {
		if t := timestampOf(col.Name); t < cutoff {
			old = append(old, col.Name)
			latest = max(latest, t)
		}
	}
	if len(old) == 0 {
		return nil
	}
	return l.call(l.ctx, func(ctx context.Context) error { return l.columns.Delete(ctx, row, old, l.stamp(latest)) })
}
